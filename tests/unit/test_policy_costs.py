"""What a batch costs a worker, who is like the others, and how late the latest are."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.policy.stats import affine
from paceline.policy.stats.history import Lengths, NodeHistory, Report
from paceline.policy.stats.regimes import LATE, Point, Regime
from paceline.policy.straggler.fleet import Fleet
from paceline.policy.straggler.observation import WorkerSeen
from paceline.policy.straggler.ranks import Delays, largest_normal


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


def regime(late: list[float], scatter: float = 0.0) -> Regime:
    return Regime(since_s=0.0, iterations=100, points=(), scatter=scatter, late=tuple(late))


def test_of_normal_scatter_the_slowest_is_waited_for() -> None:
    waits = Delays([regime([], scatter=0.1)] * 20, count=20).waits(3)
    values = np.random.default_rng(0).normal(1.0, 0.1, (20_000, 20))
    assert waits.ratios == pytest.approx(values.max(axis=1).mean(), abs=0.003)
    assert not waits.dropped.any()


def test_waits_for_rare_delays_are_those_of_a_binomial() -> None:
    # One iteration in 20 takes twice the time, or about.
    late = [0.0] * 16 + [200.0]
    level = int(np.searchsorted(LATE, 2.0))
    late[0], late[level] = 10.0, 10.0
    waits = Delays([regime(late)] * 20, count=20).waits(2)
    hit = np.random.default_rng(0).binomial(20, 0.05, 200_000)
    for spared, grace in itertools.product(range(3), range(len(LATE))):
        ends = min(grace, level)
        waited = (LATE[ends] - 1.0) * (hit > 0).mean()
        waited += (LATE[level] - LATE[ends]) * (hit > spared).mean()
        assert waits.ratios[grace, spared] == pytest.approx(1.0 + waited, abs=0.01)
        dropped = np.minimum(hit, spared).mean() / 20 if grace < level else 0.0
        if grace == 0:
            dropped = spared / 20
        assert waits.dropped[grace, spared] == pytest.approx(dropped, abs=0.001)


def test_a_grace_waits_for_who_is_a_little_late_and_drops_only_the_others() -> None:
    rng = np.random.default_rng(0)
    times_s = 1.0 + np.where(rng.random((200_000, 10)) < 0.03, rng.uniform(0.0, 3.0), 0.0)
    places = np.interp(times_s.ravel(), LATE, np.arange(len(LATE)))
    counts = np.maximum(0.0, 1.0 - np.abs(places[:, np.newaxis] - np.arange(len(LATE)))).sum(axis=0)
    late = [*(counts / 1000).tolist(), times_s.size / 1000]
    waits = Delays([regime(late)] * 10, count=10).waits(2)
    ordered = np.sort(times_s, axis=1)
    ends = LATE[9]
    taken = np.minimum(ordered[:, -1], np.maximum(ends, ordered[:, -3])).mean()
    assert waits.ratios[9, 2] == pytest.approx(taken, abs=0.02)
    later = (times_s > ends).sum(axis=1)
    assert waits.dropped[9, 2] == pytest.approx(np.minimum(later, 2).mean() / 10, abs=0.003)


def scattered(seed: int, per_report: int) -> Regime:
    """A node whose iterations scatter by 2 %."""
    node, rng = NodeHistory(Lengths()), np.random.default_rng(seed)
    for number in range(400 // per_report):
        times_s = rng.normal(1.0, 0.02, per_report)
        report = Report(
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
    delays = Delays([scattered(seed, per_report) for seed in range(20)], 20)
    assert delays.scatter == pytest.approx(0.02, rel=0.3)


def test_who_is_not_waited_for_is_late_for_the_next_steps_too() -> None:
    late = [0.0] * 16 + [200.0]
    late[0], late[12] = 10.0, 10.0
    waiting, skipping = (Delays([regime(late)] * 20, 20, skipping=each) for each in (False, True))
    assert (skipping.waits(2).ratios > waiting.waits(2).ratios).all()


def test_few_iterations_say_nothing_about_rare_delays() -> None:
    late = [0.0] * 16 + [10.0]
    late[5] = 1.0
    waits = Delays([regime(late, scatter=0.02)] + [regime([], 0.02)] * 19, 20).waits(1)
    longest = largest_normal(20) * Delays([regime(late)], 20).scatter
    assert waits.ratios - 1.0 == pytest.approx(np.full_like(waits.ratios, longest))


def test_who_waits_for_fewer_and_shorter_never_waits_longer() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        late = [*rng.exponential(1.0, 16).tolist(), 200.0]
        ratios, dropped = Delays([regime(late)] * 30, count=30).waits(7)
        assert (np.diff(ratios, axis=1) <= 1e-12).all()
        assert (np.diff(ratios, axis=0) >= -1e-12).all()
        assert (np.diff(dropped, axis=1) >= -1e-12).all()
        assert (np.diff(dropped, axis=0) <= 1e-12).all()
        assert ratios.min() >= 1.0
        assert 0.0 <= dropped.min() <= dropped.max() <= 7 / 30
