"""The steps of a script that trains on its own: noted in the step ledger, and told to features."""

import time

from paceline.runtime.data.work import StepTimes
from paceline.runtime.probe.amounts import BatchAmounts
from paceline.runtime.probe.steps import StepProbe
from paceline.runtime.probe.times import HostClock, StepClock, StepOver, clock_of
from paceline.runtime.process.feature_parts import ProcessParts
from paceline.runtime.process.process import Process
from paceline.wire.step_ledger import Mark


class ScriptSteps:
    """Watches for steps from `install` on: put in before the script runs.

    Args:
        process: that runs the script.
        parts: of features in this process, which hear of each step.
    """

    def __init__(self, process: Process, parts: ProcessParts) -> None:
        self._process, self._parts = process, parts
        self.step = 1
        """Number of the step that the script is at."""
        self.probe = StepProbe(self._stepped)
        self._amounts = BatchAmounts()
        self._clock_of = self.probe.device
        self._clock: StepClock = HostClock()

    def install(self) -> None:
        """Watch from now on."""
        self.probe.install()
        self._amounts.install()

    def _stepped(self, start_s: float, took_s: float, ran_s: float, marks: Mark) -> None:
        """An optimizer has stepped."""
        if not self._process.is_fork:
            self._note(start_s, took_s, ran_s, marks)
            self._parts.script_stepped(self.step - 1)

    def infer(self, took_s: float) -> None:
        """Note a step that no optimizer of torch has made; may be called in any thread.

        Args:
            took_s: seconds from its begin to this moment.
        """
        if not self._process.is_fork:
            self._note(time.monotonic() - took_s, took_s, 0.0, self.probe.take_marks(took_s))

    def _note(self, start_s: float, took_s: float, ran_s: float, marks: Mark) -> None:
        over = StepOver(self.step, start_s, took_s, ran_s, marks, self._amounts.take())
        if self.probe.device != self._clock_of:
            self._clock_of = self.probe.device
            self._clock = clock_of(self._clock_of)
        for each in self._clock.over(over):
            self._process.step = each.number
            self._write(each)
            self._parts.script_timed(each)
        self.step += 1
        self._process.step = self.step

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
