"""Steps of different work made comparable: the time of each at the job's mean amount."""

from collections import deque
from typing import NamedTuple

import numpy as np

from paceline.policy.stats import affine

WARM_UP = 30
"""Steps that the first fit is of."""
_FITS = (2 * WARM_UP, 4 * WARM_UP, 8 * WARM_UP)
"""Steps after which the cost is fitted again."""
_OUTLIER = 4.0
"""Times the usual residual from which on a step is left out of a fit."""


class _Cost(NamedTuple):
    delay_s: float
    slope_s: float

    def of(self, amount: float) -> float:
        return self.delay_s + self.slope_s * amount


class WorkCost:
    """The time of a job's step as an affine function of its samples or tokens."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque(maxlen=_FITS[-1])
        """Amount and time of the newest."""
        self._count = 0
        self._cost: _Cost | None = None
        """None: not fitted yet."""
        self._usual_s = 0.0
        """Seconds that the mean amount costs, by the first fit."""

    @property
    def waiting_s(self) -> list[float]:
        """Times of the steps before the first fit."""
        return [time_s for _, time_s in self._steps] if self._cost is None else []

    def share(self, amount: float) -> float:
        """Return what the amount costs, over what the mean amount does."""
        return 1.0 if self._cost is None else self._cost.of(amount) / self._usual_s

    def add(self, amount: float, took_s: float, *, settled: bool) -> list[float]:
        """Return the times of steps that have become comparable: mostly this one's.

        Args:
            amount: samples or tokens of the step.
            took_s: its time.
            settled: the job is healthy as far as is known, so this may be learnt from.
        """
        if settled or self._cost is None:
            self._steps.append((amount, took_s))
            self._count += 1
        if self._cost is None:
            if self._count < WARM_UP:
                return []
            self._cost = _fit(list(self._steps))
            self._usual_s = self._cost.of(float(np.mean([one for one, _ in self._steps])))
            return [time_s / self.share(one) for one, time_s in self._steps]
        if settled and self._count in _FITS:
            self._cost = _fit(list(self._steps))
        return [took_s / self.share(amount)]


def _fit(steps: list[tuple[float, float]]) -> _Cost:
    """Fit twice; the second fit leaves out what the first one did not explain."""
    points = np.array(steps)
    kept = points[points[:, 1] <= _OUTLIER * np.median(points[:, 1])]
    cost = _fit_all(kept)
    off = np.abs(kept[:, 1] - cost.delay_s - cost.slope_s * kept[:, 0])
    return _fit_all(kept[off <= _OUTLIER * np.median(off) + 1e-9])


def _fit_all(points: affine.Floats) -> _Cost:
    ones = np.ones(len(points))
    owners = np.zeros(len(points), dtype=np.int64)
    # A prior slope of 0: equal amounts tell nothing of the slope, and then none is needed.
    delays, slopes = affine.fit(owners, points[:, 0], points[:, 1], ones, ones, np.zeros(1))
    return _Cost(float(delays[0]), float(slopes[0]))
