"""How late the slowest of a step's workers are, where delays are random.

What hits another worker in every step is not in any worker's mean, and dividing work differently
does not help against it. What helps is not to wait for the slowest; this tells by how much.

Reference: order statistics; Blom 1958 for normal values. Chen et al. 2016, arXiv:1604.00981,
section 3, chooses the number of backup workers by measuring such waits off line.
"""

import functools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.policy.stats.regimes import LATE, Regime
from paceline.policy.straggler.solvers import Floats

_LEAST_SEEN = 2
"""Iterations per worker; from fewer nothing is said about single ones."""


class Delays:
    """How single iterations are spread about a worker's mean, pooled over the workers.

    Args:
        regimes: of those that were measured, at least one.
        count: workers.
        skipping: steps do not wait for the slowest, which is late for the next ones, too.
    """

    def __init__(self, regimes: Sequence[Regime], count: int, *, skipping: bool = False) -> None:
        self._count = count
        late = [regime.late for regime in regimes if regime.late]
        pooled = np.array(late).sum(axis=0) if late else np.zeros(len(LATE) + 1)
        self._reports, self._iterations = pooled[:-1], max(float(pooled[-1]), 1.0)
        self.known = bool(pooled[-1] >= _LEAST_SEEN * count)
        scatter = statistics.median(regime.scatter for regime in regimes)
        self.scatter = max(scatter, self._scatter())
        """Standard deviation of an iteration over its mean."""
        if skipping:
            self._iterations += float(self._reports @ (LATE - 1.0))
            self._reports = self._reports * LATE

    def _scatter(self) -> float:
        """As rare delays have it, or normal scatter, of which a report tells the largest value."""
        squares = float(self._reports @ (LATE - 1.0) ** 2)
        num_reports = max(float(self._reports.sum()), 1.0)
        largest = largest_normal(max(round(self._iterations / num_reports), 1))
        return math.sqrt(
            max(squares / self._iterations, squares / num_reports / max(largest, 1.0) ** 2)
        )

    def waits(self, most: int) -> "Waits":
        """What a step takes that does not wait for all.

        Args:
            most: workers that it may do without.
        """
        if self.known:
            return _empirical(self._reports, self._iterations, self._count, most)
        longest = 1.0 + self.scatter * largest_normal(self._count)
        shape = len(LATE), most + 1
        return Waits(np.full(shape, longest), np.zeros(shape))


class Waits(NamedTuple):
    """By the grace, which ends at a time of `LATE`, and by how many workers get no more."""

    ratios: Floats
    """Expected time of a step to a worker's mean."""
    dropped: Floats
    """Expected part of the workers that are later."""


@functools.lru_cache(maxsize=1024)
def largest_normal(count: int) -> float:
    """Expected value of the largest of normal values, in deviations; not below 0."""
    place = (count - 0.375) / (count + 0.25)
    return max(statistics.NormalDist().inv_cdf(place), 0.0)


def _empirical(reports: Floats, iterations: float, count: int, most: int) -> Waits:
    """From counts of reports by how late the latest of their iterations was.

    A step that waits for all until the grace ends, and from then on for all but k, takes the sum
    over levels of the step between two levels times the probability that more than none, or more
    than k, are at the upper one or above. (The leader counts the grace from when no more than k are
    missing, which is a little later than the mean where iterations scatter.) Of a report one
    iteration counts; the others, which were less late, as if they were in time.
    """
    above = np.clip(np.cumsum(reports[::-1])[::-1][1:] / iterations, 1e-300, 1.0 - 1e-12)
    spared = np.arange(most + 1)
    ways = np.array(
        [
            math.lgamma(count + 1) - math.lgamma(each + 1) - math.lgamma(count - each + 1)
            for each in spared.tolist()
        ]
    )
    exactly = np.exp(
        ways + np.outer(np.log(above), spared) + np.outer(np.log1p(-above), count - spared)
    )
    more = np.clip(1.0 - np.cumsum(exactly, axis=1), 0.0, 1.0)
    spans = np.diff(LATE)[:, np.newaxis] * more
    none = np.zeros((1, most + 1))
    within = np.concatenate([none[:, :1], np.cumsum(spans[:, :1], axis=0)])
    beyond = np.concatenate([np.cumsum(spans[::-1], axis=0)[::-1], none])
    # The expected least of their number and k is the sum over less than k of being more.
    dropped = np.concatenate([np.zeros((len(above), 1)), np.cumsum(more, axis=1)[:, :-1]], axis=1)
    dropped[0] = spared  # without a grace they are not waited for when they are in time, either
    return Waits(1.0 + within + beyond, np.concatenate([dropped, none]) / count)
