"""What other libraries' training loops make of steps that take several batches, break, or are gone.

The job is a script of batches here; tests/integration/test_integrations.py has real ones.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

from paceline.base.errors import ConfigError
from paceline.runtime.integrations.steps import Steps, ThisMember, followed
from paceline.wire.spec import JobSpec, NodeSpec

pytestmark = pytest.mark.filterwarnings("default")  # other people's code

ROWS = TensorDataset(torch.arange(8.0))
STEPS_PER_EPOCH = 2

PART, BROKEN, WHOLE = "part", "broken", "whole"
COPIED = "copied"
"""The step is in the model, though not by us."""


class ScriptedJob:
    """A job whose every epoch yields these batches; it checks what a real one checks."""

    def __init__(self, *epochs: list[str]) -> None:
        self.epochs = list(epochs)
        self.rank, self.largest = 0, None
        self.spec = JobSpec(script="x", strategy="allreduce", workers=NodeSpec(count=2))
        self.client = SimpleNamespace(state=SimpleNamespace(step=0))
        self.kind = ""
        self.stepped = True
        self.ended = 0
        self.prepared: list[Any] = []
        self.rates: list[float] = []
        self.logged: list[dict[str, Any]] = []
        self.variables = SimpleNamespace(objects={}, takes_back=True, place=())
        self.entries, self.step = self, 0

    def newest(self) -> None:
        """Not asked the master."""

    def next_after(self, place: object) -> Any:
        """Where others are."""
        return self.epochs[:1] or None

    def log(self, **values: Any) -> None:
        self.logged.append(values)

    @property
    def holds(self) -> bool:
        return self.kind == WHOLE

    def prepare(self, *objects: Any) -> None:
        self.prepared = list(objects)
        self.optimizer = next(one for one in objects if isinstance(one, torch.optim.Optimizer))
        schedulers = [one for one in objects if isinstance(one, LRScheduler)]
        assert all(one.optimizer is self.optimizer for one in schedulers)
        take = self.optimizer.step

        def step(closure: Any = None) -> None:
            assert closure is None
            assert not self.stepped, "twice for one batch"
            self.stepped = True
            if self.holds:
                self.rates.append(self.optimizer.param_groups[0]["lr"])
                take()
                self.client.state.step += 1

        self.optimizer.step = step  # type: ignore[method-assign, assignment]

    def batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        assert len(loader) == STEPS_PER_EPOCH
        for kind in self.epochs.pop(0):
            if kind == COPIED:
                self.client.state.step += 1
                continue
            self.kind, self.stepped = kind, False
            yield {"x": torch.ones(2)} if self.named else [torch.ones(2)]
            assert self.stepped, "a batch went by"
        self.ended += 1

    named = False

    def begun(self) -> Any:
        """How far the job was when this script came to it; None: nobody has trained."""
        return self.client.state.step or None


def member(job: ScriptedJob) -> ThisMember:
    return ThisMember(job, job, job)  # type: ignore[arg-type]


def loader(**named: Any) -> DataLoader[Any]:
    return DataLoader(ROWS, **({"batch_size": 2} | named))


# ---------------------------------------------------------------------------- steps


def test_a_step_has_a_batch_for_each_worker_asked_for() -> None:
    job = ScriptedJob()
    steps = Steps(member(job), loader(batch_size=1), accumulation=2)
    assert (steps.batch_size, len(steps), job.largest) == (4, 2, 1)


def test_what_makes_no_whole_step_is_dropped_if_asked_for() -> None:
    rows = TensorDataset(torch.arange(11.0))
    read: list[DataLoader[Any]] = []

    class Reading(ScriptedJob):
        def batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
            assert loader.drop_last, "in each pass others are left out"
            read.append(loader)
            yield from range(len(loader))

    steps = Steps(member(Reading()), DataLoader(rows, batch_size=2, shuffle=True, drop_last=True))
    assert (steps.batch_size, len(steps)) == (4, 2)
    assert list(steps) == list(steps) == [0, 1]
    assert read[0] is read[1], "the job counts the passes"


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2], "comes from a list"),
        (loader(drop_last=True, batch_size=8), "drop_last=True and 8 samples, fewer than the 16"),
        (loader(sampler=WeightedRandomSampler([1.0] * 8, 8)), "has a WeightedRandomSampler"),
        (loader(batch_size=None), "no batch_size"),
        (DataLoader(Endless(), batch_size=2), "is iterable"),
        (DataLoader(ROWS, batch_sampler=[[1, 2], [3]]), "has a batch_sampler"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Steps(member(ScriptedJob()), given)


# ---------------------------------------------------------------------------- both loops

WHAT_COMES = [[PART, WHOLE, BROKEN, PART, WHOLE], [PART, BROKEN, WHOLE, BROKEN, COPIED]]
"""Three steps by us, the fourth by a peer."""
LATE = [[], [WHOLE]]
"""The first epoch was over, and a step of the second."""


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"x": index}


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.weight * x).mean()}


def train_by_huggingface(
    job: ScriptedJob,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    resume: str | None = None,
    **named: Any,
) -> Any:
    from transformers import TrainingArguments

    from paceline.runtime.integrations import huggingface

    monkeypatch.setattr(huggingface, "join", lambda _: member(job))
    job.named = True
    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    arguments = {
        "output_dir": str(out),
        "per_device_train_batch_size": 2,
        "num_train_epochs": 2,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 1,
    }
    trainer = huggingface.Trainer(
        model,
        TrainingArguments(**(arguments | named)),
        train_dataset=Rows(),
        optimizers=(optimizer, rates),
    )
    trainer.train(resume_from_checkpoint=resume)
    logged = [one["step"] for one in trainer.state.log_history if "loss" in one]
    return SimpleNamespace(global_step=trainer.state.global_step, logged=logged)


def train_by_lightning(
    job: ScriptedJob,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    resume: str | None = None,
    **named: Any,
) -> Any:
    import lightning.pytorch as pl

    from paceline.runtime.integrations import lightning

    monkeypatch.setattr(lightning, "join", lambda _: member(job))
    logged: list[int] = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = WithLoss()

        def training_step(self, batch: list[Tensor]) -> Tensor:
            loss: Tensor = self.inner(batch[0])["loss"]
            return loss

        def on_train_batch_end(self, *_: Any) -> None:
            logged.append(self.trainer.global_step)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return [optimizer], [{"scheduler": rates, "interval": "step"}]

    trainer = pl.Trainer(
        strategy=lightning.PacelineStrategy(),
        **(
            {
                "max_epochs": 2,
                "logger": False,
                "enable_checkpointing": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "default_root_dir": out,
            }
            | named
        ),
    )
    trainer.fit(Module(), loader(), ckpt_path=resume)
    return SimpleNamespace(global_step=trainer.global_step, logged=logged)


BOTH = [
    pytest.param(
        train_by_huggingface,
        marks=pytest.mark.skipif(
            not find_spec("transformers"), reason="needs paceline[huggingface]"
        ),
    ),
    pytest.param(
        train_by_lightning,
        marks=pytest.mark.skipif(not find_spec("lightning"), reason="needs paceline[lightning]"),
    ),
]


@pytest.mark.parametrize("train", BOTH)
def test_one_update_of_the_library_is_one_step_of_the_job(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ScriptedJob(*WHAT_COMES)
    found = train(job, tmp_path, monkeypatch)
    assert job.client.state.step == 4
    assert job.ended == 2
    assert job.rates == [1.0, 0.5, 0.25], "the scheduler steps once with each"
    assert job.optimizer.param_groups[0]["lr"] == 0.125
    assert found.logged[:3] == [1, 2, 3]


@pytest.mark.parametrize("train", BOTH)
def test_who_joins_late_has_the_steps_of_the_job(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ScriptedJob(*LATE)
    job.client.state.step = 3  # as copied from a peer
    found = train(job, tmp_path, monkeypatch)
    assert (found.global_step, found.logged, job.ended) == (4, [4], 2)


@pytest.mark.parametrize("train", BOTH)
def test_resuming_is_the_jobs_part(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="paceline run --resume"):
        train(ScriptedJob(), tmp_path, monkeypatch, resume=str(tmp_path / "former.ckpt"))


@pytest.mark.parametrize("train", BOTH)
def test_a_later_life_leaves_the_checkpoint_aside_that_it_finds(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ScriptedJob(*LATE)
    job.client.state.step = 3  # as copied from a peer
    former = str(tmp_path / "checkpoint-2")
    found = train(job, tmp_path, monkeypatch, resume=former)
    assert (found.global_step, found.logged, job.ended) == (4, [4], 2)
    assert f"names {former}, which is left aside: the job has trained before" in (
        capsys.readouterr().err
    )


@pytest.mark.skipif(not find_spec("transformers"), reason="needs paceline[huggingface]")
@pytest.mark.parametrize("named", [{"fp16": True}, {"auto_find_batch_size": True}])
def test_huggingface_is_refused_what_cannot_hold(
    named: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=next(iter(named))):
        train_by_huggingface(ScriptedJob(), tmp_path, monkeypatch, **named)


@pytest.mark.skipif(not find_spec("lightning"), reason="needs paceline[lightning]")
@pytest.mark.parametrize(
    "named", [{"limit_train_batches": 3}, {"max_epochs": -1}, {"fast_dev_run": True}]
)
def test_lightning_is_refused_what_cannot_hold(
    named: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=next(iter(named))):
        train_by_lightning(ScriptedJob(), tmp_path, monkeypatch, **named)


# ---------------------------------------------------------------------------- callbacks and folders

LIGHTNING = pytest.mark.skipif(not find_spec("lightning"), reason="needs paceline[lightning]")
ACCELERATE = pytest.mark.skipif(not find_spec("accelerate"), reason="needs paceline[huggingface]")


@LIGHTNING
def test_what_a_library_keeps_without_a_state_is_of_this_process() -> None:
    from lightning.pytorch import callbacks

    from paceline.runtime.integrations.lightning import _has_state

    class Bar(callbacks.RichProgressBar):
        def __init__(self) -> None:
            super().__init__()
            self.seen = 0

    class Own(callbacks.Callback):
        def __init__(self) -> None:
            self.best = 0.0

    given = [callbacks.EarlyStopping("x"), callbacks.ModelCheckpoint(), Bar(), Own(), Bar()]
    found = followed(given, _has_state)
    assert [*found] == ["EarlyStopping", "ModelCheckpoint", "Bar", "Own", "Bar#4"]
    shown = {name: vars(one.whole).keys() - one.names for name, one in found.items()}
    assert {"wait_count", "best_score"} <= shown["EarlyStopping"]
    assert {"best_model_path", "best_k_models", "kth_value"} <= shown["ModelCheckpoint"]
    assert shown["Bar"] == {"seen"}
    assert shown["Own"] == {"best"}


@LIGHTNING
def test_a_later_life_goes_on_in_the_folder_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning.pytorch.loggers import CSVLogger

    monkeypatch.setenv("PACELINE_JOB_DIR", str(tmp_path / "jobs" / "net-1"))
    rows = tmp_path / "logs" / "net-1" / "metrics.csv"
    for life in ("loss", "other"):
        logger = CSVLogger(tmp_path, "logs")
        job = ScriptedJob([WHOLE] * 2, [WHOLE] * 2)
        train_by_lightning(job, tmp_path, monkeypatch, logger=logger)
        logger.log_metrics({life: 1.0}, 7)
        logger.save()
        assert Path(logger.log_dir) == rows.parent
    header, *lines = rows.read_text().splitlines()
    assert header == "loss,other,step"
    assert lines == ["1.0,,7", ",1.0,7"]
    named = CSVLogger(tmp_path, "logs", version="mine")
    job = ScriptedJob([WHOLE] * 2, [WHOLE] * 2)
    train_by_lightning(job, tmp_path, monkeypatch, logger=named)
    assert named.version == "mine"


@ACCELERATE
@pytest.mark.parametrize("is_positional", [False, True])
def test_an_argument_that_accelerate_leaves_aside_is_named(
    *, is_positional: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from accelerate.utils import DataLoaderConfiguration

    from paceline.runtime.integrations import accelerate

    monkeypatch.setattr(accelerate, "join", lambda _: member(ScriptedJob()))
    named = {"dataloader_config": DataLoaderConfiguration(split_batches=True), "cpu": True}
    assert accelerate.Accelerator(**named).split_batches
    assert not capsys.readouterr().err
    if is_positional:
        made = accelerate.Accelerator(True, True, cpu=True)
    else:
        made = accelerate.Accelerator(split_batches=True, cpu=True)
    told = "dataloader_config=DataLoaderConfiguration(split_batches=True)"
    assert (told in capsys.readouterr().err) != made.split_batches


@LIGHTNING
def test_a_checkpoint_from_after_the_cut_is_written_again(tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    from paceline.runtime.integrations.lightning_folders import Folders

    folder, others = tmp_path / "train-1" / "checkpoints", tmp_path / "own"
    agreeing: Any = SimpleNamespace(job_id="train-1", job=SimpleNamespace(agree=lambda one: one))

    def life(*savers: ModelCheckpoint) -> None:
        trainer = SimpleNamespace(loggers=[], callbacks=[], checkpoint_callbacks=savers)
        Folders(agreeing, trainer).be_of_job()

    def saved(saver: Any, name: str, into: Path = folder) -> bool:
        """Whether a checkpoint of this name may be written, which is done then."""
        into.mkdir(parents=True, exist_ok=True)
        is_free = not saver.file_exists(str(into / name), None)
        (into / name).touch()
        return is_free

    first, second = ModelCheckpoint(save_last=True), ModelCheckpoint()
    life(first, second)
    for name in ("epoch=0-step=8.ckpt", "epoch=1-step=16.ckpt", "last.ckpt"):
        assert saved(first, name)
        assert not saved(second, name), "two callbacks save at one step"
    first = ModelCheckpoint(save_last=True)
    life(first, second)  # a resume from between the two
    first.best_model_path = str(folder / "epoch=0-step=8.ckpt")
    assert not saved(second, "epoch=0-step=8.ckpt")
    assert saved(first, "epoch=1-step=16.ckpt")
    assert saved(first, "last.ckpt")
    assert not saved(second, "epoch=1-step=16.ckpt")
    named = ModelCheckpoint(filename="best")
    life(named)
    assert saved(named, "best.ckpt")
    life(named)
    assert not saved(named, "best.ckpt"), "an earlier one of the same run, perhaps"
    saved(first, "epoch=0-step=8.ckpt", others)
    life(first)
    assert not saved(first, "epoch=0-step=8.ckpt", others), "of another run, perhaps"


@LIGHTNING
def test_an_empty_file_of_rows_has_no_columns(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    from paceline.runtime.integrations.lightning_folders import _keep_rows

    logger = CSVLogger(tmp_path, "logged", version="train-1")
    rows = Path(logger.log_dir) / "metrics.csv"
    rows.parent.mkdir(parents=True)
    rows.touch()
    _keep_rows(logger)
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.save()
    assert rows.read_text().split() == ["loss,step", "1.0,1"]
