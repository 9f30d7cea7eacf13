"""Regimes go on through batch sizes that we order, and end where the node changes."""

import numpy as np
import pytest

from paceline.policy.stats.history import PAPER, Lengths, NodeHistory, WindowMeans
from paceline.policy.stats.regimes import LATE, Regime


class Node:
    """A worker whose batch takes delay + slope * size, with noise; reports ten iterations."""

    def __init__(self, noise: float = 0.0, lengths: Lengths | None = None) -> None:
        self.history = NodeHistory(lengths or Lengths())
        self.delay_s, self.slope_s, self.size = 0.0, 0.001, 1000.0
        self.t_s = 0.0
        self.noise = noise
        self.rng = np.random.default_rng(0)
        self.spike_s = 0.0

    def run(self, reports: int) -> None:
        for _ in range(reports):
            scatter = 1.0 + self.noise * float(self.rng.normal())
            time_s = (self.delay_s + self.slope_s * self.size) * scatter
            self.t_s += 10 * time_s
            self.history.report(
                WindowMeans(
                    t_s=self.t_s,
                    iterations=10,
                    samples=self.size,
                    compute_s=time_s + self.spike_s / 10,
                    compute_max_s=time_s + self.spike_s,
                    server_s=0.1,
                    bpt_s=time_s,
                )
            )

    @property
    def regime(self):  # type: ignore[no-untyped-def]
        return self.history.regime(self.t_s)


def test_nothing_is_seen_of_a_node_that_has_reported_nothing() -> None:
    history = NodeHistory(Lengths())
    assert (history.short(0.0), history.long(0.0), history.regime(0.0)) == (None, None, None)
    history.report(WindowMeans(t_s=0.0, iterations=0))
    assert history.short(0.0) is None


def test_the_long_window_is_seen_only_when_it_is_full() -> None:
    node = Node()
    node.run(19)
    assert node.history.short(node.t_s) is not None
    assert node.history.long(node.t_s) is None
    node.run(1)
    assert node.history.long(node.t_s) is not None


def test_the_paper_counts_in_minutes_only() -> None:
    node = Node(lengths=PAPER)
    node.run(59)
    assert node.history.long(node.t_s) is None
    node.run(1)
    pace = node.history.long(node.t_s)
    assert pace is not None
    assert pace.seconds == pytest.approx(600.0)


def test_a_steady_node_is_in_one_regime_from_its_first_iteration_on() -> None:
    node = Node(noise=0.02)
    node.run(100)
    assert node.regime.since_s == pytest.approx(0.0)
    assert node.regime.iterations == 1000
    assert node.regime.verified
    assert [point.batch_size for point in node.regime.points] == [1000]


def test_an_onset_is_suspected_at_the_first_slow_report_and_verified_at_the_third() -> None:
    node = Node(noise=0.01)
    node.run(20)
    onset_s = node.t_s
    node.delay_s = 0.5
    node.run(1)
    assert not node.regime.verified
    assert node.regime.points[0].compute_s == pytest.approx(1.5, rel=0.05)
    node.run(2)
    assert node.regime.verified
    assert node.regime.since_s == pytest.approx(onset_s)
    assert node.regime.iterations == 30


def test_iterations_from_before_the_onset_do_not_stay_in_its_regime() -> None:
    node = Node()
    node.run(20)
    node.delay_s = 0.2
    node.run(1)
    node.delay_s = 0.5
    node.run(3)
    assert node.regime.points[0].compute_s == pytest.approx(1.5)


def test_a_spike_is_in_no_regime() -> None:
    node = Node()
    node.run(20)
    node.delay_s = 20.0
    node.run(1)
    node.delay_s = 0.0
    node.run(10)
    assert node.regime.verified
    assert node.regime.since_s == 0.0
    assert node.regime.points[0].compute_s == pytest.approx(1.0)


@pytest.mark.parametrize("delay_s", [0.0, 0.3])
def test_another_batch_size_is_the_same_regime(delay_s: float) -> None:
    node = Node()
    node.delay_s = delay_s
    node.run(20)
    node.size = 400.0
    node.run(5)
    assert node.regime.since_s == 0.0
    assert [point.batch_size for point in node.regime.points] == [400, 1000]


def test_a_change_that_comes_with_another_batch_size_is_told_from_it() -> None:
    node = Node()
    node.run(20)
    changed_s = node.t_s
    node.size, node.delay_s = 1050.0, 0.5
    node.run(1)
    assert not node.regime.verified
    node.run(2)
    assert node.regime.verified
    assert node.regime.since_s == pytest.approx(changed_s)


def test_a_suspected_onset_that_is_answered_at_once_is_verified_at_the_new_size() -> None:
    node = Node()
    node.run(20)
    onset_s = node.t_s
    node.delay_s = 0.5
    node.run(1)
    node.size = 450.0
    node.run(2)
    assert node.regime.verified
    assert node.regime.since_s == pytest.approx(onset_s)
    assert [point.batch_size for point in node.regime.points] == [450, 1000]


def test_relief_is_found_at_the_size_that_the_straggler_was_given() -> None:
    node = Node(noise=0.01)
    node.run(20)
    node.delay_s = 0.5
    node.run(3)
    node.size = 450.0
    node.run(20)
    relief_s = node.t_s
    node.delay_s = 0.0
    node.run(3)
    assert node.regime.verified
    assert node.regime.since_s == pytest.approx(relief_s)
    assert node.regime.points[0].compute_s == pytest.approx(0.45, rel=0.05)


def test_a_regime_knows_the_slope_of_the_ones_before() -> None:
    node = Node()
    node.run(20)
    assert node.regime.slope_s is None
    node.delay_s = 0.5
    node.run(3)
    assert node.regime.slope_s == pytest.approx(0.001, rel=1e-3)


def test_a_change_is_found_soon_after_an_ordered_change_of_size() -> None:
    node = Node(noise=0.01)
    node.run(20)
    node.size = 1050.0
    node.run(4)
    node.delay_s = 0.3
    node.run(3)
    assert node.regime.iterations == 30


def test_after_a_restart_nothing_is_remembered() -> None:
    node = Node()
    node.run(30)
    node.history.restart()
    assert node.history.short(node.t_s) is None
    assert node.regime is None
    node.run(1)
    assert node.regime.iterations == 10
    assert node.regime.slope_s is None


def test_a_silent_node_shows_nothing() -> None:
    node = Node()
    node.run(30)
    later_s = node.t_s + 601.0
    history = node.history
    assert (history.short(later_s), history.long(later_s), history.regime(later_s)) == (None,) * 3


def test_a_server_is_followed_by_its_handlers_time() -> None:
    history = NodeHistory(Lengths())
    for number in range(24):
        server_s = 0.1 if number < 20 else 0.4
        history.report(WindowMeans(t_s=10.0 * number, iterations=10, server_s=server_s, bpt_s=1.0))
    regime = history.regime(230.0)
    assert regime is not None
    assert regime.points[0].compute_s == pytest.approx(0.4)


def test_a_quota_cut_to_about_a_half_does_not_come_and_go() -> None:
    history, regime = NodeHistory(Lengths(block_s=2.0)), None
    for number in range(80):
        throttled_s = 0.0 if number < 24 else 0.1 * (0.47, 0.53)[number % 2]
        history.report(
            WindowMeans(
                t_s=0.5 * number, iterations=1, server_s=0.1, throttled_s=throttled_s, bpt_s=0.5
            )
        )
        regime = history.regime(0.5 * number)
    assert regime is not None
    assert (regime.is_cut, regime.iterations) == (True, 52), "of one regime"
    assert history.take_spells() == []


def test_a_cut_quota_begins_and_ends_a_regime_at_once() -> None:
    """The kernel says what it is, so no third block has to agree; the block under way is dropped."""
    history, t_s = NodeHistory(Lengths(block_s=2.0)), 0.0

    def run(reports: int, server_s: float, throttled_s: float = 0.0) -> Regime:
        nonlocal t_s
        for _ in range(reports):
            t_s += 0.5
            history.report(
                WindowMeans(
                    t_s=t_s, iterations=1, server_s=server_s, throttled_s=throttled_s, bpt_s=0.5
                )
            )
        regime = history.regime(t_s)
        assert regime is not None
        return regime

    assert not run(25, 0.01, 0.004).is_cut, "most of its time is its own work"
    cut_s = t_s
    assert not run(1, 0.1, 0.09).is_cut, "of before and after"
    assert not run(3, 0.4, 0.35).is_cut, "a block is not whole"
    for number, server_s in enumerate((0.4, 0.8, 0.2), 1):
        regime = run(1 if number == 1 else 4, server_s, 0.9 * server_s)
        assert (regime.is_cut, regime.verified, regime.since_s) == (True, True, cut_s + 0.5)
        assert regime.iterations == 4 * number, "however it goes up and down"
    assert run(4, 0.01).is_cut
    assert not run(1, 0.01).is_cut
    assert history.take_spells() == [6.5]


def test_the_scatter_of_single_iterations_is_seen_in_means_of_ten() -> None:
    node = Node(noise=0.02)
    node.run(60)
    # Reports scatter by 2 %, so iterations by 2 % times the root of 10.
    assert node.regime.scatter == pytest.approx(0.02 * 10**0.5, rel=0.4)


def test_a_change_of_level_is_not_scatter() -> None:
    node = Node()
    node.run(20)
    node.delay_s = 0.5
    node.run(10)
    assert node.regime.scatter < 0.001


def test_single_late_iterations_are_counted_by_how_late_they_are() -> None:
    node = Node()
    for number in range(40):
        node.spike_s = 0.2 if number % 4 == 0 else 0.0
        node.run(1)
    *counts, iterations = node.regime.late
    late = sum(count for count, ratio in zip(counts, LATE, strict=True) if ratio > 1.1)
    # One in four reports of ten iterations, fading; the newest was 30 iterations ago.
    assert late / iterations == pytest.approx(1 / 40, rel=0.2)


def test_iterations_of_a_new_regime_were_not_late_by_chance() -> None:
    node = Node()
    node.run(20)
    node.delay_s = 1.0
    node.run(10)
    *counts, _ = node.regime.late
    assert sum(counts[1:]) == pytest.approx(0.0)


class Single:
    """A worker that reports every iteration; some are late by all of their time."""

    def __init__(self) -> None:
        self.history = NodeHistory(Lengths())
        self.t_s = 0.0

    def run(self, iterations: int, time_s: float = 1.0) -> None:
        for _ in range(iterations):
            self.t_s += time_s
            report = WindowMeans(
                t_s=self.t_s,
                iterations=1,
                samples=1000.0,
                compute_s=time_s,
                compute_max_s=time_s,
                server_s=0.1,
                bpt_s=time_s,
            )
            self.history.report(report)

    @property
    def num_late(self) -> float:
        regime = self.history.regime(self.t_s)
        assert regime is not None
        counted = zip(regime.late, LATE, strict=False)
        return sum(count for count, ratio in counted if ratio > 1.5)


def test_a_burst_that_is_over_soon_was_late_by_chance() -> None:
    node = Single()
    node.run(30)
    node.run(6, 2.0)
    assert node.num_late == 0.0
    node.run(10)
    # All of it, but for what has faded since.
    assert 5.0 < node.num_late <= 6.0


def test_what_lasts_was_not_late_by_chance_when_it_is_over() -> None:
    node = Single()
    node.run(30)
    node.run(20, 2.0)
    node.run(10)
    assert node.num_late == 0.0


def test_what_was_seen_at_a_size_fades_for_the_present_level() -> None:
    node = Node()
    node.run(20)
    node.size = 500.0
    node.run(6)
    small, large = node.regime.points
    assert small.recent > large.recent
    assert (small.iterations, large.iterations) == (60, 200)


def test_what_its_machines_load_took_is_a_mean_over_the_iterations_it_made_slow() -> None:
    """Bursts of other work, which the newest iterations say nothing of."""
    history = NodeHistory(Lengths(block_s=0.0))
    for place in range(24):
        busy_s = 2.0 if place % 4 < 2 else 0.0
        history.report(
            WindowMeans(
                t_s=10.0 * (place + 1) * 2.0,
                iterations=10,
                samples=100.0,
                compute_s=1.0 + busy_s,
                stolen_s=busy_s,
                bpt_s=2.0,
            )
        )
    regime = history.regime(500.0)
    assert regime is not None
    (point,) = regime.points
    assert point.compute_s > 1.5
    assert regime.stolen_s == pytest.approx(point.compute_s - 1.0), "all that it takes more"


def test_a_node_keeps_few_points_however_many_sizes_it_saw() -> None:
    node = Node()
    for size in range(400, 2000, 100):
        node.size = float(size)
        node.run(1)
    assert len(node.regime.points) == 8
    assert node.regime.points[-1].batch_size == 1900
