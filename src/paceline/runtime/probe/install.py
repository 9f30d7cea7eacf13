"""The probe of a training process whose script trains on its own: put in before the script runs."""

import time

import torch.distributed as dist

from paceline.base.node_files import NodeFiles
from paceline.policy.failslow.detection import UsualMarks
from paceline.runtime.data.work import StepTimes
from paceline.runtime.probe.amounts import BatchAmounts
from paceline.runtime.probe.calls import CallProbe
from paceline.runtime.probe.meeting import Meetings
from paceline.runtime.probe.periods import CallPeriods
from paceline.runtime.probe.steps import StepProbe
from paceline.runtime.probe.times import HostClock, StepClock, StepOver, clock_of
from paceline.runtime.process.process import Process
from paceline.wire.call_ring import CallRingWriter
from paceline.wire.step_ledger import Mark


class Probe:
    """Steps go to the step ledger, calls to the call ring; only what is asked for is sent."""

    def __init__(self, process: Process) -> None:
        self._process, self._step = process, 1
        self._amounts = BatchAmounts()
        self._steps = StepProbe(self._stepped)
        self._meetings = Meetings(process, lambda: self._steps.device)
        self._ring = CallRingWriter(NodeFiles(process.job, process.node).calls, process.inc)
        self._periods = CallPeriods(self._inferred)
        self._calls = CallProbe(self._ring, lambda: self._step, self._periods.called)
        self._usual_marks = UsualMarks()
        self._clock_of = self._steps.device
        self._clock: StepClock = HostClock()

    def install(self) -> None:
        """Watch from now on."""
        if dist.is_available():
            self._calls.install()
        self._steps.install()
        self._amounts.install()

    def _stepped(self, start_s: float, took_s: float, ran_s: float, marks: Mark) -> None:
        """An optimizer has stepped."""
        if self._process.is_fork:
            return
        self._periods.end()
        self._ring.infers = False
        self._note(start_s, took_s, ran_s, marks)
        self._meetings.look(self._step - 1)

    def _inferred(self, took_s: float) -> None:
        """The calls of a step have come again. At such a moment the ranks cannot meet."""
        if not self._process.is_fork:
            self._ring.infers = True
            start_s = time.monotonic() - took_s
            self._note(start_s, took_s, 0.0, self._steps.take_marks(took_s))

    def _note(self, start_s: float, took_s: float, ran_s: float, marks: Mark) -> None:
        over = StepOver(self._step, start_s, took_s, ran_s, marks, self._amounts.take())
        if self._steps.device != self._clock_of:
            self._clock_of = self._steps.device
            self._clock = clock_of(self._clock_of)
        for each in self._clock.over(over):
            self._process.step = each.number
            self._write(each)
        self._calls.step_over()
        self._step += 1
        self._process.step = self._step

    def _write(self, over: StepOver) -> None:
        times = StepTimes(
            step=over.number,
            samples=0,
            start_s=over.start_s,
            bpt_s=over.took_s,
            compute_s=min(over.ran_s, over.took_s),
            server_s=0.0,
            message_s=0.0,
            wait_s=max(over.took_s - over.ran_s, 0.0),
        )
        self._process.record(times, over.marks, over.amount)
        if not self._usual_marks.left_out(over.marks):
            self._ring.add_step(over.number, over.start_s, over.took_s)
