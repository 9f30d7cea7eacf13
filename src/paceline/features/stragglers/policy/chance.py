"""Chance: the scatter of single iterations and of longer stretches about what is usual.

Reference: order statistics; Blom 1958 for normal values.
"""

import bisect
import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from paceline.policy.stats.regimes import LATE, Regime, Stretch

T = TypeVar("T")

STRETCH_S = 15.0
"""Length of a stretch, in seconds: how far its mean holds later shows in the mean of the next."""
_ENOUGH = 128
"""Nodes that tell how those of a job scatter."""
_THIRD_QUARTILE = 1.15
"""Third quartile of a normal value's size, in standard deviations."""


def scatter(regimes: Sequence[Regime]) -> float:
    """Standard deviation of an iteration over its node's mean, pooled; 0: not known.

    As the differences between iterations have it, or rare delays; of a report the largest value is
    known, which scatter alone makes large, too.

    Args:
        regimes: of those that were measured, at least one.
    """
    late = [regime.late for regime in regimes if regime.late]
    pooled = np.array(late).sum(axis=0) if late else np.zeros(len(LATE) + 1)
    reports, iterations = pooled[:-1], max(float(pooled[-1]), 1.0)
    squares = float(reports @ (LATE - 1.0) ** 2)
    num_reports = max(float(reports.sum()), 1.0)
    largest = largest_normal(max(round(iterations / num_reports), 1))
    return max(
        statistics.median(regime.scatter for regime in regimes),
        math.sqrt(max(squares / iterations, squares / num_reports / max(largest, 1.0) ** 2)),
    )


def drift(regimes: Sequence[Regime], *, across: bool = True) -> float | None:
    """Standard deviation of a node's mean over a while from that of the while before, relative.

    As three quarters of all pairs have it, so that one node that has changed does not count.
    None: not known yet.

    Args:
        regimes: of the nodes.
        across: also from the time before a node's last change to the time since; among few nodes
            such pairs are many.
    """
    errors: list[float] = []
    for regime in some_of(regimes):
        for trail in [regime.trail] if across else _parts(regime):
            means = _means(trail)
            errors += [abs(math.log(after / before)) for before, after in itertools.pairwise(means)]
    return sorted(errors)[3 * len(errors) // 4] / _THIRD_QUARTILE if len(errors) > 1 else None


def some_of(nodes: Sequence[T]) -> Sequence[T]:
    """Evenly some of many, from which as much is learnt as from all: all up to 255."""
    return nodes[:: max(len(nodes) // _ENOUGH, 1)]


def _parts(regime: Regime) -> list[list[Stretch]]:
    """The stretches before the regime began, and those since."""
    first = bisect.bisect_right(regime.trail, regime.since_s, key=lambda each: each.t_s)
    return [list(regime.trail[:first]), list(regime.trail[first:])]


def _means(trail: Sequence[Stretch]) -> list[float]:
    """Time per sample in stretches of `STRETCH_S`, one after the other."""
    means: list[float] = []
    total_s = span_s = samples = 0.0
    for each in trail:
        total_s += each.iterations * each.compute_s
        samples += each.iterations * each.samples
        span_s += each.span_s
        if span_s >= STRETCH_S and total_s > 0.0 and samples > 0.0:
            means.append(total_s / samples)
            total_s = span_s = samples = 0.0
    return means


@functools.lru_cache(maxsize=1024)
def largest_normal(count: int) -> float:
    """Expected value of the largest of normal values, in deviations; not below 0."""
    place = (count - 0.375) / (count + 0.25)
    return max(statistics.NormalDist().inv_cdf(place), 0.0)
