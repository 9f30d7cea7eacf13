"""Where a script's steps begin and end, and what they are marked with."""

import gc
import io
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from paceline.runtime.probe import steps
from paceline.runtime.probe.steps import StepProbe
from paceline.wire.step_ledger import Mark


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[float, Mark]]]:
    """Steps of what the test does: length and marks; the process is left as it was."""
    found: list[tuple[float, Mark]] = []
    for owner, name in ((nn.Module, "train"), (torch, "save"), (torch.serialization, "save")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    handles = []

    def after(hook: Any) -> None:
        handles.append(register_optimizer_step_post_hook(hook))

    def before_it(hook: Any) -> None:
        handles.append(register_optimizer_step_pre_hook(hook))

    monkeypatch.setattr(steps, "register_optimizer_step_post_hook", after)
    monkeypatch.setattr(steps, "register_optimizer_step_pre_hook", before_it)
    before = list(gc.callbacks)
    gc.disable()  # it marks a step only when a test says so
    StepProbe(lambda _start_s, took_s, _ran_s, marks: found.append((took_s, marks))).install()
    yield found
    for handle in handles:
        handle.remove()
    gc.enable()
    gc.callbacks[:] = before


def optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def test_a_step_lasts_from_one_step_of_the_optimizer_to_the_next(
    seen: list[tuple[float, Mark]],
) -> None:
    one = optimizer(nn.Linear(2, 2))
    for _ in range(3):
        time.sleep(0.02)
        one.step()
    assert [marks for _, marks in seen] == [Mark.FIRST, Mark.NONE, Mark.NONE]
    assert all(took_s >= 0.02 for took_s, _ in seen)


def test_of_two_optimizers_the_rarer_one_makes_the_steps(seen: list[tuple[float, Mark]]) -> None:
    critic, generator = optimizer(nn.Linear(2, 2)), optimizer(nn.Linear(2, 2))

    def train(rounds: int) -> int:
        before = len(seen)
        for _ in range(rounds):
            for _ in range(5):
                critic.step()
            generator.step()
        return len(seen) - before

    train(steps.LOOK_BACK // 6 + 1)  # until it has been looked for
    assert train(20) == 20


@pytest.mark.parametrize("count", [2, 3, 5, 40, 100])
def test_of_optimizers_that_take_turns_one_makes_the_steps(
    seen: list[tuple[float, Mark]], count: int
) -> None:
    each = [optimizer(nn.Linear(1, 1)) for _ in range(count)]  # as one per parameter
    for _ in range(100):
        for one in each:
            one.step()
    assert len(seen) == 100
    assert [marks & Mark.FIRST for _, marks in seen].count(Mark.FIRST) == 1


def test_steps_that_do_more_than_train_are_marked(seen: list[tuple[float, Mark]]) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    one = optimizer(module)
    one.step()
    module.eval()
    module.train()
    one.step()
    with tempfile.TemporaryFile() as file:
        torch.save(module.state_dict(), file)
    one.step()
    one.step()
    assert [marks for _, marks in seen[1:]] == [Mark.EVALUATION, Mark.CHECKPOINT, Mark.NONE]


def test_a_step_in_which_garbage_was_looked_for_is_marked(seen: list[tuple[float, Mark]]) -> None:
    one = optimizer(nn.Linear(2, 2))
    one.step()
    gc.collect()
    one.step()
    assert seen[-1][1] == Mark.GARBAGE


class Derived(torch.optim.SGD):
    """An optimizer whose step calls that of another class."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_a_step_within_a_step_of_the_same_optimizer_is_one(seen: list[tuple[float, Mark]]) -> None:
    optimizer(nn.Linear(2, 2))  # its class has hooks, too
    one = Derived(nn.Linear(2, 2).parameters(), lr=0.1)
    for _ in range(5):
        one.step()
    assert len(seen) == 5


def test_an_empty_group_of_parameters_is_no_fault(seen: list[tuple[float, Mark]]) -> None:
    one = optimizer(nn.Linear(2, 2))
    one.param_groups.insert(0, {**one.param_groups[0], "params": []})
    for _ in range(5):
        one.step()
    assert len(seen) == 5


def test_steps_of_another_optimizer_begin_a_pace_of_their_own(
    seen: list[tuple[float, Mark]],
) -> None:
    critic, generator = optimizer(nn.Linear(2, 2)), optimizer(nn.Linear(2, 2))
    for _ in range(40):
        for _ in range(5):
            critic.step()
        generator.step()
    firsts = [place for place, (_, marks) in enumerate(seen) if marks & Mark.FIRST]
    assert len(firsts) == 2 and firsts[0] == 0


def test_what_is_saved_to_memory_is_no_checkpoint(
    seen: list[tuple[float, Mark]], tmp_path: Path
) -> None:
    one = optimizer(nn.Linear(2, 2))
    one.step()
    for file in (io.BytesIO(), tmp_path / "a.pt", str(tmp_path / "b.pt")):
        torch.save(torch.ones(2), file)
        one.step()
    marked = [bool(marks & Mark.CHECKPOINT) for _, marks in seen]
    assert marked == [False, False, True, True]


def test_what_the_handler_of_a_signal_raises_is_the_script_s(
    monkeypatch: pytest.MonkeyPatch, seen: list[tuple[float, Mark]]
) -> None:
    class TooLongError(Exception):
        pass

    def handler(*_: Any) -> None:
        raise TooLongError

    one = optimizer(nn.Linear(2, 2))
    one.step()
    before = signal.signal(signal.SIGUSR1, handler)
    # As if it came while the step is looked at.
    monkeypatch.setattr(steps, "_device_of", lambda *_: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        with pytest.raises(TooLongError):
            one.step()
    finally:
        signal.signal(signal.SIGUSR1, before)
        monkeypatch.undo()
    assert len(seen) == 1
