"""On-line change points of one series: Bayesian detection, then verification by medians.

Reference: FALCON section 3.2 of arXiv:2410.12588 (detection, then a check of the change's size).
Differs: under a constant hazard P(r_t = 0) is the hazard whatever is seen, so FALCON's rule
P(r_t = 0) > 0.9 can never fire; here the mass on run lengths 1 to 3 is looked at. The check
compares medians, so that a spike is no change, and looks at the healthy baseline, too, so that
several small steps add up.
"""

import enum
import math
import statistics
from collections import deque

import msgspec

from paceline.policy.stats.run_lengths import RunLengths

_SHORT_RUN = 3
_MASS = 0.9
_BEFORE = 20
"""Values that the level before a change is the median of, at most."""
_LADDER = 10
"""Newest values whose median is held against the healthy level."""
_MIN_SCALE = 0.01
"""Least noise, as a part of the level. Without it, any jitter of a quiet series would be a
change."""


class Shift(enum.StrEnum):
    """Direction in which a level changed."""

    ONSET = "onset"
    RELIEF = "relief"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A verified change of level."""

    shift: Shift
    values: int
    """Number of values since the change began, the present one included."""
    before: float
    """Level before: of the values, or the healthy one where small steps added up to it."""
    after: float


class ChangePoints:
    """Finds verified changes of a positive series, one value at a time.

    Args:
        threshold: least change of the level, relative.
        verify: values that a change is judged on; it is jitter when 2 more have not shown it.
        warm_up: values that the prior is taken from; changes among them are found at their end.
        stable: values that make a level a healthy one, which small steps are measured against.
        longest: run lengths kept.

    Time per value: two dozen operations on arrays of ``longest`` numbers.
    """

    kept = _BEFORE
    """Values before a change that are kept."""

    def __init__(
        self,
        threshold: float = 0.10,
        verify: int = 3,
        warm_up: int = 30,
        stable: int = 20,
        longest: int = 250,
    ) -> None:
        self._longest = longest
        self._threshold = threshold
        self._verify = verify
        self._stable = stable
        self._warm_up = warm_up
        self._waiting: list[float] = []
        """Values of the warm-up."""
        self._runs: RunLengths | None = None
        """None: still warming up."""
        self.noise = _MIN_SCALE
        """Standard deviation of the values over their level."""
        self._values: deque[float] = deque(maxlen=self.kept + verify + 2)
        """The newest of the segment."""
        self._segment = 0
        """Values since the last change."""
        self._candidate: int | None = None
        """The segment's value that a change may have begun with."""
        self._armed = True
        """A candidate that was jitter is not raised again."""
        self._slow = False
        self._healthy: float | None = None
        """Lowest stable level so far."""

    @property
    def ready(self) -> bool:
        """Whether it has warmed up."""
        return self._runs is not None

    @property
    def slow(self) -> bool:
        """Whether the level is above the healthy one."""
        return self._slow

    @property
    def pending(self) -> int:
        """Values since the change that is being verified began; 0: none is."""
        return 0 if self._candidate is None else self._segment - self._candidate

    def rescale(self, level: float) -> None:
        """Begin again about another level, for a known reason: this is no change."""
        self._healthy = None
        self._slow = False
        if self._runs is not None:
            self._learn_noise()
            self._begin(level, [])
        elif self._waiting:
            scale = level / statistics.median(self._waiting)
            self._waiting = [scale * value for value in self._waiting]

    def update(self, value: float) -> Change | None:
        """Take in the next value; a change that it confirms."""
        if self._runs is not None:
            return self._observe(value)
        self._waiting.append(value)
        if len(self._waiting) < self._warm_up:
            return None
        waited, self._waiting = self._waiting, []
        # A change among these must not be taken for noise: half of them may have it.
        self.noise = _noise(waited, 0.5)
        self._begin(statistics.median(waited), [])
        last: Change | None = None
        for values_left, each in zip(range(len(waited) - 1, -1, -1), waited, strict=True):
            change = self._observe(each)
            if change is not None:
                last = msgspec.structs.replace(change, values=change.values + values_left)
        return last

    def _begin(self, level: float, values: list[float]) -> None:
        """A segment, with the values that it has."""
        self._runs = RunLengths(level, self.noise * level, longest=self._longest)
        for value in values:
            self._runs.update(value)
        self._values.clear()
        self._values.extend(values)
        self._segment = len(values)
        self._candidate = None
        self._armed = True

    def _observe(self, value: float) -> Change | None:
        assert self._runs is not None
        self._runs.update(value)
        self._values.append(value)
        self._segment += 1
        # Of a segment of 3 values run length 3 says that nothing has changed.
        short = self._segment > _SHORT_RUN and self._runs.mass(1, _SHORT_RUN) > _MASS
        if self._candidate is None and short and self._armed:
            self._candidate = self._segment - self._runs.likeliest(1, _SHORT_RUN)
        self._armed = not short
        return self._against_healthy() if self._candidate is None else self._judge()

    def _judge(self) -> Change | None:
        """Whether the candidate is a change, jitter, or cannot be told yet."""
        if self.pending < self._verify:
            return None
        values = list(self._values)
        before, after = values[: -self.pending][-self.kept :], values[-self.pending :]
        level = statistics.median(before)
        shift = self._verified(level, before, after)
        if shift is not None:
            return self._change(shift, level, after)
        if self.pending >= self._verify + 2:
            self._candidate = None
        return None

    def _verified(self, level: float, before: list[float], after: list[float]) -> Shift | None:
        """Return the change of level that the values after a candidate show; None: none."""
        new_level = statistics.median(after)
        if new_level >= (1.0 + self._threshold) * level:
            return Shift.ONSET
        if new_level <= (1.0 - self._threshold) * level:
            return Shift.RELIEF
        return None

    def _against_healthy(self) -> Change | None:
        """Small steps that add up; and the healthy level kept."""
        values = list(self._values)
        recent = values[-_LADDER:]
        bound = math.inf if self._healthy is None else (1.0 + self._threshold) * self._healthy
        if not self._slow and len(recent) == _LADDER and statistics.median(recent) >= bound:
            assert self._healthy is not None
            return self._change(Shift.ONSET, self._healthy, recent)
        if self._segment >= self._stable:
            level = statistics.median(values[-_BEFORE:])
            self._healthy = level if self._healthy is None else min(self._healthy, level)
        return None

    def _change(self, shift: Shift, level: float, after: list[float]) -> Change:
        new_level = statistics.median(after)
        healthy = math.inf if self._healthy is None else self._healthy
        self._slow = shift is Shift.ONSET or new_level >= (1.0 + self._threshold) * healthy
        self._learn_noise()
        self._begin(new_level, after)
        return Change(shift=shift, values=len(after), before=level, after=new_level)

    def _learn_noise(self) -> None:
        if len(self._values) >= _LADDER:
            # Half of the values may be a spike off the level, as means over some iterations often
            # are, and the median of their deviations would not see it.
            self.noise = _noise(list(self._values), 0.75)


def _noise(values: list[float], quantile: float) -> float:
    """Standard deviation over level, as normal values would have it with such deviations."""
    level = statistics.median(values)
    deviations = sorted(abs(value - level) for value in values)
    normal = statistics.NormalDist().inv_cdf(0.5 + 0.5 * quantile)
    return max(deviations[int(quantile * len(deviations))] / normal / level, _MIN_SCALE)
