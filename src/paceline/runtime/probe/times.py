"""What steps took: by the clock of the host, or of the GPU that works them off later.

A script's host runs ahead of its GPU until something makes it wait, as a loss that is printed each
tenth step. Its own times are then nine short steps and a long one, whatever the GPU does.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch

from paceline.wire.step_ledger import Mark

MOST_AHEAD = 64
"""Steps that a host may be ahead of its GPU; of those before them the host's times are taken."""


class StepOver(NamedTuple):
    """A step that the host has done."""

    number: int
    start_s: float
    took_s: float
    ran_s: float
    """Seconds for which the calling thread ran."""
    marks: Mark
    amount: float


class StepClock(Protocol):
    """Says what steps took."""

    def over(self, step: StepOver) -> Iterator[StepOver]:
        """Take in that the host has done a step; yield those whose times are known now."""
        ...


class HostClock:
    """The clock of a script on processors: the host's times are those of the steps."""

    def over(self, step: StepOver) -> Iterator[StepOver]:
        yield step


class GpuClock:
    """The clock of a script on a GPU: an event between two steps says when the first is done.

    Nothing waits for the GPU: events are looked at when the host ends a later step.

    Args:
        device: the GPU.
        cuda: torch's module; tests have another one.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda
        self._ahead: deque[tuple[Any, StepOver]] = deque()
        self._before: Any = None
        """The event of the last step that is known; None: the next one has no start."""
        self._free: list[Any] = []

    def over(self, step: StepOver) -> Iterator[StepOver]:
        if self._cuda.is_current_stream_capturing():
            # Nothing runs now. What is played later steps no optimizer that could be seen.
            yield from self._give_up()
            yield step
            return
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._device))
        self._ahead.append((event, step))
        while self._ahead and self._ahead[0][0].query():
            event, done = self._ahead.popleft()
            if self._before is not None:
                done = done._replace(took_s=self._before.elapsed_time(event) / 1e3)
                self._free.append(self._before)
            self._before = event
            yield done
        if len(self._ahead) > MOST_AHEAD:
            yield from self._give_up()

    def _give_up(self) -> Iterator[StepOver]:
        """Take the host's times of all steps that are not known."""
        for _, step in self._ahead:
            yield step
        self._ahead.clear()
        self._before = None


def clock_of(device: torch.device) -> StepClock:
    """Choose by what the script trains on."""
    return GpuClock(device) if device.type == "cuda" else HostClock()
