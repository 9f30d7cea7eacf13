"""Straggler patterns: seeded, bound to places, the same for whoever reads them."""

import itertools
import math

import msgspec
import numpy as np
import pytest
from paceline_experiments.sim.patterns import (
    AnyPattern,
    Correlated,
    Course,
    Cycle,
    Disturbances,
    HeavyTail,
    Ladder,
    OnOff,
    Persistent,
    Placement,
    Shared,
    Spell,
    Trace,
    Transient,
    spells_of,
)

PATTERNS: list[AnyPattern] = [
    Transient(probability=0.3, period=100.0, share=0.5, delay_s=1.0),
    Persistent(nodes=(2,), delay_s=3.0, start=50.0),
    Persistent(role="worker", nodes=(2,), slowdown=2.0, start=50.0, stop=400.0),
    OnOff(mean_on=40.0, mean_off=60.0, delay_s=2.0),
    HeavyTail(scale_s=0.1, shape=1.5, worst_s=5.0, noisy=0.5),
    Ladder(nodes=(2,), rung_s=0.1, rungs=3, every=20.0, hold=100.0, start=30.0),
    Trace(tick=10.0, levels=((1.0, 2.0), (1.0, 3.0), (1.5, 1.0))),
    Cycle(nodes=(1, 2), period=60.0, on=20.0, slowdown=2.0, stagger=15.0),
    Shared(nodes=(0, 2), mean_on=40.0, mean_off=60.0, slowdown=2.0, key=9),
    Correlated(sigma=0.2, memory=0.9),
]


def first_spells(
    pattern: AnyPattern, place: Placement, seed: int = 0, count: int = 200
) -> list[Spell]:
    return list(itertools.islice(pattern.spells(place, np.random.default_rng(seed)), count))


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: type(p).__name__)
def test_spells_are_ascending_and_disjoint(pattern: AnyPattern) -> None:
    spells = first_spells(pattern, Placement("worker", 2))
    assert spells
    assert all(spell.start < spell.stop for spell in spells)
    assert all(a.stop <= b.start for a, b in itertools.pairwise(spells))


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: type(p).__name__)
def test_a_pattern_crosses_a_process_boundary_unchanged(pattern: AnyPattern) -> None:
    data = msgspec.json.encode(pattern)
    assert msgspec.json.decode(data, type=AnyPattern) == pattern


def test_one_node_alone_sees_what_the_whole_job_sees() -> None:
    patterns = PATTERNS[:3]
    job = Disturbances(patterns, "worker", 5, seed=7)
    alone = [Course(spells_of(patterns, number, Placement("worker", 3), 7)) for number in range(3)]
    for now_s in np.linspace(0.0, 3_000.0, 301):
        job.move(float(now_s), 0)
        assert job.delay_s[3] == sum(course.at(float(now_s)).delay_s for course in alone)


# Of eight and more numpy adds in another order by row than by column.
@pytest.mark.parametrize("patterns", [PATTERNS[:7], PATTERNS[4:]])
def test_moving_one_node_is_moving_all_as_far_as_it_is_concerned(
    patterns: list[AnyPattern],
) -> None:
    together = Disturbances(patterns, "worker", 4, seed=1)
    alone = Disturbances(patterns, "worker", 4, seed=1)
    for iteration in range(300):
        together.move(iteration * 2.5, iteration)
        alone.move_one(2, iteration * 2.5, iteration)
        assert alone.delay_s[2] == together.delay_s[2]
        assert alone.slowdown[2] == together.slowdown[2]


def test_a_transient_straggler_rests_in_the_second_part_of_each_period() -> None:
    job = Disturbances(PATTERNS[:1], "worker", 1_000, seed=0)
    seen = []
    for period in range(10):
        job.move(period * 100.0 + 25.0, 0)
        seen.append((job.delay_s > 0).mean())
        job.move(period * 100.0 + 75.0, 0)
        assert not job.delay_s.any()
    assert np.mean(seen) == pytest.approx(0.3, abs=0.02)


def test_a_persistent_straggler_stays_in_its_first_place() -> None:
    job = Disturbances([Persistent(nodes=(1,), delay_s=3.0)], "worker", 3, seed=0)
    job.move(0.0, 0)
    assert job.delay_s.tolist() == [0.0, 3.0, 0.0]
    job.renew(1, life=1)
    job.move(1.0, 1)
    assert not job.delay_s.any()


@pytest.mark.parametrize(
    "pattern",
    [
        Persistent(nodes=(1,), slowdown=3.0, bound=False),
        Ladder(nodes=(1,), rung_s=3.0, rungs=1, every=9.0, hold=math.inf, bound=False),
    ],
)
def test_what_is_not_bound_to_a_place_comes_back_after_a_restart(pattern: AnyPattern) -> None:
    job = Disturbances([pattern], "worker", 3, seed=0)
    job.move(1.0, 0)
    before = job.delay_s.tolist(), job.slowdown.tolist()
    job.renew(1, life=1)
    job.move(2.0, 1)
    assert (job.delay_s.tolist(), job.slowdown.tolist()) == before
    assert before[0][1] == 3.0 or before[1][1] == 3.0


def test_a_staggered_cycle_rolls_from_node_to_node() -> None:
    job = Disturbances(
        [Cycle(nodes=(2, 0, 1), period=30.0, on=10.0, stagger=10.0, delay_s=1.0)], "worker", 3, 0
    )
    slow = []
    for turn in range(6):
        job.move(turn * 10.0 + 5.0, 0)
        slow.append(np.flatnonzero(job.delay_s).tolist())
    assert slow == [[2], [0], [1], [2], [0], [1]]


def test_the_nodes_of_a_rack_are_slow_at_the_same_times_whatever_their_place() -> None:
    job = Disturbances(
        [Shared(nodes=(0, 2), mean_on=40.0, mean_off=60.0, slowdown=2.0, key=1)], "worker", 3, 0
    )
    job.renew(2, life=1)
    seen = []
    for now_s in range(0, 2_000, 10):
        job.move(float(now_s), 0)
        assert job.slowdown[1] == 1.0
        assert job.slowdown[0] == job.slowdown[2]
        seen.append(job.slowdown[0])
    assert set(seen) == {1.0, 2.0}


def test_correlated_noise_has_the_mean_spread_and_memory_that_it_was_given() -> None:
    pattern = Correlated(sigma=0.2, memory=0.9)
    slowdown = [
        spell.slowdown for spell in first_spells(pattern, Placement("worker", 0), count=40_000)
    ]
    logs = np.log(slowdown)
    assert np.mean(slowdown) == pytest.approx(1.0, abs=0.02)
    assert logs.std() == pytest.approx(0.2, rel=0.05)
    assert np.corrcoef(logs[:-1], logs[1:])[0, 1] == pytest.approx(0.9, abs=0.01)


def test_another_place_has_draws_of_its_own() -> None:
    pattern = OnOff(mean_on=40.0, mean_off=60.0, delay_s=2.0)

    def starts(life: int) -> list[float]:
        course = Course(spells_of([pattern], 0, Placement("worker", 0, life), 5))
        return [course.at(float(t)).delay_s for t in range(0, 2_000, 10)]

    assert starts(0) == starts(0)
    assert starts(0) != starts(1)


def test_seeds_decide() -> None:
    def delays(seed: int) -> list[float]:
        job = Disturbances(PATTERNS[:1], "worker", 50, seed)
        job.move(1.0, 0)
        return list(job.delay_s.tolist())

    assert delays(1) == delays(1)
    assert delays(1) != delays(2)


def test_a_servers_pattern_leaves_workers_alone() -> None:
    patterns = [Persistent(role="server", nodes=(0,), delay_s=4.0)]
    workers, servers = (Disturbances(patterns, role, 2, 0) for role in ("worker", "server"))
    workers.move(0.0, 0)
    servers.move(0.0, 0)
    assert not workers.delay_s.any()
    assert servers.delay_s.tolist() == [4.0, 0.0]


def test_delays_add_up_and_slowdowns_multiply() -> None:
    patterns = [
        Persistent(nodes=(0,), delay_s=1.0, slowdown=2.0),
        Persistent(nodes=(0,), delay_s=0.5, slowdown=1.5, start=10.0),
    ]
    job = Disturbances(patterns, "worker", 1, seed=0)
    job.move(0.0, 0)
    assert (job.delay_s[0], job.slowdown[0]) == (1.0, 2.0)
    job.move(10.0, 0)
    assert (job.delay_s[0], job.slowdown[0]) == (1.5, 3.0)


def test_heavy_tails_are_drawn_per_iteration_and_cut_off() -> None:
    pattern = HeavyTail(scale_s=0.1, shape=1.2, worst_s=5.0)
    draws = [spell.delay_s for spell in first_spells(pattern, Placement("worker", 0), count=20_000)]
    assert max(draws) == 5.0
    # Median of a Lomax distribution.
    assert np.median(draws) == pytest.approx(0.1 * (2 ** (1 / 1.2) - 1), rel=0.05)


def test_a_ladder_climbs_holds_and_ends() -> None:
    spells = first_spells(PATTERNS[5], Placement("worker", 2))
    assert [round(spell.delay_s, 6) for spell in spells] == [0.1, 0.2, 0.3]
    assert (spells[0].start, spells[-1].start, spells[-1].stop) == (30.0, 70.0, 170.0)


def test_a_trace_goes_round_in_a_circle() -> None:
    course = Course(spells_of(PATTERNS, 6, Placement("worker", 4), 0))
    levels = [course.at(t).slowdown for t in (0.0, 10.0, 20.0, 30.0)]
    assert levels == [1.0, 3.0, 1.0, 3.0]


def test_without_spells_nothing_changes_for_ever() -> None:
    course = Course(spells_of([Persistent(nodes=(9,))], 0, Placement("worker", 0), 0))
    assert course.at(5.0) == Spell(5.0, math.inf)
