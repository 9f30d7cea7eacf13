"""Times of steps that a GPU works off later; the GPU is a stand-in with a clock of its own."""

from collections import deque

import torch

from paceline.runtime.probe.times import MOST_AHEAD, GpuClock, HostClock, StepOver, clock_of
from paceline.wire.step_ledger import Mark


class Gpu:
    """What the clock uses of ``torch.cuda``: events of a queue of work."""

    def __init__(self) -> None:
        self.host_s = self.busy_until_s = 0.0
        self.captures = False
        self.num_events = 0

    def Event(self, *, enable_timing: bool) -> "GpuEvent":  # noqa: N802 - torch's name
        assert enable_timing
        self.num_events += 1
        return GpuEvent(self)

    def current_stream(self, device: torch.device) -> torch.device:
        return device

    def is_current_stream_capturing(self) -> bool:
        return self.captures

    def work(self, took_s: float) -> None:
        self.busy_until_s = max(self.busy_until_s, self.host_s) + took_s

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, self.busy_until_s)


class GpuEvent:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self.at_s = gpu, 0.0

    def record(self, _stream: torch.device) -> None:
        self.at_s = max(self._gpu.busy_until_s, self._gpu.host_s)

    def query(self) -> bool:
        return self.at_s <= self._gpu.host_s

    def elapsed_time(self, other: "GpuEvent") -> float:
        return 1e3 * (other.at_s - self.at_s)


class Loop:
    """A script: each step is enqueued in 1 ms, and a loss is printed now and then."""

    def __init__(self) -> None:
        self.gpu = Gpu()
        self.clock = GpuClock(torch.device("cuda:0"), self.gpu)
        self.number = 0
        self.told: deque[StepOver] = deque()

    def run(self, steps: int, took_s: float, prints_every: int = 10) -> None:
        for _ in range(steps):
            self.number += 1
            start_s = self.gpu.host_s
            self.gpu.work(took_s)
            self.gpu.host_s += 1e-3
            if self.number % prints_every == 0:
                self.gpu.synchronize()
            host_s = self.gpu.host_s - start_s
            over = StepOver(self.number, start_s, host_s, 1e-3, Mark.NONE, 0.0)
            self.told.extend(self.clock.over(over))


def test_steps_of_a_gpu_are_told_as_long_as_it_took_and_not_as_the_host_waited() -> None:
    loop = Loop()
    loop.run(100, 0.05)
    loop.run(100, 0.08)
    assert [one.number for one in loop.told] == [*range(1, 201)]
    took_ms = [round(1e3 * one.took_s) for one in loop.told]
    assert took_ms[1:100] == [50] * 99
    assert took_ms[100:] == [80] * 100
    assert loop.gpu.num_events <= 12, "events are used again"


def test_a_host_that_never_waits_is_told_by_its_own_times() -> None:
    loop = Loop()
    loop.run(3 * MOST_AHEAD, 0.05, prints_every=10**9)
    numbers = [one.number for one in loop.told]
    assert numbers == [*range(1, len(numbers) + 1)]
    assert len(numbers) >= 2 * MOST_AHEAD
    loop.gpu.synchronize()
    loop.run(MOST_AHEAD, 0.05, prints_every=1)
    assert round(1e3 * loop.told[-1].took_s) == 50


def test_while_a_graph_is_captured_no_event_is_recorded() -> None:
    loop = Loop()
    loop.run(20, 0.05)
    known = loop.gpu.num_events
    loop.gpu.captures = True
    loop.run(5, 0.0)
    assert [one.number for one in loop.told] == [*range(1, 26)]
    assert loop.gpu.num_events == known


def test_on_processors_a_step_is_told_at_once() -> None:
    clock = clock_of(torch.device("cpu"))
    assert isinstance(clock, HostClock)
    over = StepOver(1, 0.0, 0.5, 0.4, Mark.FIRST, 3.0)
    assert [*clock.over(over)] == [over]
