"""A restart is made when the straggler is expected to cost more."""

import dataclasses
import math

import msgspec
import numpy as np
import pytest

from paceline.features.stragglers.policy.restarts import (
    Candidate,
    RestartRule,
    cures,
    latency_s,
    server_candidates,
    worker_candidates,
    worth_while,
)
from paceline.policy.observation import (
    Observation,
    RestartCost,
    RestartOutcome,
    ServerSeen,
    WorkerSeen,
)
from paceline.policy.stats.regimes import Point, Regime, Stretch
from paceline.policy.stats.spells import LifeTable
from paceline.policy.stats.windows import Pace

NOW_S = 1000.0
UNTRIED = 0.75
"""Probability of a cure before any restart was seen."""


def job(**changes: object) -> Observation:
    fields: dict[str, object] = {
        "now_s": NOW_S,
        "step": 100,
        "mode": "bsp",
        "global_batch": 1,
        "steps_left": None,
        "workers": (),
    }
    return Observation(**{**fields, **changes})  # type: ignore[arg-type]


def candidate(
    node: str = "w0",
    *,
    age_s: float = 100.0,
    gain: float = 0.1,
    cost_s: float = 10.0,
    restarts: int = 0,
    iterations: int = 50,
    verified: bool = True,
) -> Candidate:
    regime = Regime(since_s=NOW_S - age_s, iterations=iterations, points=(), verified=verified)
    return Candidate(
        node=node,
        role="worker",
        regime=regime,
        restarts=restarts,
        slowness=1.5,
        gain=gain,
        cost_s=cost_s,
    )


def restarted(
    *candidates: Candidate, left_s: float = 1e9, limit: int = 10, **changes: object
) -> list[str]:
    found = worth_while(job(**changes), RestartRule(), list(candidates), left_s, limit)
    return [action.node for action in found]


def test_the_expected_loss_is_held_against_the_cost() -> None:
    left_s = 900.0
    expected_s = UNTRIED * 0.1 * 100.0 * math.log1p(9.0)
    assert restarted(candidate(cost_s=0.99 * expected_s), left_s=left_s) == ["w0"]
    assert restarted(candidate(cost_s=1.01 * expected_s), left_s=left_s) == []


def test_what_it_costs_if_it_does_not_cure_is_part_of_the_price() -> None:
    """The new process gets an even share, and is waited for until it is seen to be slow."""
    expected_s = UNTRIED * 0.1 * 100.0 * math.log1p(9.0)
    for futile_s, due in ((0.9, ["w0"]), (1.1, [])):
        each = dataclasses.replace(
            candidate(cost_s=0.5 * expected_s),
            futile_s=futile_s * 0.5 * expected_s / (1.0 - UNTRIED),
        )
        assert restarted(each, left_s=900.0) == due


@pytest.mark.parametrize("age_s", [10.0, 30.0, 1000.0])
def test_it_is_no_later_than_ski_rental_and_never_for_more_than_is_left(age_s: float) -> None:
    ski_rental = candidate(age_s=age_s, cost_s=0.1 * age_s)
    assert restarted(ski_rental, left_s=3.0 * age_s) == ["w0"]
    assert restarted(candidate(age_s=age_s, cost_s=0.1 * 5.0), left_s=5.0) == []


def test_whoever_is_slow_for_seconds_only_is_let_be() -> None:
    assert restarted(candidate(age_s=9.9, iterations=1000)) == []
    assert restarted(candidate(age_s=10.1, iterations=1000, cost_s=1.0)) == ["w0"]


@pytest.mark.parametrize(("age_s", "due"), [(2.9, []), (3.1, ["w0"])])
def test_whose_machine_has_cut_its_quota_is_slow_for_a_shorter_time(
    age_s: float, due: list[str]
) -> None:
    slow = candidate(age_s=age_s, cost_s=0.1)
    assert restarted(slow) == []
    cut = msgspec.structs.replace(slow.regime, is_cut=True)
    told = worth_while(job(), RestartRule(), [dataclasses.replace(slow, regime=cut)], 1e9, 10)
    assert [action.node for action in told] == due
    assert all("its machine has cut its cpu quota" in action.reason for action in told)


def test_seconds_that_no_report_tells_of_do_not_count() -> None:
    """On a busy machine a report is late: the newest one was of the slow start of the job."""
    slow = candidate(age_s=14.0, iterations=1000, cost_s=1.0)
    for reported_s, due in ((2.0, []), (10.1, ["w0"])):
        regime = msgspec.structs.replace(slow.regime, reported_s=reported_s)
        assert restarted(dataclasses.replace(slow, regime=regime)) == due


def outcomes(cured: int, futile: int, role: str = "worker") -> tuple[RestartOutcome, ...]:
    after = [1.0] * cured + [2.0] * futile
    return tuple(RestartOutcome(role=role, before=2.0, after=each) for each in after)


def test_restarts_that_cured_nothing_make_all_others_dearer() -> None:
    assert restarted(candidate(cost_s=60.0)) == ["w0"]
    assert restarted(candidate(cost_s=60.0), outcomes=outcomes(0, 5)) == []
    assert restarted(candidate(cost_s=60.0), outcomes=outcomes(20, 5)) == ["w0"]
    assert restarted(candidate(cost_s=60.0), outcomes=outcomes(0, 5, "server")) == ["w0"]


def test_a_cure_counts_as_far_as_the_node_would_not_have_healed_without_it() -> None:
    healing = [msgspec.structs.replace(each, weight=0.1) for each in outcomes(10, 0)]
    assert cures(healing, "worker") < cures(outcomes(10, 0), "worker")
    assert cures([], "worker") == UNTRIED


def test_spells_of_the_job_say_how_long_the_next_one_lasts() -> None:
    """Of many that came to 64 s none came to 128 s: one of 100 s is nearly over."""
    spells = LifeTable()
    for _ in range(50):
        spells = spells.with_spell(110.0)
    slow = candidate(age_s=100.0, cost_s=10.0)
    assert restarted(slow, left_s=1000.0) == ["w0"]
    assert restarted(slow, left_s=1000.0, worker_spells=spells) == []
    outlived = candidate(age_s=300.0, cost_s=10.0)
    assert restarted(outlived, left_s=1000.0, worker_spells=spells) == ["w0"]


@pytest.mark.parametrize(
    "unfit",
    [
        candidate(verified=False),
        candidate(iterations=19),
        candidate(restarts=3),
    ],
)
def test_who_is_not_known_well_or_was_restarted_often_is_let_be(unfit: Candidate) -> None:
    assert restarted(unfit) == []


def test_a_restart_that_did_not_help_makes_the_next_ones_dearer() -> None:
    expected_s = 0.1 * 100.0 * math.log1p(1e9 / 100.0)
    futile = candidate("w1", cost_s=0.6 * expected_s, restarts=1)
    assert restarted(futile) == []
    assert restarted(candidate("w0", cost_s=0.6 * expected_s)) == ["w0"]


def test_the_dearest_come_first_and_no_more_than_allowed() -> None:
    three = [candidate(f"w{index}", gain=gain) for index, gain in enumerate((0.1, 0.3, 0.2))]
    assert restarted(*three) == ["w1", "w2", "w0"]
    assert restarted(*three, limit=2) == ["w1", "w2"]
    assert restarted(*three, limit=-1) == []


def test_latency_is_what_the_platform_says_now() -> None:
    cost = RestartCost(pending_s=60.0, start_s=3.0, rebuild_s=2.0, restore_s=1.0, redo_s=9.0)
    assert latency_s(job(pending_s=None), cost) == 66.0
    assert latency_s(job(pending_s=5.0), cost) == 11.0


def server(node: str, server_s: float) -> ServerSeen:
    points = (Point(0, 100, server_s),)
    return ServerSeen(node=node, regime=Regime(since_s=0.0, iterations=100, points=points))


def test_servers_are_held_against_the_usual_one() -> None:
    servers = (server("s0", 0.1), server("s1", 0.1), server("s2", 0.6), ServerSeen(node="s3"))
    seen = job(servers=servers, server_restart=RestartCost(start_s=30.0, stall_s=2.0))
    (slow,) = server_candidates(seen, RestartRule(), step_s=2.0)
    assert (slow.node, slow.slowness, slow.gain, slow.cost_s) == (
        "s2",
        pytest.approx(6.0),
        pytest.approx(0.25),
        pytest.approx(2.0 + 30.0 / 4),
    ), "what training stands still, and what the start takes of four nodes"


def test_a_server_is_to_become_as_the_others_are() -> None:
    """Of two, the usual time is the mean, which the slow one is half of."""
    seen = job(servers=(server("s0", 0.1), server("s1", 1.9)))
    (slow,) = server_candidates(seen, RestartRule(), step_s=2.0)
    assert (slow.node, slow.slowness, slow.gain) == (
        "s1",
        pytest.approx(1.9),
        pytest.approx(0.9),
    )


def test_what_a_server_costs_until_its_successor_is_there_is_not_saved() -> None:
    servers = (server("s0", 0.1), server("s1", 0.1), server("s2", 0.6))
    for pending_s, replaced in ((0.0, ["s2"]), (3600.0, [])):
        seen = job(servers=servers, server_restart=RestartCost(stall_s=1.0), pending_s=pending_s)
        slow = server_candidates(seen, RestartRule(), step_s=2.0)
        due = worth_while(seen, RestartRule(), slow, left_s=2000.0, limit=1)
        assert [action.node for action in due] == replaced


def slow_worker(regime: Regime, stolen_s: float = 0.0) -> list[str]:
    """Which workers may be restarted; w0 takes twice the usual second."""
    pace = Pace(iterations=50, seconds=100.0, samples=1.0, compute_s=2.0, stolen_s=stolen_s)
    slow = WorkerSeen(node="w0", batch_size=1, short=pace, regime=regime)
    found = worker_candidates(
        job(workers=(slow,)),
        RestartRule(),
        slowness=np.array([2.0]),
        gain=np.array([0.5]),
        cost_s=np.array([1.0]),
        futile_s=np.array([0.0]),
    )
    return [each.node for each in found]


@pytest.mark.parametrize(("stolen_s", "restarted"), [(0.0, True), (0.3, True), (0.7, False)])
def test_whose_machine_does_other_work_is_let_be(stolen_s: float, restarted: bool) -> None:
    """It takes 1 s more than the usual 1 s: a restart does not give it a processor."""
    regime = Regime(since_s=0.0, iterations=100, points=(Point(1, 100, 2.0),))
    assert slow_worker(regime, stolen_s) == ["w0"] * restarted
    regime = msgspec.structs.replace(regime, stolen_s=stolen_s)
    assert slow_worker(regime) == ["w0"] * restarted, "the load has gone, the mean is still large"


@pytest.mark.parametrize("size", [1.0, 0.5])
@pytest.mark.parametrize(("newest_s", "restarted"), [(1.1, False), (1.9, True)])
def test_a_worker_that_is_slow_no_more_is_let_be(
    size: float, newest_s: float, restarted: bool
) -> None:
    """The mean of its regime stays at 2 s for a while after bursts of 3."""
    times_s = [3.0, 3.0, 3.0, newest_s, newest_s, newest_s]
    trail = tuple(
        Stretch(NOW_S - 10.0 + 2 * place, 2.0, 2, size, time_s, time_s)
        for place, time_s in enumerate(times_s)
    )
    points = (Point(1, 100, 2.0),)
    regime = Regime(since_s=NOW_S - 100.0, iterations=100, points=points, trail=trail)
    still = restarted or (size, newest_s) == (0.5, 1.1)
    assert slow_worker(regime) == ["w0"] * still, "half of a batch in the same time is no recovery"
    before = msgspec.structs.replace(regime, since_s=NOW_S)
    assert slow_worker(before) == ["w0"], "what was before the regime began says nothing"


def test_stretches_without_samples_say_nothing() -> None:
    """A member without a share has computed a batch that does not count."""
    trail = (Stretch(NOW_S, 10.0, 5, 0.0, 1.0, 1.0),)
    points = (Point(1, 100, 2.0),)
    regime = Regime(since_s=NOW_S - 100.0, iterations=100, points=points, trail=trail)
    assert slow_worker(regime) == ["w0"]


def test_no_server_is_replaced_while_another_is() -> None:
    servers = (server("s0", 0.1), server("s1", 0.1), server("s2", 0.6))
    assert server_candidates(job(servers=servers, replacing="s1"), RestartRule(), step_s=2.0) == []


def test_a_server_that_differs_by_chance_is_let_be() -> None:
    def noisy(scatter: float) -> list[Candidate]:
        points = (Point(0, 100, 0.13),)
        regime = Regime(since_s=0.0, iterations=100, points=points, scatter=scatter)
        slow = ServerSeen(node="s2", regime=regime)
        seen = job(servers=(server("s0", 0.1), server("s1", 0.1), slow))
        return server_candidates(seen, RestartRule(), step_s=2.0)

    assert len(noisy(0.5)) == 1
    assert not noisy(1.0)


def test_a_server_stands_still_for_all_of_its_restart_unless_measured_otherwise() -> None:
    servers = (server("s0", 0.1), server("s1", 0.1), server("s2", 0.6))
    restart = RestartCost(pending_s=50.0, start_s=30.0, redo_s=5.0)
    (slow,) = server_candidates(
        job(servers=servers, server_restart=restart), RestartRule(), step_s=2.0
    )
    assert slow.cost_s == 35.0


def test_who_takes_a_servers_place_waits_for_no_script() -> None:
    """The first servers of a job did: that is no part of what a replacement takes."""
    servers = (server("s0", 0.1), server("s1", 0.6))
    restart = RestartCost(pending_s=1.0, start_s=3.0, rebuild_s=50.0, restore_s=1.0, stall_s=0.5)
    seen = job(servers=servers, server_restart=restart, pending_s=2.0)
    (slow,) = server_candidates(seen, RestartRule(), step_s=2.0)
    assert (slow.cost_s, slow.delay_s) == (0.5 + 4.0 / 2, 2.0 + 4.0)
