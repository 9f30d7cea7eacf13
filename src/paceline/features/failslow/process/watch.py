"""The watch within a script that trains on its own: calls in the call ring, and meetings."""

import torch.distributed as dist

from paceline.features.failslow.call_ring import CallRingWriter, ring_of
from paceline.features.failslow.policy.detection import UsualMarks
from paceline.features.failslow.process.calls import CallProbe
from paceline.features.failslow.process.meeting import Meetings
from paceline.features.failslow.process.periods import CallPeriods
from paceline.runtime.probe.script_steps import ScriptSteps
from paceline.runtime.probe.times import StepOver
from paceline.runtime.process.process import Process


class ScriptWatch:
    """Notes calls and steps in the call ring; only what is asked for is sent.

    Args:
        process: that runs the script.
        steps: of the script.
    """

    def __init__(self, process: Process, steps: ScriptSteps) -> None:
        self._process, self._steps = process, steps
        self.meetings = Meetings(process, lambda: steps.probe.device)
        self._ring = CallRingWriter(ring_of(process.job, process.node), process.inc)
        self._periods = CallPeriods(self._inferred)
        self._calls = CallProbe(self._ring, lambda: steps.step, self._periods.called)
        self._usual_marks = UsualMarks()

    def install(self) -> None:
        """Watch from now on."""
        if dist.is_available():
            self._calls.install()

    def timed(self, over: StepOver) -> None:
        """Note what a step took."""
        if not self._usual_marks.left_out(over.marks):
            self._ring.add_step(over.number, over.start_s, over.took_s)

    def stepped(self, step: int) -> None:
        """Take part in a meeting, if there is one now: an optimizer has stepped."""
        self._periods.end()
        self._ring.infers = False
        self._calls.step_over()
        self.meetings.look(step)

    def _inferred(self, took_s: float) -> None:
        """The calls of a step have come again. At such a moment the ranks cannot meet."""
        if not self._process.is_fork:
            self._ring.infers = True
            self._steps.infer(took_s)
            self._calls.step_over()
