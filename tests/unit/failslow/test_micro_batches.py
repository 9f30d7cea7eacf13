"""S2: the best division in whole micro-batches, and gradients that stay exact."""

import itertools

import numpy as np
import pytest

from paceline.policy.failslow.micro_batches import fluid_slowdown, plan_micro_batches
from paceline.policy.straggler.solvers import Infeasible


def brute_force_s(times_s: list[float], total: int, unit: int) -> float:
    counts = range(unit, total + 1, unit)
    return min(
        max(count * time_s for count, time_s in zip(each, times_s, strict=True))
        for each in itertools.product(counts, repeat=len(times_s))
        if sum(each) == total
    )


@pytest.mark.parametrize("seed", range(100))
def test_no_division_is_faster(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    replicas, unit = int(numbers.integers(2, 5)), int(numbers.integers(1, 4))
    total = unit * int(numbers.integers(replicas, 12))
    times_s = numbers.uniform(1.0, 4.0, replicas).tolist()
    plan = plan_micro_batches(times_s, total, unit)
    assert sum(plan.counts) == total
    assert min(plan.counts) >= unit
    assert not any(count % unit for count in plan.counts)
    assert plan.step_s == pytest.approx(brute_force_s(times_s, total, unit))


def test_the_published_case() -> None:
    plan = plan_micro_batches([1052, 1471, 1052, 1052], 32)
    assert sorted(plan.counts) == [6, 8, 9, 9]
    assert plan.counts[1] == 6


def test_where_the_least_variance_is_a_fifth_slower() -> None:
    plan = plan_micro_batches([1.1, 3.58, 1.0], 12)
    assert plan.counts == (5, 1, 6)
    assert plan.step_s == pytest.approx(6.0)


@pytest.mark.parametrize(("total", "unit"), [(3, 1), (8, 3), (8, 4)])
def test_what_cannot_be_divided_is_refused(total: int, unit: int) -> None:
    with pytest.raises(Infeasible):
        plan_micro_batches([1.0] * 4, total, unit)


@pytest.mark.parametrize("counts_of", [[1.0, 1.0], [1.0, 2.5, 1.0], [1.0, 1.9, 1.9, 1.9, 1.0]])
@pytest.mark.parametrize("total", [10, 24, 37])
def test_weighted_gradients_are_those_of_one_process(counts_of: list[float], total: int) -> None:
    numbers = np.random.default_rng(total)
    of_micro_batches = numbers.normal(size=(total, 100))
    plan = plan_micro_batches(counts_of, total)
    edges = np.cumsum((0, *plan.counts))
    means = [of_micro_batches[a:b].mean(axis=0) for a, b in itertools.pairwise(edges)]
    weighted = [weight * mean for weight, mean in zip(plan.weights, means, strict=True)]
    assert np.abs(np.mean(weighted, axis=0) - of_micro_batches.mean(axis=0)).max() < 1e-10
    if len(set(plan.counts)) > 1:
        assert np.abs(np.mean(means, axis=0) - of_micro_batches.mean(axis=0)).max() > 1e-3


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
    ours = plan_micro_batches(times_s, each * replicas).step_s / each
    assert bound - 1e-9 <= ours <= bound + granularity
    assert bound - 0.06 <= published <= bound + granularity  # published with one digit
    assert ours <= published + granularity
