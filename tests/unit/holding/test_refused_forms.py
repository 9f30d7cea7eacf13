"""Forms of a loop that a strategy refuses: each with its remedy, before anything is lost.

Each test is a cell of the map of promises (``docs/reference/promises.py``).
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Optimizer
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.holding.servers.in_process import Alone
from paceline.runtime.holding.servers.strategy import OnServers
from paceline.runtime.holding.shards.strategy import Sharded
from paceline.runtime.integrations import steps as integrations
from paceline.wire.spec import JobSpec
from paceline.wire.strategies import STRATEGIES, Mode

DATA = TensorRows(x=torch.arange(32.0).reshape(8, 4) / 32)
MODES = STRATEGIES["ps"].modes


class Script:
    """A job on servers, with a model and an optimizer that a test prepares."""

    def __init__(self, mode: Mode) -> None:
        trainer = Alone(JobSpec(script="train.py", mode=mode))
        trainer.is_alone = False  # as where other workers are
        self.job = pl.Job(OnServers(trainer))
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        self.optimizer = SGD(self.model.parameters(), lr=0.1)

    def batches(self, *more: Any) -> Any:
        """Prepare, and begin a loop."""
        self.job.prepare(self.model, self.optimizer, *more)
        return self.job.batches(DATA, 4)

    def backward(self, batch: Any) -> None:
        self.model(batch.x).mean().backward()


def accumulates(script: Script) -> None:
    script.job.prepare(script.model, script.optimizer)
    script.job.batches(DATA, 4, accumulate=2)


def skips(script: Script) -> None:
    batches = script.batches()
    next(batches)
    next(batches)


def takes_turns(script: Script) -> None:
    first, second = (SGD(part.parameters(), lr=0.1) for part in script.model)
    script.job.prepare(script.model, [first, second])
    batches = script.job.batches(DATA, 4)
    batch = next(batches)
    script.backward(batch)
    first.step()
    script.backward(batch)
    second.step()


def steps_one(script: Script) -> None:
    first, second = (SGD(part.parameters(), lr=0.1) for part in script.model)
    script.job.prepare(script.model, [first, second])
    batches = script.job.batches(DATA, 4)
    script.backward(next(batches))
    first.step()
    next(batches)


def adds_a_group(script: Script) -> None:
    script.batches()
    script.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


def has_lbfgs(script: Script) -> None:
    script.job.prepare(script.model, LBFGS(script.model.parameters()))


def averages(script: Script) -> None:
    average = AveragedModel(script.model)
    batches = script.batches(average)
    script.backward(next(batches))
    script.optimizer.step()
    average.update_parameters(script.model)


def scales(script: Script) -> None:
    script.batches(torch.amp.GradScaler("cpu"))


def has_uneven_batches(script: Script) -> None:
    script.job.prepare(script.model, script.optimizer)
    script.job.batches(DataLoader(DATA, batch_sampler=[[0], [1, 2, 3]]))


def prepares_again(script: Script) -> None:
    script.batches()
    script.job.prepare(script.model, script.optimizer)


def gathers(script: Script) -> None:
    batches = script.batches()
    next(batches)
    script.job.all_gather(1)


def agrees(script: Script) -> None:
    batches = script.batches()
    next(batches)
    script.job.agree(1)


ON_SERVERS: dict[str, tuple[Callable[[Script], None], str]] = {
    "accumulation": (accumulates, "give 2 times the batch_size"),
    "skipped": (skips, r"a batch went by without optimizer\.step\(\)"),
    "turns": (takes_turns, r"call loss\.backward\(\) for all optimizers before"),
    "some": (steps_one, "1 of 2 prepared optimizers did not step"),
    "thawed": (adds_a_group, r"requires_grad_\(False\) after it"),
    "lbfgs": (has_lbfgs, r"LBFGS cannot be run on parameter servers"),
    "averages": (averages, "--strategy allreduce"),
    "scaler": (scales, "take bfloat16, which needs no scaler"),
    "uneven": (has_uneven_batches, "--strategy allreduce"),
    "folds": (prepares_again, "--strategy allreduce"),
    "gather": (gathers, "call it between two loops"),
}


@pytest.mark.refuses(form="{form}", strategy="ps {mode}")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", ON_SERVERS)
def test_servers_refuse_what_they_cannot_train(form: str, mode: Mode) -> None:
    write, remedy = ON_SERVERS[form]
    with pytest.raises(ConfigError, match=remedy):
        write(Script(mode))


@pytest.mark.refuses(form="agree", strategy="ps {mode}")
@pytest.mark.parametrize("mode", ["ssp", "asp"])
def test_workers_that_share_no_step_agree_between_loops(mode: Mode) -> None:
    with pytest.raises(ConfigError, match="workers share no step in modes asp and ssp"):
        agrees(Script(mode))


@pytest.mark.refuses(form="scaler", strategy="fsdp")
def test_shards_take_no_scaler() -> None:
    member: Any = SimpleNamespace()
    layer = nn.Linear(2, 2)
    optimizers: list[Optimizer] = [SGD(layer.parameters(), lr=0.1)]
    with pytest.raises(ConfigError, match="bfloat16 needs none"):
        Sharded.prepare(member, [layer], optimizers, (), [torch.amp.GradScaler("cpu")])


OTHERS = [
    *(pytest.param({"strategy": "ps", "mode": mode}, f"ps {mode}", id=mode) for mode in MODES),
    pytest.param({"strategy": "fsdp"}, "fsdp", id="fsdp"),
]


@pytest.mark.refuses(form=("trainers", "accelerate"), strategy="{column}")
@pytest.mark.parametrize(("named", "column"), OTHERS)
def test_loops_of_other_libraries_need_the_model_in_each_worker(
    named: dict[str, Any], column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = JobSpec(script="train.py", **named)
    monkeypatch.setenv("PACELINE_NODE", "worker-0")
    monkeypatch.setattr(integrations, "_is_by_itself", lambda: False)
    monkeypatch.setattr(integrations, "managed", lambda: SimpleNamespace(spec=spec))
    with pytest.raises(ConfigError, match="run the job with --strategy allreduce"):
        integrations.join("Lightning")
