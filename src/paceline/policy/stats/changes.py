"""On-line change points of one series: Bayesian detection, then verification by medians.

Reference: Adams & MacKay 2007, arXiv:0710.3742 (run lengths); FALCON section 3.2 of
arXiv:2410.12588 (detection, then a check of the change's size); Murphy 2007 (the conjugate
updates).
Differs: under a constant hazard P(r_t = 0) is the hazard whatever is seen, so FALCON's rule
P(r_t = 0) > 0.9 can never fire; here the mass on run lengths 1 to 3 is looked at. The check
compares medians, so that a spike is no change, and looks at the healthy baseline, too, so that
several small steps add up.
"""

import enum
import functools
import math
import statistics
from collections import deque

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SHORT_RUN = 3
_MASS = 0.9
_BEFORE = 20
"""Values that the level before a change is the median of, at most."""
_LADDER = 10
"""Newest values whose median is held against the healthy level."""
_MIN_SCALE = 0.01
"""Of the level: noise is never taken for smaller, or any jitter of a quiet series were a change."""


class RunLengths:
    """Posterior over the time since the last change point of a series of normal values.

    Args:
        mean: prior mean of a new run.
        scale: prior standard deviation of a value about its run's mean.
        hazard: probability of a change point at any value.
        longest: run lengths kept; memory and time per value are proportional to it.
    """

    def __init__(self, mean: float, scale: float, hazard: float = 1 / 250, longest: int = 250):
        self._prior = (mean, 2.0 * scale * scale)
        self._hazard = hazard
        self._longest = longest
        self.log_weights: Floats = np.zeros(1)
        """By run length; the first is the hazard's, see the module."""
        self._means: Floats = np.array([mean])
        self._betas: Floats = np.array([self._prior[1]])

    def update(self, value: float) -> None:
        """Take in the next value."""
        n = len(self._means)
        t = _tables(self._longest)
        off = value - self._means
        squares = off * off
        log_density = (
            t.log_norm[:n]
            - 0.5 * np.log(self._betas)
            - t.power[:n] * np.log1p(squares / (self._betas * t.width[:n]))
        )
        joint = self.log_weights + log_density
        joint -= joint.max()
        log_total = math.log(float(np.exp(joint).sum()))
        keep = min(n, self._longest - 1)
        mean, beta = self._prior
        self.log_weights = _shifted(
            math.log(self._hazard), joint[:keep] + (math.log1p(-self._hazard) - log_total)
        )
        self._betas = _shifted(beta, (self._betas + squares * t.spread[:n])[:keep])
        self._means = _shifted(mean, (self._means + off * t.pull[:n])[:keep])
        if n > keep:
            self.log_weights -= math.log(float(np.exp(self.log_weights).sum()))

    def mass(self, first: int, last: int) -> float:
        """Probability that the run is ``first`` to ``last`` values long."""
        return float(np.exp(self.log_weights[first : last + 1]).sum())

    def likeliest(self, first: int, last: int) -> int:
        """The likeliest of the run lengths from ``first`` to ``last``."""
        return first + int(self.log_weights[first : last + 1].argmax())


def _shifted(head: float, tail: Floats) -> Floats:
    out = np.empty(len(tail) + 1)
    out[0] = head
    out[1:] = tail
    return out


class _Tables:
    """What a Student-t density and the updates take from the run length alone."""

    def __init__(self, longest: int) -> None:
        run = np.arange(longest, dtype=np.float64)
        kappa, alpha = 1.0 + run, 1.0 + 0.5 * run
        freedom = 2.0 * alpha
        gammas = [math.lgamma(0.5 * f + 0.5) - math.lgamma(0.5 * f) for f in freedom.tolist()]
        self.width: Floats = 2.0 * (kappa + 1.0) / kappa
        """Times beta: degrees of freedom times the squared scale."""
        self.log_norm: Floats = np.array(gammas) - 0.5 * np.log(np.pi * self.width)
        self.power: Floats = alpha + 0.5
        self.spread: Floats = kappa / (2.0 * (kappa + 1.0))
        self.pull: Floats = 1.0 / (kappa + 1.0)


_tables = functools.lru_cache(_Tables)


class Shift(enum.StrEnum):
    """Which way a level went."""

    ONSET = "onset"
    RELIEF = "relief"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A verified change of level."""

    shift: Shift
    values: int
    """It began so many values ago, the present one included."""
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
        self._values: deque[float] = deque(maxlen=_BEFORE + verify + 2)
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
        before, after = values[: -self.pending][-_BEFORE:], values[-self.pending :]
        level, new_level = statistics.median(before), statistics.median(after)
        if new_level >= (1.0 + self._threshold) * level:
            return self._change(Shift.ONSET, level, after)
        if new_level <= (1.0 - self._threshold) * level:
            return self._change(Shift.RELIEF, level, after)
        if self.pending >= self._verify + 2:
            self._candidate = None
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
