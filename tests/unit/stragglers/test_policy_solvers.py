"""The solvers are exact: every answer is held against all the answers there are."""

import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.features.stragglers.policy.solvers import (
    HardwareClass,
    Infeasible,
    NoExactSum,
    dedicated,
    level,
)
from paceline.policy.actions import Share

# Few distinct values, so that ties are common; and odd ones, so that rounding is.
seconds = st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0, 2.0, 1 / 3])
slopes = st.sampled_from([0.1, 0.2, 0.3, 0.7, 1.0, 1 / 3])


@st.composite
def divisions(draw: st.DrawFn):  # type: ignore[no-untyped-def]
    count = draw(st.integers(1, 4))
    many = lambda values: np.array(draw(st.lists(values, min_size=count, max_size=count)))  # noqa: E731
    delays_s, slopes_s = many(seconds), many(slopes)
    lower = many(st.integers(0, 2))
    upper = lower + many(st.integers(0, 6))
    total = draw(st.integers(int(lower.sum()), int(upper.sum())))
    return delays_s, slopes_s, total, lower, upper


@settings(max_examples=300, deadline=None)
@given(divisions())
def test_no_division_has_a_faster_slowest_worker(case) -> None:  # type: ignore[no-untyped-def]
    delays_s, slopes_s, total, lower, upper = case
    shares = level(delays_s, slopes_s, total, lower, upper)
    assert shares.sum() == total
    assert ((lower <= shares) & (shares <= upper)).all()
    all_shares = itertools.product(
        *(range(a, b + 1) for a, b in zip(lower.tolist(), upper.tolist(), strict=True))
    )
    best_s = min(
        (delays_s + slopes_s * np.array(each)).max() for each in all_shares if sum(each) == total
    )
    assert (delays_s + slopes_s * shares).max() == best_s


def greedy(delays_s: np.ndarray, slopes_s: np.ndarray, total: int) -> list[int]:
    """FALCON section 4.3, one sample at a time from one each."""
    shares = [1] * len(slopes_s)
    turns = [(d + 2 * s, i) for i, (d, s) in enumerate(zip(delays_s, slopes_s, strict=True))]
    heapq.heapify(turns)
    for _ in range(total - len(shares)):
        _, i = heapq.heappop(turns)
        shares[i] += 1
        heapq.heappush(turns, (delays_s[i] + slopes_s[i] * (shares[i] + 1), i))
    return shares


@pytest.mark.parametrize("seed", range(5))
def test_a_large_division_is_as_good_as_the_greedy_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, total = 300, 40_000
    slopes_s = rng.uniform(0.5, 2.0, count) / 1000
    delays_s = np.where(rng.random(count) < 0.3, rng.exponential(0.2, count), 0.0)
    found = delays_s + slopes_s * level(delays_s, slopes_s, total)
    expected = delays_s + slopes_s * np.array(greedy(delays_s, slopes_s, total))
    assert np.sort(found) == pytest.approx(np.sort(expected))


def test_the_largest_remainder_is_not_always_optimal_and_level_is() -> None:
    speeds = np.array([2.0, 3.0, 5.0])
    # Quotas 1.0, 1.5 and 2.5: the largest remainder gives the fifth sample to the second worker.
    assert level(np.zeros(3), 1 / speeds, 5).tolist() == [1, 1, 3]
    assert max(1 / 2, 1 / 3, 3 / 5) < max(1 / 2, 2 / 3, 2 / 5)


def test_falcons_known_answer() -> None:
    times_ms = np.array([1052.0, 1471.0, 1052.0, 1052.0])
    assert sorted(level(np.zeros(4), times_ms, 32).tolist()) == [6, 8, 9, 9]


def test_a_worker_beyond_help_does_not_make_the_others_uneven() -> None:
    assert level(np.array([9.0, 0.0, 0.0, 0.0]), np.ones(4), 13).tolist() == [1, 4, 4, 4]


def test_a_worker_is_left_out_only_where_that_is_asked_for() -> None:
    delays_s, slopes_s = np.array([5.0, 0.0, 0.0]), np.full(3, 0.1)
    assert level(delays_s, slopes_s, 20).tolist() == [1, 10, 9]
    assert level(delays_s, slopes_s, 20, lower=np.array([0, 1, 1])).tolist() == [0, 10, 10]


@pytest.mark.parametrize(("total", "upper"), [(2, None), (40, 10)])
def test_limits_that_leave_no_division_are_reported(total: int, upper: int | None) -> None:
    with pytest.raises(Infeasible, match=f"{total} samples for 3 workers"):
        level(np.zeros(3), np.ones(3), total, upper=upper)


@pytest.mark.parametrize(
    ("delay_s", "slope_s"), [(-1.0, 1.0), (np.nan, 1.0), (0.0, 0.0), (0.0, np.inf)]
)
def test_costs_out_of_range_are_refused(delay_s: float, slope_s: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        level(np.array([delay_s]), np.array([slope_s]), 5)


# --------------------------------------------------------------------------------------- DD


def curve(devices: int, speed: float, smallest: int = 2, largest: int = 6) -> HardwareClass:
    """max(t0, B / v), as of a device that small batches do not fill."""
    sizes = tuple(range(1, largest + 1))
    return HardwareClass(
        devices=devices,
        sizes=sizes,
        times_s=tuple(max(smallest, size) / speed for size in sizes),
        smallest=smallest,
        largest=largest,
    )


classes = st.builds(
    curve,
    st.integers(1, 3),
    st.sampled_from([1.0, 2.0, 3.0, 1.7]),
    st.integers(1, 3),
    st.integers(3, 6),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(classes, min_size=1, max_size=3), st.integers(1, 90), st.integers(1, 3))
def test_dd_is_the_best_of_all_plans(kinds: list[HardwareClass], total: int, most: int) -> None:
    per_class = [
        [Share(b, c) for c in range(1, most + 1) for b in range(kind.smallest, kind.largest + 1)]
        for kind in kinds
    ]

    def samples(plan: tuple[Share, ...]) -> int:
        return sum(
            kind.devices * share.accumulation * share.batch_size
            for kind, share in zip(kinds, plan, strict=True)
        )

    def step_s(plan: tuple[Share, ...] | list[Share]) -> float:
        return max(
            share.accumulation * kind.time_s(share.batch_size)
            for kind, share in zip(kinds, plan, strict=True)
        )

    plans = list(itertools.product(*per_class))
    sums = {samples(plan) for plan in plans}
    if total not in sums:
        with pytest.raises(NoExactSum) as refused:
            dedicated(kinds, total, (1, most))
        below = max((each for each in sums if each < total), default=None)
        above = min((each for each in sums if each > total), default=None)
        assert refused.value.nearest == tuple(each for each in (below, above) if each is not None)
        near = dedicated(kinds, total, (1, most), nearest=True)
        assert abs(samples(tuple(near)) - total) == min(abs(each - total) for each in sums)
        return
    found = dedicated(kinds, total, (1, most))
    assert samples(tuple(found)) == total
    assert step_s(found) == min(step_s(plan) for plan in plans if samples(plan) == total)


def test_dd_uses_the_measured_curve_and_not_a_speed() -> None:
    """Below saturation half the batch is not half the time, so accumulating small ones is dear."""
    flat = HardwareClass(devices=1, sizes=(1, 4, 6), times_s=(4.0, 4.0, 6.0), smallest=1, largest=6)
    assert flat.time_s(2) == 4.0
    assert dedicated([flat], 8) == [Share(4, 2)]


def test_a_class_without_any_batch_size_is_reported() -> None:
    with pytest.raises(Infeasible, match="saturation"):
        dedicated([curve(1, 1.0, smallest=5, largest=4)], 8)
