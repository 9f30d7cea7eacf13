"""When the next cut is due. Pure: told what cuts cost and when all went back to one.

Reference: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM
17(9), 1974; J. T. Daly, FGCS 22(3), 2006: the least time is lost to cuts and to work done twice
with sqrt(2 C M) between cuts that cost C each, where failures come every M. Differs: C is all that
a cut takes of a core, also beside the training; a failure is what takes the job back to a cut,
which the death of one worker need not.
"""

from math import sqrt

from paceline.wire.events.state import CutsRarerEvent
from paceline.wire.spec import CheckpointSpec

FIRST_S = 1.0
"""Seconds until the first cut: nobody knows yet what one costs."""
LEAST_S = 1.0
TOLD_BELOW = 0.9
"""A cut that is asked for in less than this part of the time between cuts comes later; one event
says so."""
PRIOR_S = 3 * 3600.0
"""A failure in so long is what is expected before one was seen."""


def between_failures_s(num_failures: int, watched_s: float) -> float:
    """The expected time between failures, after so many in ``watched_s``."""
    return (PRIOR_S + watched_s) / (1 + num_failures)


def young_daly_s(cost_s: float, failures_s: float) -> float:
    """The best time from the end of a cut to the next one; see the module."""
    return sqrt(2 * cost_s * failures_s)


class Cadence:
    """The cadence in one master's life: it does not count what it did not see of the job."""

    def __init__(self, spec: CheckpointSpec) -> None:
        self._spec = spec
        self._began_s: float | None = None
        self._last_s = 0.0
        self._cost_s: float | None = None
        self._num_costs = 0
        self._num_failures = 0
        #: A cut that the user asked for was put off, and the event that says so was written.
        self._put_off = self._told = False

    def cost(self, cost_s: float) -> None:
        """Take in the time of a core that the last cut took, where it took longest."""
        self._cost_s = cost_s
        self._num_costs += 1

    def ended(self, now_s: float) -> None:
        """A cut is on disk: the time to the next one runs from here."""
        self._last_s = now_s

    def went_back(self, now_s: float) -> None:
        """The job goes on from a cut."""
        self._num_failures += 1
        self._last_s = now_s

    def interval_s(self, now_s: float) -> float:
        """The time between cuts, as far as it decides."""
        if self._spec.every_s is not None:
            return self._spec.every_s
        if self._cost_s is None or self._began_s is None:
            return FIRST_S
        failures_s = between_failures_s(self._num_failures, now_s - self._began_s)
        return max(LEAST_S, young_daly_s(self._cost_s, failures_s))

    def is_due(self, now_s: float, num_steps: int) -> bool:
        """Whether to make a cut.

        Args:
            now_s: on the clock of all times here.
            num_steps: that the newest cut lacks.
        """
        if self._began_s is None:
            self._began_s = now_s
            self._last_s = max(self._last_s, now_s)
        since_s = now_s - self._last_s
        every_s, every_steps = self._spec.every_s, self._spec.every_steps
        by_steps = every_steps is not None and num_steps >= every_steps
        by_time = every_steps is None or every_s is not None
        due = by_steps or (by_time and since_s >= self.interval_s(now_s))
        if since_s >= self._least_s:
            return due
        # Of the first cut, memory that is written to for the first time makes a part of the cost.
        if due and self._num_costs > 1 and since_s < TOLD_BELOW * self._least_s:
            self._put_off = every_s is not None or every_steps is not None
        return False

    @property
    def _least_s(self) -> float:
        """With less between cuts they would take more than their share."""
        return (self._cost_s or 0.0) / self._spec.share

    def note(self) -> CutsRarerEvent | None:
        """Say once that cuts are rarer than the user has asked for; None: nothing to tell."""
        if self._told or not self._put_off:
            return None
        self._told = True
        return CutsRarerEvent(
            least_s=self._least_s,
            every_s=self._spec.every_s,
            every_steps=self._spec.every_steps,
            cost_s=self._cost_s or 0.0,
            share=self._spec.share,
        )
