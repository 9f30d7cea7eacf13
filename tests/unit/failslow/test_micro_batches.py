"""S2 in whole micro-batches: the division that the solver of running jobs makes is the best one."""

import itertools

import numpy as np
import pytest

from paceline.features.stragglers.policy.solvers import level


def divide(times_s: list[float], total: int) -> tuple[list[int], float]:
    """Micro-batches of each replica, and the time of the slowest."""
    counts = level(np.zeros(len(times_s)), np.asarray(times_s), total)
    return counts.tolist(), float(max(counts * times_s))


def brute_force_s(times_s: list[float], total: int) -> float:
    return min(
        max(count * time_s for count, time_s in zip(each, times_s, strict=True))
        for each in itertools.product(range(1, total + 1), repeat=len(times_s))
        if sum(each) == total
    )


@pytest.mark.parametrize("seed", range(100))
def test_no_division_is_faster(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    replicas = int(numbers.integers(2, 5))
    total = int(numbers.integers(replicas, 12))
    times_s = numbers.uniform(1.0, 4.0, replicas).tolist()
    counts, step_s = divide(times_s, total)
    assert sum(counts) == total
    assert min(counts) >= 1
    assert step_s == pytest.approx(brute_force_s(times_s, total))


def test_the_published_case() -> None:
    counts, _ = divide([1052, 1471, 1052, 1052], 32)
    assert sorted(counts) == [6, 8, 9, 9]
    assert counts[1] == 6


def test_where_the_least_variance_is_a_fifth_slower() -> None:
    counts, step_s = divide([1.1, 3.58, 1.0], 12)
    assert counts == [5, 1, 6]
    assert step_s == pytest.approx(6.0)


def fluid_slowdown(replicas: int, slow: int, factor: float) -> float:
    """A step's time over the healthy one if work could be divided at will."""
    return replicas / (replicas - slow + slow / factor)


ROWS = [
    *[(2, 1, s, best) for s, best in ((1.3, 1.2), (1.5, 1.2), (1.7, 1.3))],
    *[(4, 1, s, best) for s, best in ((1.3, 1.1), (1.4, 1.1), (1.7, 1.1))],
    *[(8, 1, s, best) for s, best in ((1.3, 1.1), (1.5, 1.2), (1.7, 1.2))],
    *[(4, k, 1.9, best) for k, best in ((1, 1.2), (2, 1.3), (3, 1.5), (4, 1.9))],
]
"""Replicas, slow ones, their factor, the published time with S2 over the healthy one."""


@pytest.mark.parametrize(("replicas", "slow", "factor", "published"), ROWS)
def test_published_rows_within_granularity(
    replicas: int, slow: int, factor: float, published: float
) -> None:
    each = 8
    granularity = factor / each
    bound = fluid_slowdown(replicas, slow, factor)
    times_s = [factor] * slow + [1.0] * (replicas - slow)
    ours = divide(times_s, each * replicas)[1] / each
    assert bound - 1e-9 <= ours <= bound + granularity
    assert bound - 0.06 <= published <= bound + granularity  # published with one digit
    assert ours <= published + granularity
