"""What a script says to the other workers: alone it hears itself, and mistakes are refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.data.sources.tensor_rows import TensorRows


def prepared() -> tuple[pl.Job, nn.Module, SGD]:
    job = pl.init()
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    return job, model, optimizer


def test_alone_a_worker_hears_itself() -> None:
    job, _, _ = prepared()
    value = {"stop": True, "loss": float("nan"), "at": [torch.tensor([1.5, 2.0]), (1, "x")]}
    (gathered,), agreed, sent = job.all_gather(value), job.agree(value), job.broadcast(value)
    job.barrier()
    for found in (gathered, agreed, sent):
        assert found.keys() == value.keys()
        assert found["at"][0].tolist() == [1.5, 2.0]
        assert (found["stop"], found["at"][1]) == (True, (1, "x"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda job: job.agree(object()), r"job.agree\(value\)"),
        (lambda job: job.all_gather(torch.zeros(1 << 18)), "job.all_gather got a value of 1,0"),
    ],
)
def test_what_cannot_be_sent_is_refused(call: Callable[[pl.Job], Any], message: str) -> None:
    job, _, _ = prepared()
    with pytest.raises(ConfigError, match=message):
        call(job)


def test_before_prepare_there_are_no_others() -> None:
    with pytest.raises(ConfigError, match=r"job\.barrier was called before job\.prepare"):
        pl.init().barrier()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda job: job.barrier(), r"job\.barrier was called within a loop over job\.batches"),
        (lambda job: job.all_gather(1), "where a worker that dies would leave the others waiting"),
        (lambda job: job.agree(1), "workers share no step in modes asp and ssp"),
    ],
)
@pytest.mark.proves(form=("gather", "agree"), strategy="alone", ends="runs")
def test_within_a_loop_nobody_is_waited_for(call: Callable[[pl.Job], Any], message: str) -> None:
    job, model, optimizer = prepared()
    for batch in job.batches(TensorRows(x=torch.ones(4, 1)), 2):
        model(batch.x).mean().backward()
        optimizer.step()
        assert job.agree(3) == 3
        assert job.all_gather(4) == [4]
        job._strategy.is_alone = False  # as on servers in mode asp
        job._strategy.meets_in_bodies = False
        with pytest.raises(ConfigError, match=message):
            call(job)
        break
