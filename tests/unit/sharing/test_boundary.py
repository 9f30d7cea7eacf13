"""Where a process takes in the limit of its memory, and what it says of its use."""

import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.features.sharing.gate_page import LIMIT, GatePage
from paceline.features.sharing.process import boundary as module
from paceline.features.sharing.process.boundary import MemoryBoundary
from paceline.features.sharing.process.memory import MemoryUse


class ToldMemory:
    """A memory whose use is as a test says."""

    def __init__(self) -> None:
        self.limits: list[int | None] = []
        self.use = MemoryUse(10, 20, 0, 0)
        self.least = 0
        self.taken: list[torch.Tensor] = []

    def set_limit(self, num_bytes: int | None) -> int:
        self.limits.append(num_bytes)
        return 2**60 if num_bytes is None else max(num_bytes, self.least)

    def look(self) -> MemoryUse:
        return self.use

    def take_home(self, tensors: Iterable[torch.Tensor]) -> int:
        self.taken += tensors
        return 0


class Bounded:
    """A process with boundaries."""

    def __init__(self, folder: Path) -> None:
        self.page = GatePage.create(folder / "worker-0.share", "cpu:0", "opportunistic")
        self.memory = ToldMemory()
        self.boundary = MemoryBoundary(self.page, self.memory)
        self.boundary.install()
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self) -> None:
        self.model(torch.ones(1, 2)).sum().backward()
        self.optimizer.step()


@pytest.fixture
def bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Bounded]:
    """A process with boundaries, which is left as it was."""
    monkeypatch.setattr(module, "AWAY_S", getattr(request, "param", 60.0))
    handles = []
    register = module.register_optimizer_step_post_hook
    monkeypatch.setattr(
        module, "register_optimizer_step_post_hook", lambda hook: handles.append(register(hook))
    )
    monkeypatch.setattr(module.Optimizer, "zero_grad", module.Optimizer.zero_grad)
    found = Bounded(tmp_path)
    yield found
    found.boundary._leave_to_fork()
    for handle in handles:
        handle.remove()


def test_a_limit_is_taken_in_when_gradients_are_dropped(bounded: Bounded) -> None:
    assert bounded.memory.limits == [None], "before the first tensor"
    assert bounded.page.memory[:3] == (1, math.inf, 10)
    bounded.page.words[LIMIT] = 1000
    bounded.step()
    assert bounded.memory.limits == [None]
    bounded.optimizer.zero_grad()
    assert bounded.memory.limits == [None, 1000]
    assert bounded.page.memory == (2, 1000, 10, 20, 0, 0, 2)
    bounded.step()
    bounded.optimizer.zero_grad()
    assert bounded.memory.limits == [None, 1000], "the same"
    bounded.page.words[LIMIT] = math.inf
    bounded.optimizer.zero_grad()
    assert bounded.memory.limits == [None, 1000, None]
    assert bounded.page.memory.limit == math.inf


def test_gradients_that_are_kept_or_dropped_otherwise(bounded: Bounded) -> None:
    for drop in (lambda: bounded.optimizer.zero_grad(set_to_none=False), bounded.model.zero_grad):
        bounded.step()
        drop()
        looks = bounded.page.memory.looks
        bounded.step()
        assert bounded.page.memory.looks == looks + 1, "after the optimizer's step"


def test_after_a_raise_parameters_and_the_optimizers_state_return(bounded: Bounded) -> None:
    bounded.page.words[LIMIT] = 1000
    bounded.step()
    bounded.memory.use = MemoryUse(10, 20, 5, 7)
    bounded.optimizer.zero_grad()
    bounded.memory.taken.clear()
    bounded.optimizer.zero_grad()
    assert not bounded.memory.taken, "there is no room"
    bounded.page.words[LIMIT] = 2000
    bounded.boundary.pass_(between=False)
    assert not bounded.memory.taken, "not within a mini-batch"
    bounded.optimizer.zero_grad()
    assert len(bounded.memory.taken) == 2 + 2 * 3, "step, and two averages"
    assert {id(p) for p in bounded.model.parameters()} <= set(map(id, bounded.memory.taken))


def test_a_limit_that_cannot_be_kept_is_tried_again(
    bounded: Bounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded.memory.least = 500
    bounded.page.words[LIMIT] = 100
    bounded.optimizer.zero_grad()
    assert bounded.page.memory.limit == 500
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    bounded.memory.least = 0
    bounded.optimizer.zero_grad()
    assert bounded.page.memory.limit == 100


def test_what_was_used_is_said_for_a_while(
    bounded: Bounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded.memory.use = MemoryUse(10, 90, 0, 7)
    bounded.optimizer.zero_grad()
    bounded.memory.use = MemoryUse(10, 20, 0, 7)
    bounded.optimizer.zero_grad()
    assert bounded.page.memory[3:] == (90, 0, 14, 3)
    monkeypatch.setattr(module, "PEAK_S", 0.0)
    bounded.optimizer.zero_grad()
    bounded.optimizer.zero_grad()
    assert bounded.page.memory.peak == 20


@pytest.mark.parametrize("bounded", [0.05], indirect=True)
def test_a_process_that_comes_to_no_boundary_takes_its_limit_in(bounded: Bounded) -> None:
    bounded.page.words[LIMIT] = 1000
    end_s = time.monotonic() + 5.0
    while 1000 not in bounded.memory.limits and time.monotonic() < end_s:
        time.sleep(0.02)
    assert bounded.page.memory.limit == 1000


def test_a_process_that_the_script_forks_says_nothing(bounded: Bounded) -> None:
    looks = bounded.page.memory.looks
    bounded.boundary._leave_to_fork()
    bounded.optimizer.zero_grad()
    assert bounded.page.memory.looks == looks
