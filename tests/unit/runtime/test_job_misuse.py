"""Mistakes that show only while a script runs; the others are in test_script_mistakes.py."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.holding.servers.in_process import Alone
from paceline.runtime.holding.servers.strategy import OnServers
from paceline.runtime.script.job import Job
from paceline.wire.spec import JobSpec

DATA = TensorRows(x=torch.arange(40.0).reshape(10, 4), y=torch.arange(10.0))


def _prepared() -> tuple[pl.Job, nn.Module, Optimizer]:
    job = pl.init()
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    return job, model, optimizer


def _backward(model: nn.Module, batch: Any) -> None:
    F.mse_loss(model(batch.x).squeeze(1), batch.y).backward()


@pytest.mark.usefixtures("held_both_ways")
@pytest.mark.parametrize(
    ("args", "kwargs", "got"),
    [
        (([], 1.0), {}, "list, float"),
        (([],), {"max_norm": 1.0}, "list, float"),
        (([],), {}, "list"),
        ((), {}, "nothing"),
        ((1.0,), {"norm_type": 1}, "float, int"),
        ((0,), {}, "0"),
        ((float("nan"),), {}, "nan"),
    ],
)
def test_clipping_as_torch_does_it_is_told_what_is_taken(
    args: tuple[Any, ...], kwargs: dict[str, Any], got: str
) -> None:
    job, _, _ = _prepared()
    with pytest.raises(ConfigError, match=rf"clip_grad_norm_: got {got}; expected the largest nor"):
        job.clip_grad_norm_(*args, **kwargs)


@pytest.mark.usefixtures("held_both_ways")
@pytest.mark.usefixtures("held_both_ways")
def test_a_progress_bar_sees_how_many_batches_come() -> None:
    job, model, optimizer = _prepared()
    batches = job.batches(DATA, 3, epochs=2)
    assert len(batches) == 8
    seen = 0
    for batch in batches:
        _backward(model, batch)
        optimizer.step()
        seen += 1
    assert seen == 8


def test_a_left_loop_lets_another_begin() -> None:
    job, model, optimizer = _prepared()
    for batch in job.batches(DATA, 4):
        _backward(model, batch)
        break
    optimizer.zero_grad()
    sizes = []
    for batch in job.batches(DATA, 4):
        _backward(model, batch)
        optimizer.step()
        sizes.append(len(batch.y))
    assert sizes == [4, 4, 2]


def test_the_weight_of_a_table_cannot_be_trained_directly() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = SGD(table.parameters(), lr=0.1)
    job = pl.init()
    job.prepare(table, optimizer)
    next(batches := job.batches(DATA, 4))
    assert table.weight.shape == (10, 4)
    assert table.weight.isnan().all()
    table.weight.sum().backward()
    with pytest.raises(ConfigError, match="was used directly"):
        optimizer.step()
    batches.close()  # type: ignore[attr-defined]


def test_an_id_out_of_range_names_the_table() -> None:
    model = nn.Module()
    model.items = nn.Embedding(10, 4, sparse=True)
    job = pl.init()
    job.prepare(model, SGD(model.parameters(), lr=0.1))
    batches = job.batches(DATA, 4)
    next(batches)
    with pytest.raises(IndexError, match=r"table 'items': id 10 is not in \[0, 10\)"):
        model.items(torch.tensor([3, 10]))


class _Broken:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        if index == 5:
            raise ValueError("record 5 is damaged")
        return torch.ones(4)


@pytest.mark.usefixtures("held_both_ways")
def test_an_error_of_the_dataset_is_raised_in_its_own_iteration() -> None:
    job, model, optimizer = _prepared()
    seen = []
    with pytest.raises(ValueError, match="record 5 is damaged") as caught:  # noqa: PT012
        for batch in job.batches(_Broken(), 2, shuffle=False):
            model(batch).sum().backward()
            optimizer.step()
            seen.append(len(batch))
    assert seen == [2, 2]
    assert not any("optimizer" in str(frame.path) for frame in caught.traceback)


@pytest.mark.refuses(form="clipping", strategy="ps bsp")
def test_clipping_is_refused_where_gradients_are_summed_on_servers() -> None:
    trainer = Alone(JobSpec(script="train.py"))
    trainer.sums_workers = True
    job, model = Job(OnServers(trainer)), nn.Linear(4, 1)
    job.prepare(model, SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="--mode asp"):
        job.clip_grad_norm_(1.0)


@pytest.mark.usefixtures("held_both_ways")
def test_a_batch_per_worker_is_the_only_size_given() -> None:
    job, model, optimizer = _prepared()
    with pytest.raises(
        ConfigError, match="batch_per_worker is 4, and batch_size in the script is 8"
    ):
        next(job.batches(DATA, 8, batch_per_worker=4))  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="batch_per_worker is 0; give a whole number"):
        next(job.batches(DATA, batch_per_worker=0))  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="within a loop"):
        _ = job.global_batch
    seen = []
    for batch in job.batches(DATA, batch_per_worker=4):
        seen.append(job.global_batch)
        _backward(model, batch)
        optimizer.step()
    assert seen == [4] * math.ceil(len(DATA) / 4)
