"""Models that a script has wrapped in torch's DistributedDataParallel."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.script.wrapped import unwrapped


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    """What a script can have by itself: a group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Counted:
    """A wrapper and how often it has averaged."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.times = 0
        self.inner = nn.Linear(4, 1)
        self.wrapper = DistributedDataParallel(self.inner)
        self.wrapper.register_comm_hook(None, self._hook)

    def _hook(self, _: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        self.times += 1
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done


@pytest.mark.usefixtures("held_both_ways")
def test_the_module_inside_is_trained_and_the_wrapper_averages_no_more() -> None:
    counted = Counted()
    counted.wrapper(torch.ones(2, 4)).sum().backward()
    assert counted.times == 1, "the hook sees what it is to see"

    job = pl.init()
    optimizer = torch.optim.SGD(counted.wrapper.parameters(), lr=0.1)
    model, optimizer = job.prepare(counted.wrapper, optimizer)
    assert model is counted.inner
    before = {name: value.clone() for name, value in job.state_dict().items()}
    assert list(before) == ["weight", "bias"]
    data = TensorRows(x=torch.arange(40.0).reshape(10, 4))
    for number, batch in enumerate(job.batches(data, 4)):
        forward = model if number % 2 else counted.wrapper
        forward(batch.x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert counted.times == 1
    assert all(not torch.equal(before[name], now) for name, now in job.state_dict().items())


def test_what_is_given_keeps_its_form() -> None:
    counted, other = Counted(), nn.Linear(2, 2)
    assert unwrapped(((counted.wrapper, [other]), other)) == ((counted.inner, [other]), other)
    plain = [other]
    assert unwrapped((plain,))[0] is plain


def test_a_group_of_several_is_refused() -> None:
    counted = Counted()
    counted.wrapper.process_group = type("Group", (), {"size": lambda self: 4})()
    with pytest.raises(ConfigError, match=r"process group of 4.*leave out init_process_group"):
        unwrapped(counted.wrapper)
