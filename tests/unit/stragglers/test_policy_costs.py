"""What a batch costs a worker, who is like the others, and how late the latest are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from paceline.features.stragglers.policy.chance import drift, scatter
from paceline.features.stragglers.policy.fleet import Fleet
from paceline.policy.observation import WorkerSeen
from paceline.policy.stats import affine
from paceline.policy.stats.history import Lengths, NodeHistory, WindowMeans
from paceline.policy.stats.regimes import Point, Regime, Stretch


def fitted(
    *points: tuple[float, float], prior: float = np.nan, iterations: float = 100.0
) -> tuple[float, float]:
    """Delay and slope of one owner, by points of size and time; the last is the newest."""
    count = len(points)
    sizes, times_s = np.array(points).T
    recent = np.full(count, 1.0)
    recent[-1] = 40.0
    delays_s, slopes_s = affine.fit(
        np.zeros(count, np.int64),
        sizes,
        times_s,
        np.full(count, iterations),
        recent,
        np.array([prior]),
    )
    return float(delays_s[0]), float(slopes_s[0])


# ------------------------------------------------------------------------ affine costs


def test_one_size_and_no_prior_is_a_cost_in_proportion() -> None:
    assert fitted((1000, 2.0)) == pytest.approx((0.0, 0.002))


def test_one_size_leaves_the_slope_to_the_prior() -> None:
    assert fitted((1000, 3.0), prior=0.002) == pytest.approx((1.0, 0.002))


def test_a_prior_steeper_than_the_data_allow_gives_no_negative_delay() -> None:
    assert fitted((1000, 1.0), prior=0.002) == pytest.approx((0.0, 0.001))


def test_two_sizes_that_differ_tell_delay_from_slope_against_the_prior() -> None:
    delay_s, slope_s = fitted((4000, 4.0), (1000, 1.0), prior=0.0006)
    assert slope_s == pytest.approx(0.001, rel=0.05)
    assert delay_s == pytest.approx(0.0, abs=0.05)


def test_sizes_close_to_each_other_hardly_do() -> None:
    # 3 % of scatter would be read as a slope of 0.
    _, slope_s = fitted((1000, 2.06), (1030, 2.0), prior=0.002)
    assert slope_s > 0.0015


def test_the_cost_passes_through_the_newest_point() -> None:
    delay_s, slope_s = fitted((2000, 4.0), (1000, 3.0), prior=0.002)
    assert delay_s + slope_s * 1000 == pytest.approx(3.0, rel=0.02)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(1, 1e5), st.floats(1e-3, 1e3)), min_size=1, max_size=8),
    st.one_of(st.just(np.nan), st.floats(1e-9, 1.0)),
)
def test_no_fit_has_a_negative_delay_or_slope(
    points: list[tuple[float, float]], prior: float
) -> None:
    delay_s, slope_s = fitted(*points, prior=prior)
    assert delay_s >= 0.0
    assert slope_s > 0.0
    assert np.isfinite([delay_s, slope_s]).all()


def test_owners_are_fitted_each_for_itself() -> None:
    delays_s, slopes_s = affine.fit(
        np.array([0, 1, 1]),
        np.array([1000.0, 1000.0, 500.0]),
        np.array([2.0, 3.0, 2.0]),
        np.full(3, 100.0),
        np.full(3, 10.0),
        np.array([np.nan, 0.002]),
    )
    assert delays_s == pytest.approx([0.0, 1.0], abs=0.01)
    assert slopes_s == pytest.approx([0.002, 0.002], rel=0.01)


# ------------------------------------------------------------------------------- fleets


def worker(time_s: float | None, size: int = 1000, kind: str = "") -> WorkerSeen:
    regime = (
        None
        if time_s is None
        else Regime(since_s=0.0, iterations=100, points=(Point(size, 100, time_s, 43.0),))
    )
    return WorkerSeen(node="w", batch_size=size, kind=kind, regime=regime)


def test_a_straggler_is_told_from_its_peers_by_a_delay() -> None:
    fleet = Fleet.of([worker(2.0), worker(2.0), worker(3.0)], scatter=0.01)
    assert fleet.delays_s == pytest.approx([0.0, 0.0, 1.0])
    assert fleet.slopes_s == pytest.approx([0.002] * 3)
    assert fleet.times_s(np.array([1000, 1000, 500])) == pytest.approx([2.0, 2.0, 2.0])


def test_who_was_not_measured_is_taken_for_usual() -> None:
    fleet = Fleet.of([worker(2.0), worker(2.2), worker(2.1), worker(None, 0)], scatter=0.0)
    assert fleet.slopes_s[3] == pytest.approx(0.0021)


def test_who_differs_by_chance_is_taken_for_usual() -> None:
    workers = [worker(2.0 + 0.01 * (index % 3)) for index in range(30)]
    fleet = Fleet.of(workers, scatter=0.05)
    assert np.ptp(fleet.times_s(fleet.shares)) == 0.0
    assert (fleet.by_chance == 0.0).all()
    told = Fleet.of([*workers, worker(2.5)], scatter=0.05)
    assert told.times_s(told.shares)[30] == pytest.approx(2.5)
    assert told.by_chance[30] > 0.0


def test_classes_of_hardware_are_usual_each_for_itself() -> None:
    kinds = ["new", "new", "old", "old"]
    times_s = [1.0, 1.0, 3.0, 3.0]
    workers = [worker(time_s, kind=kind) for time_s, kind in zip(times_s, kinds, strict=True)]
    fleet = Fleet.of(workers, scatter=0.01)
    assert fleet.usual_slopes_s == pytest.approx([0.001, 0.001, 0.003, 0.003])
    assert fleet.delays_s == pytest.approx([0.0] * 4)


# ------------------------------------------------------------------------ random delays


def scattered(seed: int, per_report: int) -> Regime:
    """A node whose iterations scatter by 2 %."""
    node, rng = NodeHistory(Lengths()), np.random.default_rng(seed)
    for number in range(400 // per_report):
        times_s = rng.normal(1.0, 0.02, per_report)
        report = WindowMeans(
            t_s=float(per_report * (number + 1)),
            iterations=per_report,
            samples=100.0,
            compute_s=float(times_s.mean()),
            compute_max_s=float(times_s.max()),
            bpt_s=1.0,
        )
        node.report(report)
    seen = node.regime(400.0)
    assert seen is not None
    return seen


@pytest.mark.parametrize("per_report", [1, 10])
def test_scatter_is_not_overestimated_by_the_counters(per_report: int) -> None:
    pooled = scatter([scattered(seed, per_report) for seed in range(20)])
    assert pooled == pytest.approx(0.02, rel=0.3)


def walk(seed: int, correlation: float) -> Regime:
    """A node whose iterations go up and down by a tenth."""
    rng, level, trail = np.random.default_rng(seed), 0.0, []
    for number in range(64):
        level = correlation * level + np.sqrt(1.0 - correlation**2) * rng.normal(0.0, 0.1)
        taken_s = float(np.exp(level))
        trail.append(Stretch(2.0 * (number + 1), 2.0, 1, 100.0, taken_s, taken_s))
    return Regime(since_s=0.0, iterations=64, points=(), trail=tuple(trail))


def test_what_goes_up_and_down_slowly_says_little_of_what_comes() -> None:
    alone, slow = (drift([walk(seed, each) for seed in range(20)]) for each in (0.0, 0.95))
    assert alone == pytest.approx(0.1 * np.sqrt(2.0 / 8.0), rel=0.25)
    assert alone is not None and slow is not None and slow > 1.25 * alone


def test_one_comparison_says_nothing_of_drift() -> None:
    whole = walk(0, 0.0)
    two = replace(whole, trail=whole.trail[:16])
    assert drift([two]) is None
    assert drift([two, two]) is not None


def test_one_node_that_changes_is_no_drift() -> None:
    steady = [walk(seed, 0.0) for seed in range(7)]
    trail = [
        each if each.t_s < 60.0 else Stretch(each.t_s, 2.0, 1, 100.0, 4.0, 4.0)
        for each in steady[0].trail
    ]
    changed = Regime(since_s=60.0, iterations=34, points=(), trail=tuple(trail))
    assert drift([*steady, changed]) == pytest.approx(drift(steady), rel=0.3)
