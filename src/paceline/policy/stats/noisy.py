"""Change points of series that may be noisy: the more noise, the more values a change needs.

Two levels differ when the logarithm of their ratio exceeds

    max(ln(1 + threshold) + e, sigmas * e),    e = c * sqrt(s0**2 / m + s1**2 / n)

with m values before and n after, of noise s0 and s1 (standard deviations of the logarithm), and c
for what the level is: 1.25 for a median (n < 16), 1.1 for the mean of the middle half. The first
term keeps changes that are just below the threshold from exceeding it by luck. In a noisy series a
change by a factor of d is found after about (sigmas * c * s / ln d)**2 values, or never if m are
too few to tell. Noise that neighbours share counts for more, since means do not cancel it.

Reference: none. FALCON verifies with a fixed threshold, so variable sequence lengths are changes.
"""

import math
import statistics
from itertools import accumulate, pairwise

from paceline.policy.stats.changes import Change, ChangePoints, Shift

_WINDOWS = (8, 11, 16, 32, 64, 128, 256)
"""Newest values whose level is held against the level before, and against the healthy one."""
_MANY = 16
"""Values from which on a level is the mean of their middle half, and tenths tell their noise."""
_SURE = 1.0
"""Standard errors by which a change must exceed the threshold."""
_BACK = 4.0
"""Standard errors by which a level must be nearer to the healthy one than to the slow one."""
_FAR = 16
"""Values so far apart are assumed not to be alike."""
_SHARED, _MOST_ALIKE = 0.5, 4.0
"""Part of the variance that neighbours share from which on it counts; bound of what it does."""
_QUIET = 0.05
"""Noise below which a healthy level is that of 64 values instead of 256."""
_FEW = 8
"""Values before; fewer tell nothing of the noise."""
_LEAST_BEFORE, _LEAST_AFTER = 30, 3
_MEDIAN, _MIDDLE = 1.25, 1.1
"""Standard error of a level, times the root of its values, in units of their noise."""
_QUARTILES, _TENTHS = 1.349, 2.563
"""Distance of the outer quartiles and tenths of a normal distribution."""
_MIN_NOISE = 0.01


class NoisyChangePoints(ChangePoints):
    """Finds verified changes of a positive series whose noise may be large or may vary.

    Args:
        threshold: least change of the level, relative.
        verify: values that a change is judged on if the noise is small.
        sigmas: standard errors that a change must exceed.
    """

    kept = 512

    def __init__(self, threshold: float = 0.10, verify: int = 5, sigmas: float = 5.0) -> None:
        super().__init__(threshold, verify)
        self._sigmas = sigmas
        self._least = math.log1p(threshold)
        self._healthy_values = 0
        """Number of values that the healthy level was taken from."""
        self._slow_level = math.inf
        """Level after the newest onset; inf: there was none."""

    def _verified(self, level: float, before: list[float], after: list[float]) -> Shift | None:
        if len(before) < _FEW:
            return None
        return self._compare(level, summarize(after)[0], before[-_before(len(after)) :], after)

    def _compare(
        self, level: float, new_level: float, before: list[float], after: list[float]
    ) -> Shift | None:
        ratio = math.log(new_level / level)
        noise = summarize(before)[1]
        # What neighbours share is dear to compute, and mostly not needed.
        if not self._exceeds(ratio, _error(noise, len(before), after)):
            return None
        if not self._exceeds(ratio, _error(noise * _alike(before), len(before), after)):
            return None
        return Shift.ONSET if ratio > 0 else Shift.RELIEF

    def _exceeds(self, ratio: float, error: float) -> bool:
        return abs(ratio) >= max(self._least + _SURE * error, self._sigmas * error)

    def _judge(self) -> Change | None:
        return super()._judge() or self._against_healthy()

    def _against_healthy(self) -> Change | None:
        """Changes that are small for the noise, or came in steps; and the healthy level kept."""
        values = list(self._values)
        for n in (self._verify, *_WINDOWS):
            if len(values) < n + _LEAST_BEFORE:
                break
            if self._segment % max(1, n // 8):
                continue
            change = self._window(values[-n - _before(n) : -n], values[-n:])
            if change is None and self._is_back(values[-n:]):
                level = summarize(values[:-n])[0]
                change = self._begun(
                    Shift.RELIEF, self._slow_level, summarize(values[-n:])[0], level
                )
            if change is not None:
                return change
        self._keep_healthy()
        return None

    def _window(self, before: list[float], after: list[float]) -> Change | None:
        """Judge the newest values as if a change had begun with them."""
        level, new_level = summarize(before)[0], summarize(after)[0]
        if abs(math.log(new_level / level)) >= self._least:
            shift = self._compare(level, new_level, before, after)
            if shift is not None:
                return self._begun(shift, level, new_level, level)
        if self._healthy is None or len(after) < _MANY:
            return None
        return self._of_steps(self._healthy, level, new_level, before, after)

    def _is_back(self, after: list[float]) -> bool:
        """Whether the newest values are nearer to the healthy level than to the slow one.

        A slowness that was short has too few values to be held against what follows.
        """
        if not self._slow or self._healthy is None or len(after) < _MANY:
            return False
        level, noise = summarize(after)
        error = _MIDDLE * noise * _alike(after) / math.sqrt(len(after))
        nearer = math.log(self._healthy * self._slow_level) / 2 - math.log(level)
        return math.log(level / self._healthy) < self._least and nearer >= _BACK * error

    def _of_steps(
        self,
        healthy: float,
        level: float,
        new_level: float,
        before: list[float],
        after: list[float],
    ) -> Change | None:
        """Judge a level that may have come in small steps, if it is known well enough for that."""
        ratio = math.log(new_level / healthy)
        if (ratio > 0.5 * self._least) if self._slow else (ratio < self._least):
            return None
        noise = summarize(before)[1] * _alike(before)
        error = _error(noise, self._healthy_values, after)
        if self._sigmas * error > self._least:
            return None
        if self._slow:
            return self._change(Shift.RELIEF, level, after)
        if not self._exceeds(ratio, error):
            return None
        last_step = math.log(new_level / level) > 0.25 * self._least
        return self._begun(Shift.ONSET, healthy, new_level, level if last_step else healthy)

    def _begun(self, shift: Shift, level: float, new_level: float, near: float) -> Change:
        """Begin a segment where the values cross the middle between the near level and the new."""
        values = list(self._values)
        half = 0.5 * math.log(new_level / near) or 1.0  # equal: where it begins cannot be told
        middle = math.log(near) + half
        clipped = [
            max(-1.0, min(1.0, (math.log(value) - middle) / half)) for value in reversed(values)
        ]
        sums = list(accumulate(clipped))
        longest = 1 + max(range(len(sums)), key=sums.__getitem__)
        after = max(_LEAST_AFTER, min(longest, len(values) - 1))
        return self._change(shift, level, values[-after:])

    def _change(self, shift: Shift, level: float, after: list[float]) -> Change:
        if shift is Shift.ONSET and self._healthy is None:
            # Else the first long block of the slow level would pass for the healthy one.
            self._healthy, self._healthy_values = level, _LEAST_BEFORE
        if shift is Shift.ONSET:
            self._slow_level = statistics.median(after)
        return super()._change(shift, level, after)

    def _keep_healthy(self) -> None:
        """The lowest level of a block of values; blocks do not overlap, so few are low by luck."""
        if self._segment % 64:
            return
        values = list(self._values)[-64:]
        level, noise = summarize(values)
        if noise > _QUIET:
            if self._segment % 256:
                return
            values = list(self._values)[-256:]
            level = summarize(values)[0]
        if self._healthy is None or level < self._healthy:
            self._healthy, self._healthy_values = level, len(values)


def _before(after: int) -> int:
    """How many values the level before is of: near ones, but enough to add little error."""
    return min(256, max(128, 4 * after))


def _error(noise: float, before: int, after: list[float]) -> float:
    """Compute the standard error of the logarithm of two levels' ratio.

    The noise after counts for at least as much as before: few values show too little of it.
    """
    noise_after = max(noise, summarize(after)[1])
    variance = noise**2 / before + noise_after**2 / len(after)
    return (_MEDIAN if len(after) < _MANY else _MIDDLE) * math.sqrt(variance)


def summarize(values: list[float]) -> tuple[float, float]:
    """Return the level of some values, and their noise: standard deviation of the logarithm."""
    ordered = sorted(values)
    count = len(ordered)
    quarter = count // 4
    upper = count - 1 - quarter
    noise = max(_MIN_NOISE, math.log(ordered[upper] / ordered[quarter]) / _QUARTILES)
    if count < _MANY:
        return statistics.median(ordered), noise
    tenth = count // 10
    wide = math.log(ordered[count - 1 - tenth] / ordered[tenth]) / _TENTHS
    middle = ordered[quarter : count - quarter]
    return sum(middle) / len(middle), max(noise, wide)


def _alike(values: list[float]) -> float:
    """Times by which a mean errs more because neighbours are alike.

    Distances of neighbours are held against those of values far apart. Their medians hardly see
    one change of level among the values.
    """
    logs = [math.log(value) for value in values]
    lag = min(_FAR, len(logs) // 2)
    near = max(_MIN_NOISE, statistics.median(abs(b - a) for a, b in pairwise(logs)))
    far = statistics.median(abs(b - a) for a, b in zip(logs, logs[lag:], strict=False))
    shared = 1.0 - (near / max(far, near)) ** 2
    return 1.0 if shared < _SHARED else min(_MOST_ALIKE, math.sqrt((1.0 + shared) / (1.0 - shared)))
