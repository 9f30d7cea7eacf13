"""How fast a job is, and how sure that is: windows of its rate, with their noise.

Neighbouring windows are alike (a busy machine is busy for a while), so their scatter says less
about the error of the mean than it seems: the error grows with their correlation.
"""

import itertools
import math
from collections.abc import Sequence

import msgspec

from paceline.features.sizes.policy.observation import RateWindow

_TREND = 3.0
"""Standard errors by which two halves of the windows may differ in a rate that has settled."""
_SAME = 0.03
"""Halves that differ by less, relative, are the same whatever their noise."""


class JobRate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean rate over windows."""

    per_s: float
    """Samples per second."""
    error: float
    """Standard error of the mean, samples per second."""
    windows: int
    settled: bool = True
    """Whether its halves are alike."""

    @property
    def relative_error(self) -> float:
        """The error for each sample per second; infinite where nothing is done."""
        return self.error / self.per_s if self.per_s > 0 else math.inf


def rate_since(
    windows: Sequence[RateWindow], since_s: float | None, least: int = 3
) -> JobRate | None:
    """The rate over the undisturbed windows that began no earlier.

    Args:
        windows: oldest first.
        since_s: when the job had settled; None: from the beginning.
        least: windows that a rate needs, 2 or more; None is returned for fewer.
    """
    used = [
        each
        for each in windows
        if (since_s is None or each.begin_s >= since_s) and not each.disturbed and each.seconds > 0
    ]
    if len(used) < max(least, 2):
        return None
    rates = [each.samples / each.seconds for each in used]
    per_s = sum(each.samples for each in used) / sum(each.seconds for each in used)
    half = len(rates) // 2
    early, early_error = _mean(rates[:half])
    late, late_error = _mean(rates[half:])
    apart = abs(late - early)
    settled = apart <= max(_SAME * per_s, _TREND * math.hypot(early_error, late_error))
    return JobRate(per_s=per_s, error=_mean(rates)[1], windows=len(rates), settled=settled)


def _mean(rates: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error; of a single value the error is not known: infinite."""
    count = len(rates)
    mean = sum(rates) / count
    if count < 2:
        return mean, math.inf
    off = [each - mean for each in rates]
    squares = sum(each * each for each in off)
    joint = sum(one * other for one, other in itertools.pairwise(off))
    alike = min(max(joint / squares, 0.0), 0.9) if squares else 0.0
    # Of n values that are correlated by r from each to the next, n (1 - r) / (1 + r) count.
    effective = max(count * (1.0 - alike) / (1.0 + alike), 1.0)
    return mean, math.sqrt(squares / (count - 1) / effective)
