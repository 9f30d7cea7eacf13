"""The clairvoyant scheduler: exact where it can be worked out by hand, and never beaten."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paceline_experiments.sim.costs import Compute, Traffic
from paceline_experiments.sim.patterns import (
    AnyPattern,
    Clock,
    HeavyTail,
    OnOff,
    Pattern,
    Persistent,
    Placement,
    Spell,
    Spells,
)
from paceline_experiments.sim.scenarios import Recovery, Scenario
from paceline_experiments.stragglers.clairvoyant import clairvoyant_s, level_s
from paceline_experiments.stragglers.experiments import simulate
from paceline_experiments.stragglers.methods import (
    ASP,
    ASP_DDS,
    AUTO,
    BACKUP_TENTH,
    BSP,
    LB_BSP,
    ND_OWN,
    PARTIAL,
    SSP,
)
from paceline_experiments.stragglers.results import Method

from paceline.policy.observation import RestartCost
from tests.simulated import NOISY, SMALL, changed

NEVER = Recovery(worker=RestartCost(start_s=1e6), server=RestartCost(start_s=1e6))
"""Nobody is restarted."""


# ------------------------------------------------------------------------- the level


def test_all_are_done_at_once() -> None:
    # 2 + 0.01 * 50 = 0.01 * 250.
    assert level_s(np.array([2.0, 0.0]), np.array([0.01, 0.01]), 300) == pytest.approx(2.5)


def test_who_is_delayed_beyond_the_level_gets_nothing() -> None:
    assert level_s(np.array([9.0, 0.0]), np.array([0.01, 0.01]), 300) == pytest.approx(3.0)


def test_who_is_away_gets_nothing() -> None:
    assert level_s(np.zeros(2), np.array([math.inf, 0.01]), 300) == pytest.approx(3.0)


def test_below_saturation_a_part_costs_as_much_as_at_it() -> None:
    # The second would help from 1.0 s on; then it takes all 100 samples that it must cost.
    args = np.zeros(2), np.array([0.01, 0.01])
    assert level_s(*args, 60, saturation=100) == pytest.approx(1.0)
    assert level_s(*args, 250, saturation=100) == pytest.approx(1.25)


@given(
    costs=st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.001, 0.1)), min_size=1, max_size=6),
    samples=st.integers(1, 1_000),
)
def test_at_the_level_the_parts_are_all_samples(
    costs: list[tuple[float, float]], samples: int
) -> None:
    delay_s, per_sample_s = (np.array(column) for column in zip(*costs, strict=True))
    level = level_s(delay_s, per_sample_s, samples)
    parts = np.maximum(0.0, (level - delay_s) / per_sample_s)
    assert parts.sum() == pytest.approx(samples, rel=1e-6)


# ------------------------------------------------------------------------- restarts


def test_a_slow_worker_costs_the_clairvoyant_schedule_its_restart_and_a_slow_server_what_it_delays_before() -> (
    None
):
    recovery = Recovery(worker=RestartCost(start_s=8.0), server=RestartCost(start_s=8.0))
    base = changed(SMALL, num_samples=40_000, epochs=1, recovery=recovery)
    worker = changed(base, patterns=(Persistent(nodes=(0,), slowdown=50.0),))
    # 100 steps of 1 s; for 8 s three workers do the work of four.
    assert clairvoyant_s(worker, 0) == pytest.approx(100 + 8 / 4, abs=0.5)
    server = changed(base, patterns=(Persistent(role="server", nodes=(0,), delay_s=1.0),))
    assert clairvoyant_s(server, 0) == pytest.approx(100 + 4, abs=1.0)


def test_without_stragglers_the_clairvoyant_schedule_needs_what_the_work_needs() -> None:
    base = changed(SMALL, num_samples=40_000, epochs=1)
    assert clairvoyant_s(base, 0) == pytest.approx(100.0)
    assert clairvoyant_s(changed(base, mode="asp"), 0) == pytest.approx(100.0)


def test_in_asp_a_server_that_is_too_slow_sets_the_pace() -> None:
    pattern = Persistent(role="server", nodes=(0,), delay_s=0.5)
    scenario = changed(
        SMALL, mode="asp", num_samples=40_000, epochs=1, recovery=NEVER, patterns=(pattern,)
    )
    assert clairvoyant_s(scenario, 0) == pytest.approx(400 * 0.5, rel=0.02)


# ------------------------------------------------------------------------- nobody is faster

HALF = Method(
    label="every other a backup worker", solution="backup_workers", parameters={"count": 2}
)
SYNCHRONOUS = (BSP, BACKUP_TENTH, HALF, LB_BSP, ND_OWN, PARTIAL, AUTO)
ASYNCHRONOUS = (ASP, ASP_DDS, ND_OWN, AUTO)
IN_SHORT = [("asp", ASP_DDS)]
"""`make soak` tries all."""
CASES = (
    [("bsp", method) for method in SYNCHRONOUS]
    + [("asp", method) for method in ASYNCHRONOUS]
    + [("ssp", method) for method in (SSP, AUTO)]
    + [("allreduce", method) for method in (BSP, LB_BSP, AUTO)]
)


ROLES = st.sampled_from(["worker", "server"])
BURSTY = st.builds(
    OnOff,
    role=ROLES,
    clock=st.just("iterations"),
    mean_on=st.floats(1.0, 6.0),
    mean_off=st.floats(3.0, 60.0),
    delay_s=st.floats(0.2, 4.0),
    probability=st.floats(0.3, 1.0),
)
HEAVY_TAILED = st.builds(
    HeavyTail,
    role=ROLES,
    scale_s=st.floats(0.02, 0.5),
    shape=st.floats(1.3, 2.5),
    worst_s=st.just(5.0),
    noisy=st.floats(0.0, 0.3),
)
CONSTANT = st.builds(
    Persistent,
    role=ROLES,
    nodes=st.just((1,)),
    delay_s=st.floats(0.0, 3.0),
    slowdown=st.floats(1.0, 4.0),
    start=st.floats(0.0, 30.0),
)
SLOW_SERVER = HeavyTail(role="server", scale_s=0.332, shape=2.0625, worst_s=5.0, noisy=0.25)
LUCKY_SERVER, LUCKY_WORKER = (
    OnOff(role=role, clock="iterations", mean_on=3.0, mean_off=3.0, delay_s=3.0, probability=share)
    for role, share in (("server", 0.4), ("worker", 1.0))
)
"""Where restarting over and over finds a good place, or good iterations."""
SOMETIMES = OnOff(mean_on=5.0, mean_off=20.0, delay_s=0.5, probability=0.5)


@pytest.mark.parametrize(
    ("mode", "method"),
    [pytest.param(*one, marks=[pytest.mark.soak] * (one not in IN_SHORT)) for one in CASES],
    ids=lambda case: getattr(case, "label", case),
)
@given(
    patterns=st.tuples(CONSTANT, st.just(SOMETIMES) | BURSTY) | st.tuples(BURSTY | HEAVY_TAILED),
    seed=st.integers(0, 10_000),
)
@example(patterns=(SLOW_SERVER,), seed=683)
@example(patterns=(LUCKY_SERVER,), seed=704)
@example(patterns=(LUCKY_WORKER,), seed=4726)
@settings(max_examples=6, deadline=None)
def test_no_solution_is_faster_than_the_clairvoyant_schedule(
    mode: str, method: Method, patterns: tuple[AnyPattern, ...], seed: int
) -> None:
    scenario = disturbed(mode, patterns)
    run = simulate(scenario, method, seed)
    assert run.outcome.samples == scenario.num_samples * scenario.epochs
    assert run.outcome.jct_s >= clairvoyant_s(scenario, seed)


def disturbed(mode: str, patterns: tuple[AnyPattern, ...]) -> Scenario:
    return changed(
        NOISY,
        mode=mode,
        servers=0 if mode == "allreduce" else 2,
        num_samples=24_000,
        epochs=2,
        staleness=2,
        compute=Compute(per_sample_s=0.01, fixed_s=0.02, noise=0.03),
        patterns=patterns,
        time_scale=0.05,
    )


class EveryFourth(Pattern, frozen=True, kw_only=True):
    """Two of four workers are in trouble in the second of each four iterations."""

    clock: Clock = "iterations"

    def spells(self, place: Placement, rng: np.random.Generator) -> Spells:
        for at in itertools.count(2, 4) if place.index < 2 else ():
            yield Spell(at, at + 1, 5.0)


def test_a_bad_iteration_is_run_nearly_empty_and_its_samples_come_back() -> None:
    scenario = changed(SMALL, num_samples=16_000, epochs=1, patterns=(EveryFourth(),))
    # Of 40 steps 30 take 1 s. In ten, two workers could do all in 2 s; instead these take no time,
    # and their samples come in ten more steps, of which three (42, 46, 50) are bad and take 2 s.
    assert clairvoyant_s(scenario, 0) == pytest.approx(30 + 7 + 3 * 2, abs=0.2)


def test_iterations_of_a_server_in_asp_are_the_contributions_that_it_handles() -> None:
    traffic = Traffic(part_s=0.1)
    pattern = OnlyLate(role="server")
    scenario = changed(
        SMALL,
        mode="asp",
        servers=1,
        num_samples=40_000,
        epochs=1,
        traffic=traffic,
        recovery=NEVER,
        patterns=(pattern,),
    )
    # 400 contributions of 0.1 s in 100 s of computation; from the 350th on they take 5.1 s.
    assert clairvoyant_s(scenario, 0) == pytest.approx(400 * 0.1 + 50 * 5.0)


class OnlyLate(Pattern, frozen=True, kw_only=True):
    """From the 350th iteration on."""

    clock: Clock = "iterations"

    def spells(self, place: Placement, rng: np.random.Generator) -> Spells:
        yield Spell(350, math.inf, 5.0)
