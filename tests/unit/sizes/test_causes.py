"""Each cause has a recorded case, and the algorithm that helps against it."""

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from paceline_experiments.baselines.es import ElasticScaling
from paceline_experiments.baselines.optimus import Optimus
from paceline_experiments.baselines.staged import SampleOptimiseAdjust

from paceline.features.sizes.policy.causes import ALGORITHMS, diagnose
from paceline.features.sizes.policy.history import MeasuredSize, PlanOutcome, SizingHistory
from paceline.features.sizes.policy.observation import NodeUse, ResourceBounds, ResourceObservation
from paceline.features.sizes.policy.plan import Hold, NodeTarget, ResourcePlan
from paceline.features.sizes.policy.policies.rm import DlroverRm
from paceline.features.sizes.policy.rates import JobRate
from paceline.features.sizes.policy.steering import steer
from paceline.features.sizes.policy.steering_state import (
    ApplyPlan,
    SizeSeen,
    SteeringRules,
    SteeringState,
)
from paceline.policy.job_size import JobSize
from tests.unit.sizes.job_world import Job, World, speed
from tests.unit.sizes.sizing import observation, windows
from tests.unit.sizes.test_throughput_model import seen as measured

SIZE = JobSize(workers=4, servers=3, worker_cpu=1.0, server_cpu=1.0)
RULES, RM = SteeringRules(), DlroverRm()


def servers(*used: float, slow: int = -1) -> tuple[NodeUse, ...]:
    return tuple(
        NodeUse(
            node=f"server-{number}",
            role="server",
            granted_cores=1.0,
            used_cores=cores,
            service_s=0.3 if number == slow else 0.1,
        )
        for number, cores in enumerate(used)
    )


def case(nodes: tuple[NodeUse, ...], **fields: Any) -> ResourceObservation:
    """A case as it is recorded: written, and read again."""
    workers = tuple(
        NodeUse(node=f"worker-{number}", role="worker", granted_cores=1.0, batch_s=0.5)
        for number in range(4)
    )
    bounds = ResourceBounds(cores=12.0, max_node_cores=4.0, has_other_machines=True)
    seen = replace(observation(size=SIZE, nodes=(*workers, *nodes), bounds=bounds), **fields)
    return msgspec.json.decode(msgspec.json.encode(seen), type=ResourceObservation)


def at(size: JobSize, per_s: float = 100.0, server_cores: float | None = None) -> MeasuredSize:
    rate = JobRate(per_s=per_s, error=1.0, windows=6)
    return MeasuredSize(size=size, batch=100.0, rate=rate, server_cores=server_cores)


CASES: list[tuple[ResourceObservation, str, str]] = [
    (case(servers(0.5, 0.97, 0.5)), "hot_server", "server-1"),
    (case(servers(0.5, 0.8, 0.5, slow=1)), "hot_server", "server-1"),
    (case(servers(0.5, 0.5, 0.5, slow=2)), "slow_server", "server-2"),
    (case(servers(0.95, 0.97, 0.96)), "few_server_cores", ""),
    (case(servers(0.2, 0.3, 0.2)), "idle_server_cores", ""),
    (case(servers(0.7, 0.8, 0.7)), "none", ""),
    (case(()), "none", ""),
]


@pytest.mark.parametrize(("seen", "cause", "node"), CASES)
def test_a_case_is_diagnosed_and_has_its_algorithm(
    seen: ResourceObservation, cause: str, node: str
) -> None:
    found, server = diagnose(seen)
    assert (found, server.node if server else "") == (cause, node)
    assert (found in ALGORITHMS) == (cause != "none")
    if cause != "none":
        plan = ALGORITHMS[found](seen, SizingHistory(measured=(at(SIZE),)), server)
        assert plan is not None
        assert plan.expected_per_s > 100.0
        assert not seen.bounds.excess(plan.target, seen.prices)


def test_a_hot_server_gets_its_share_of_what_all_workers_need() -> None:
    """DLRover section 4.2: s = min(used by it / used by all * alone * workers, C_max)."""
    seen = case(servers(0.5, 1.0, 0.5))
    alone = replace(SIZE, workers=1)
    history = SizingHistory(measured=(at(alone, server_cores=0.3), at(SIZE)))
    plan = ALGORITHMS["hot_server"](seen, history, diagnose(seen)[1])
    assert plan is not None
    assert plan.nodes == (NodeTarget(node="server-1", cpu=1.8),)  # 1.0 / 2.0 * 0.9 * 4
    most = replace(seen, bounds=ResourceBounds(max_node_cores=1.5))
    plan = ALGORITHMS["hot_server"](most, history, diagnose(most)[1])
    assert plan is not None
    assert plan.nodes[0].cpu == 1.5


def test_a_hot_server_gets_no_more_than_is_free() -> None:
    seen = case(servers(0.5, 1.0, 0.5))
    history = SizingHistory(measured=(at(SIZE),))
    for free, expected in ((0.5, 1.5), (0.05, None)):
        tight = replace(seen, bounds=ResourceBounds(cores=SIZE.cores + free))
        plan = ALGORITHMS["hot_server"](tight, history, diagnose(tight)[1])
        assert (plan.nodes[0].cpu if plan else None) == expected


@pytest.mark.parametrize(("free", "expected"), [(5.0, 1.0), (0.5, 0.5), (0.0, None)])
def test_a_server_with_less_than_its_peers_gets_what_they_have(
    free: float, expected: float | None
) -> None:
    nodes = [replace(each, used_cores=0.5) for each in servers(0.5, 0.5, 0.5)]
    nodes[1] = replace(nodes[1], granted_cores=0.05, used_cores=0.05)
    size = replace(SIZE, server_cpu=0.05)
    bounds = ResourceBounds(cores=SIZE.cores - 0.95 + free)
    seen = replace(case(tuple(nodes), bounds=bounds), size=size)
    now = replace(seen, windows=windows([99.0, 100.0, 101.0, 100.0, 100.0]))
    history = SizingHistory(measured=(at(size),))

    _, acts = steer(SteeringState(history=history, size=size), SizeSeen(seen=now), RULES, RM)

    plans = [act.plan for act in acts if isinstance(act, ApplyPlan)]
    assert any(plan.relieves == "hot_server" for plan in plans) == (expected is not None)
    if expected is not None:
        assert plans[0].nodes == (NodeTarget(node="server-1", cpu=expected),)
        assert plans[0].target == replace(size, server_cpu=expected)


def test_a_slow_machine_is_left_and_the_size_stays() -> None:
    seen = case(servers(0.5, 0.5, 0.5, slow=2))
    plan = ALGORITHMS["slow_server"](seen, SizingHistory(measured=(at(SIZE),)), diagnose(seen)[1])
    assert plan is not None
    assert plan.nodes == (NodeTarget(node="server-2", cpu=1.0, migrate=True),)
    assert plan.expected_per_s == pytest.approx(100.0 * 0.5 / 0.3)


def test_a_slow_machine_is_not_left_where_there_is_no_other() -> None:
    here = ResourceBounds(cores=12.0, max_node_cores=4.0)
    seen = case(servers(0.5, 0.5, 0.5, slow=2), bounds=here)
    rate = at(SIZE, server_cores=0.5)
    done = tuple(
        PlanOutcome(
            origin=SIZE,
            target=SIZE,
            relieves=relieves,
            before_per_s=1.0,
            expected_per_s=1.0,
            after_per_s=1.0,
            verdict="better",
        )
        for relieves in ("server_work", "compute")
    )
    history = SizingHistory(measured=(replace(rate, worker_cores=0.5),), outcomes=done)
    assert ALGORITHMS["slow_server"](seen, history, diagnose(seen)[1]) is None
    held = SampleOptimiseAdjust().decide(seen, history)
    assert isinstance(held, Hold)
    assert held.detail == "a server is slow, and there is no other machine"


def test_workers_for_idle_server_cores_are_bounded_by_what_is_left() -> None:
    history = SizingHistory(measured=(at(SIZE),))
    seen = case(servers(0.2, 0.3, 0.2))
    plan = ALGORITHMS["idle_server_cores"](seen, history, None)
    assert plan is not None
    assert plan.target.workers == 9  # five more cores are free
    hot = replace(seen.nodes[4], granted_cores=2.5)
    other = replace(seen, nodes=(*seen.nodes[:4], hot, *seen.nodes[5:]))
    plan = ALGORITHMS["idle_server_cores"](other, history, None)
    assert plan is not None
    assert plan.target.workers == 7  # a server of its own size has one and a half of them
    soon = replace(seen, samples_total=13_600)  # 36 batches are left
    plan = ALGORITHMS["idle_server_cores"](soon, history, None)
    assert plan is not None
    assert plan.target.workers == 6


def test_rm_gives_a_hot_server_more_cores_in_a_closed_loop() -> None:
    from paceline.features.sizes.policy.registry import RESOURCES

    job = Job(compute=0.2, serve=0.4, skew=0.5)
    size = JobSize(workers=8, servers=4, worker_cpu=1.0, server_cpu=1.0)
    world = World(job, size, 14.0, seed=1, first_cpu=0.05)
    before = world.per_s
    world.run(RESOURCES.make("rm"), 8, SteeringRules())
    assert world.per_s > 1.5 * before


def test_es_adds_workers_until_they_bring_too_little() -> None:
    def asked(*measured: MeasuredSize) -> ResourcePlan | Hold:
        seen = observation(size=measured[-1].size, bounds=ResourceBounds(cores=20.0))
        return ElasticScaling().decide(seen, SizingHistory(measured=measured))

    two = replace(SIZE, workers=2)
    first = asked(at(two, 50.0))
    assert isinstance(first, ResourcePlan)
    assert first.target.workers == 6
    good, bad = at(replace(two, workers=6), 120.0), at(replace(two, workers=6), 60.0)
    more = asked(at(two, 50.0), good)
    assert isinstance(more, ResourcePlan)
    assert more.target.workers == 10
    assert isinstance(asked(at(two, 50.0), bad), Hold)
    full = asked(at(replace(two, workers=16), 400.0))
    assert isinstance(full, ResourcePlan)
    assert full.target.workers == 17


def test_optimus_learns_from_two_steps_and_takes_the_larger_gain() -> None:
    job, draw = Job(compute=1.0, serve=0.2), random.Random(2)
    now = JobSize(workers=2, servers=1, worker_cpu=1.0, server_cpu=1.0)
    sizes = [replace(now, workers=1), now, replace(now, servers=2)]
    seen = observation(size=now)
    few = Optimus().decide(seen, SizingHistory(measured=(measured(job, now, draw),)))
    assert isinstance(few, ResourcePlan)
    assert few.aim == "learn"
    all_of = tuple(measured(job, each, draw) for each in sizes)
    plan = Optimus().decide(seen, SizingHistory(measured=all_of))
    assert isinstance(plan, ResourcePlan)
    assert plan.target == replace(now, workers=3)


def test_three_stages_reach_what_the_used_cores_suggest() -> None:
    job = Job(compute=2.0, threads=2.0, serve=0.4)
    begin = JobSize(workers=1, servers=1, worker_cpu=4.0, server_cpu=1.0)
    world = World(job, begin, 20.0, seed=1)
    world.run(SampleOptimiseAdjust(), 40, SteeringRules())
    assert world.changes >= 2
    assert world.size.cores <= 20.0 + 1e-6
    assert world.per_s > 4.0 * speed(job, begin).per_s
