"""Policies and the loop around them, against a made-up job in virtual time."""

from typing import Any

import msgspec
import pytest

from paceline.features.sizes.policy.observation import ResourceBounds
from paceline.features.sizes.policy.plan import ResourcePlan
from paceline.features.sizes.policy.planner import ResourcePolicy
from paceline.features.sizes.policy.registry import RESOURCES
from paceline.features.sizes.policy.steering import SteeringLine, steer
from paceline.features.sizes.policy.steering_state import (
    ApplyPlan,
    JudgePlan,
    SizeSeen,
    SteeringRules,
    SteeringState,
    TakeBack,
)
from paceline.policy.job_size import JobSize
from tests.unit.sizes.job_world import Job, World, best, speed

RULES = SteeringRules()
CORES = 20.0
JOBS = {
    "wide": Job(compute=0.3, threads=2.0, serve=0.25),
    "deep": Job(compute=2.0, threads=4.0, serve=0.3),
    "servers": Job(compute=0.3, threads=1.5, serve=1.0, server_threads=2.0),
    "uneven": Job(compute=1.0, serve=0.5, skew=0.6),
}
soak = pytest.mark.soak
FEW = ["deep", *(pytest.param(name, marks=soak) for name in ("servers", "wide", "uneven"))]
"""The job that CI looks at, and the others."""
ONE = JobSize(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)
MANY = JobSize(workers=24, servers=8, worker_cpu=0.5, server_cpu=1.0)


@pytest.mark.parametrize("seed", [1, *[pytest.param(seed, marks=soak) for seed in (2, 3, 4)]])
@pytest.mark.parametrize("begin", [ONE, MANY], ids=["from 1 + 1", "from far too many"])
@pytest.mark.parametrize("name", FEW)
def test_rm_comes_close_to_the_best_size(
    name: str, begin: JobSize, seed: int, request: pytest.FixtureRequest
) -> None:
    if (name, begin, seed) == ("uneven", ONE, 4):
        why = "0.877: the model foretells 3 % more, though 14 % are there (decision 44)"
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))
    world = World(JOBS[name], begin, CORES, seed=seed)
    world.run(RESOURCES.make("rm"), 60, RULES)
    assert world.per_s >= 0.9 * best(JOBS[name], CORES)[0]
    assert world.changes <= 10


SPLIT = Job(
    compute=0.0073,
    threads=2.0,
    serve=6e-6,
    message=1.6e-4,
    worker_own=0.084,
    server_own=0.1,
    fixed_s=1e-6,
    network_s=1e-6,
)
"""Nodes of parts of a core, where more nodes do less. Its figures are a fit to 18 sizes of a real
job of Wide & Deep, whose rates it has within 22 %."""
SPLIT_BOUNDS = ResourceBounds(
    cores=1.5, core_step=0.075, min_node_cores=0.075, max_workers=4, max_servers=2
)
SPLIT_BEST = JobSize(workers=1, servers=1, worker_cpu=1.2, server_cpu=0.3)
TINY = JobSize(workers=1, servers=1, worker_cpu=0.15, server_cpu=0.15)
CROWD = JobSize(workers=4, servers=2, worker_cpu=0.1125, server_cpu=0.525)


@pytest.mark.parametrize("seed", [1, *[pytest.param(seed, marks=soak) for seed in (2, 3, 4)]])
@pytest.mark.parametrize("begin", [TINY, CROWD], ids=["from 1 + 1", "from 4 + 2"])
def test_rm_comes_closer_where_more_nodes_do_less(begin: JobSize, seed: int) -> None:
    """On a busy machine: windows differ by 10 %, and in each tenth one a neighbour may begin."""
    most = speed(SPLIT, SPLIT_BEST).per_s
    world = World(SPLIT, begin, 1.5, 0.1, seed, bounds=SPLIT_BOUNDS, bursts=0.1)
    assert world.per_s < 0.15 * most
    world.run(RESOURCES.make("rm"), 60, RULES)
    assert world.per_s >= 0.8 * most
    assert world.changes <= 10


@soak
def test_a_trial_that_went_wrong_by_chance_does_not_hold_the_job_back() -> None:
    """What it measured then misleads the model still, but the job leaves where it began."""
    world = World(SPLIT, TINY, 1.5, 0.1, 1, bounds=SPLIT_BOUNDS)
    policy = RESOURCES.make("rm")
    while world.changes < 1:
        world.run(policy, 1, RULES)
    world.slowed = 12
    world.run(policy, 110, RULES)
    assert any(isinstance(act, TakeBack) for _, act in world.acts)
    assert world.per_s >= 0.5 * speed(SPLIT, SPLIT_BEST).per_s


@pytest.mark.parametrize(
    ("seed", "windows"), [(3, 100), *[pytest.param(seed, 200, marks=soak) for seed in (3, 4, 5, 6)]]
)
@pytest.mark.parametrize(
    "name", ["uneven", *[pytest.param(name, marks=soak) for name in ("deep", "servers", "wide")]]
)
def test_a_healthy_job_of_a_good_size_keeps_it(name: str, seed: int, windows: int) -> None:
    world = World(JOBS[name], best(JOBS[name], CORES)[1], CORES, noise=0.1, seed=seed)
    world.run(RESOURCES.make("rm"), windows, RULES)
    assert world.changes == 0
    assert "no_gain" in world.held() or "noise" in world.held()


def test_launches_that_are_refused_are_not_repeated_and_the_job_trains_on() -> None:
    world = World(JOBS["deep"], ONE, CORES, seed=1, refuses=True)
    world.run(RESOURCES.make("rm"), 60, RULES)
    ordered = [(at_s, act.plan.target) for at_s, act in world.acts if isinstance(act, ApplyPlan)]
    more = [target for _, target in ordered if target.workers + target.servers > 2]
    assert more  # something was refused
    last = {}
    for at_s, target in ordered:
        assert at_s - last.get(target, -RULES.avoid_s) >= RULES.avoid_s
        last[target] = at_s
    # What can be had without more nodes was taken.
    assert world.per_s >= speed(JOBS["deep"], ONE).per_s
    assert world.now_s > 600.0


class Misled(ResourcePolicy, frozen=True):
    """It believes that one worker is twice as fast as four."""

    def decide(self, seen: Any, history: Any) -> ResourcePlan:
        now = history.measured[-1].rate.per_s
        return ResourcePlan(
            target=msgspec.structs.replace(seen.size, workers=1),
            present_per_s=now,
            expected_per_s=2.0 * now,
        )


def test_a_plan_that_made_it_worse_is_taken_back() -> None:
    four = msgspec.structs.replace(ONE, workers=4)
    world = World(JOBS["deep"], four, CORES, noise=0.1, seed=1)
    world.run(Misled(), 60, RULES)
    assert world.size == four
    kinds = [type(act) for _, act in world.acts if not isinstance(act, type(world.acts[0][1]))]
    assert kinds[:4] == [ApplyPlan, JudgePlan, TakeBack, JudgePlan]
    assert world.sizes[:3] == [four, msgspec.structs.replace(four, workers=1), four]


def test_a_loop_is_the_same_when_it_is_taken_again_from_its_record() -> None:
    world = World(JOBS["wide"], ONE, CORES, seed=1)
    policy = RESOURCES.make("rm")
    world.run(policy, 30, RULES)
    fact = SizeSeen(seen=world.seen())
    before = msgspec.json.decode(msgspec.json.encode(world.state), type=SteeringState)
    assert before == world.state
    before = msgspec.structs.replace(before, asked_s=None, next_s=None)
    line = SteeringLine(
        before=before, fact=fact, rules=RULES, acts=steer(before, fact, RULES, policy)[1]
    )
    read = msgspec.json.decode(msgspec.json.encode(line), type=SteeringLine)
    assert read.acts_now(policy) == line.acts
