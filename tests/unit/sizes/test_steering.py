"""The loop around a resource policy: one change at a time, judged, taken back, not repeated."""

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from paceline.features.sizes.policy.history import AvoidedSize, SizingHistory
from paceline.features.sizes.policy.observation import NodeUse, ResourceBounds, ResourceObservation
from paceline.features.sizes.policy.plan import Hold, NodeTarget, ResourcePlan
from paceline.features.sizes.policy.planner import ResourcePolicy
from paceline.features.sizes.policy.policies.none import KeepSize
from paceline.features.sizes.policy.steering import SteeringLine, steer
from paceline.features.sizes.policy.steering_state import (
    ApplyPlan,
    JudgePlan,
    ResizeFailed,
    ResizeInEffect,
    SizeSeen,
    SteeringRules,
    SteeringState,
    TakeBack,
)
from paceline.policy.job_size import JobSize
from tests.unit.sizes.sizing import SMALL, observation

RULES = SteeringRules(settle_s=10.0, between_s=20.0, avoid_s=300.0)
LARGE = replace(SMALL, workers=4)


class Fixed(ResourcePolicy, frozen=True):
    """Always the same plan."""

    plan: ResourcePlan
    soon: ResourcePlan | None = None

    def decide(self, seen: ResourceObservation, history: SizingHistory) -> ResourcePlan | Hold:
        return self.plan

    def urgent(self, seen: ResourceObservation, history: SizingHistory) -> ResourcePlan | None:
        return self.soon


def plan(target: JobSize = LARGE, **fields: Any) -> ResourcePlan:
    made = ResourcePlan(target=target, present_per_s=100.0, expected_per_s=350.0, cost_s=2.0)
    return replace(made, **fields)


def look(state: SteeringState, policy: ResourcePolicy, **fields: Any) -> Any:
    return steer(state, SizeSeen(seen=observation(**fields)), RULES, policy)


def held(acts: tuple[Any, ...]) -> str:
    assert len(acts) == 1
    assert isinstance(acts[0], Hold)
    return acts[0].cause


def ordered(policy: ResourcePolicy, **fields: Any) -> SteeringState:
    """The state in which a plan is under way, since 50 s."""
    state, acts = look(SteeringState(), policy, **fields)
    assert [type(act) for act in acts] == [ApplyPlan]
    return state


def in_effect(policy: ResourcePolicy, target: JobSize = LARGE) -> SteeringState:
    """The state after a plan took effect at 60 s; windows count from 70 s on."""
    state = ordered(policy)
    return steer(state, ResizeInEffect(now_s=60.0, size=target), RULES, policy)[0]


def test_a_plan_is_ordered_when_the_rate_is_known() -> None:
    policy = Fixed(plan=plan())
    _, acts = look(SteeringState(), policy, rates=[100.0] * 4)
    assert held(acts) == "too_little_measured"
    state, acts = look(SteeringState(), policy)
    assert acts == (ApplyPlan(plan=plan(), origin=SMALL),)
    assert state.history.changes == 1
    assert [each.size for each in state.history.measured] == [SMALL]


def test_cores_that_one_node_has_beyond_its_peers_count() -> None:
    """They do not if the plan gives the whole role as many, or the node itself."""
    hot = NodeUse(node="server-0", role="server", granted_cores=1.8)
    bounds = ResourceBounds(cores=5.5)
    fields: dict[str, Any] = {"nodes": (hot,), "bounds": bounds}
    _, acts = look(SteeringState(), Fixed(plan=plan()), **fields)
    assert held(acts) == "bounds"
    assert acts[0].detail == "cores: 5.8, and the limit is 5.5"
    own = plan(nodes=(NodeTarget(node="server-0", cpu=1.5),))
    _, acts = look(SteeringState(), Fixed(plan=own), **fields)
    assert [type(act) for act in acts] == [ApplyPlan]


def test_a_taking_back_gives_each_node_what_it_had() -> None:
    uneven = tuple(
        NodeUse(node=f"worker-{number}", role="worker", granted_cores=cores)
        for number, cores in enumerate((1.0, 1.5))
    )
    policy = Fixed(plan=plan())
    state = ordered(policy, nodes=uneven)
    state = steer(state, ResizeInEffect(now_s=60.0, size=LARGE), RULES, policy)[0]
    _, acts = look(state, policy, size=LARGE, rates=[100.0] * 7 + [60.0] * 5, nodes=uneven)
    (undo,) = [act for act in acts if isinstance(act, TakeBack)]
    assert {each.node: each.cpu for each in undo.nodes} == {"worker-0": 1.0, "worker-1": 1.5}


def test_one_change_is_under_way_at_a_time() -> None:
    policy = Fixed(plan=plan())
    _, acts = look(ordered(policy), policy, rates=[100.0] * 9)
    assert held(acts) == "change_under_way"


def test_windows_before_a_change_has_settled_do_not_count() -> None:
    policy = Fixed(plan=plan())
    state = in_effect(policy)
    _, acts = look(state, policy, size=LARGE, rates=[100.0] * 7 + [300.0] * 4)
    assert held(acts) == "settling"
    # Windows from 70 s on are five now.
    state, acts = look(state, policy, size=LARGE, rates=[100.0] * 7 + [300.0] * 5)
    assert isinstance(acts[0], JudgePlan)
    assert acts[0].after.per_s == pytest.approx(300.0)
    assert acts[0].verdict == "better"
    assert state.history.outcomes[0].after_per_s == pytest.approx(300.0)


def test_a_change_that_took_long_settles_as_long() -> None:
    policy = Fixed(plan=plan())
    state = steer(ordered(policy), ResizeInEffect(now_s=150.0, size=LARGE), RULES, policy)[0]
    assert state.since_s == 250.0


def test_a_plan_that_made_it_worse_is_taken_back_and_not_repeated() -> None:
    policy = Fixed(plan=plan())
    state, acts = look(in_effect(policy), policy, size=LARGE, rates=[100.0] * 7 + [60.0] * 5)
    judged, undo = acts
    assert isinstance(judged, JudgePlan)
    assert judged.verdict == "worse"
    assert isinstance(undo, TakeBack)
    assert (undo.target, undo.plan) == (SMALL, plan())
    assert state.history.changes == 2
    state = steer(state, ResizeInEffect(now_s=125.0, size=SMALL), RULES, policy)[0]
    state, acts = look(state, policy, begin_s=140.0)
    assert [type(act) for act in acts] == [JudgePlan, Hold]  # it pauses after a failure
    assert acts[0].back
    assert acts[0].verdict == "better"
    _, acts = look(state, policy, begin_s=200.0)
    assert held(acts) == "refused_before"
    _, acts = look(state, policy, begin_s=400.0)
    assert isinstance(acts[0], ApplyPlan)


def test_a_plan_that_was_not_what_slowed_the_job_may_come_again() -> None:
    policy = Fixed(plan=plan())
    state, _ = look(in_effect(policy), policy, size=LARGE, rates=[100.0] * 7 + [60.0] * 5)
    state = steer(state, ResizeInEffect(now_s=125.0, size=SMALL), RULES, policy)[0]
    state, acts = look(state, policy, begin_s=140.0, rates=[50.0] * 5)
    assert acts[0].verdict != "better"
    assert not state.history.avoided


def test_a_loss_within_the_noise_is_not_taken_back() -> None:
    policy = Fixed(plan=plan())
    draw = random.Random(3)
    after = [draw.gauss(97.0, 12.0) for _ in range(24)]
    _, acts = look(in_effect(policy), policy, size=LARGE, rates=[100.0] * 7 + after)
    assert isinstance(acts[0], JudgePlan)
    assert acts[0].verdict == "as_before"


def test_a_noisy_plan_is_judged_later() -> None:
    policy = Fixed(plan=plan())
    noisy = [100.0] * 7 + [70.0, 130.0, 60.0, 140.0, 95.0]
    _, acts = look(in_effect(policy), policy, size=LARGE, rates=noisy)
    assert held(acts) == "settling"


def test_an_allowed_loss_is_no_reason_to_take_back() -> None:
    cheap = plan(aim="cheaper", expected_per_s=98.0, cost_per_hour=-2.0, allowed_loss=0.05)
    policy = Fixed(plan=cheap)
    _, acts = look(in_effect(policy), policy, size=LARGE, rates=[100.0] * 7 + [94.0] * 5)
    assert acts[0].verdict == "as_before"


@pytest.mark.parametrize("why", ["refused", "pending"])
def test_what_was_refused_is_not_asked_again_for_a_while_and_then_for_longer(why: Any) -> None:
    policy = Fixed(plan=plan())
    state = ordered(policy)
    for begin_s, waits_s in ((60.0, 300.0), (1000.0, 600.0)):
        failed = ResizeFailed(now_s=begin_s, size=SMALL, why=why)
        state = steer(state, failed, RULES, policy)[0]
        (avoided,) = state.history.avoided
        assert avoided.until_s == begin_s + waits_s
        further = Fixed(plan=plan(replace(LARGE, workers=5)))
        _, acts = look(state, further, begin_s=begin_s + 200.0)
        assert held(acts) == "refused_before"
        less = Fixed(plan=plan(replace(LARGE, workers=2)))
        _, acts = look(state, less, begin_s=begin_s + 200.0)
        assert isinstance(acts[0], ApplyPlan)
        state, acts = look(state, policy, begin_s=begin_s + 700.0)
        assert isinstance(acts[0], ApplyPlan)


def test_a_job_with_absent_nodes_is_left_alone() -> None:
    policy = Fixed(plan=plan())
    state, acts = look(SteeringState(), policy, absent=1)
    assert held(acts) == "nodes_absent"
    # What was measured meanwhile says nothing of the size.
    _, acts = look(state, policy, rates=[100.0] * 9)
    assert held(acts) == "too_little_measured"


def test_a_change_by_hand_begins_again() -> None:
    policy = Fixed(plan=plan())
    state = in_effect(policy)
    other = replace(SMALL, workers=2)
    state, acts = look(state, policy, size=other, rates=[100.0] * 20)
    assert held(acts) == "too_little_measured"
    assert state.trial is None
    assert state.size == other


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        (plan(expected_per_s=104.0), "noise"),
        (plan(expected_per_s=150.0, expected_error=0.5), "noise"),
        (plan(confidence=0.1), "low_confidence"),
        (plan(SMALL), "no_gain"),
        (plan(replace(SMALL, workers=30)), "bounds"),
        (plan(aim="cheaper", expected_per_s=80.0, cost_per_hour=-2.0), "not_worth_its_cost"),
    ],
)
def test_a_plan_that_is_not_worth_it_is_held(asked: ResourcePlan, cause: str) -> None:
    _, acts = look(SteeringState(), Fixed(plan=asked))
    assert held(acts) == cause
    assert acts[0].passed == asked


def test_a_noisy_job_needs_a_larger_gain() -> None:
    noisy = [70.0, 130.0, 60.0, 140.0, 100.0]
    _, acts = look(SteeringState(), Fixed(plan=plan(expected_per_s=115.0)), rates=noisy)
    assert held(acts) == "noise"
    _, acts = look(SteeringState(), Fixed(plan=plan(expected_per_s=115.0)))
    assert isinstance(acts[0], ApplyPlan)


def test_a_change_must_pay_before_the_job_ends() -> None:
    policy = Fixed(plan=plan(expected_per_s=150.0, cost_s=50.0))
    # 100 s are left: 150 samples/s for 50 s are fewer than 100 for 100 s.
    _, acts = look(SteeringState(), policy, samples_total=20_000)
    assert held(acts) == "not_worth_its_cost"
    _, acts = look(SteeringState(), policy, samples_total=40_000)
    assert isinstance(acts[0], ApplyPlan)
    _, acts = look(SteeringState(), policy, samples_total=12_000)
    assert held(acts) == "ends_soon"


def test_a_rate_that_drifts_is_waited_for() -> None:
    rising = [50.0, 60.0, 70.0, 80.0, 90.0, 100.0]
    _, acts = look(SteeringState(), Fixed(plan=plan()), rates=rising)
    assert held(acts) == "not_settled"


def test_probes_are_few() -> None:
    policy = Fixed(plan=plan(aim="learn", expected_per_s=100.0))
    few = SteeringState(history=SizingHistory(probes=3))
    state, acts = look(few, policy)
    assert isinstance(acts[0], ApplyPlan)
    assert state.history.probes == 4
    many = SteeringState(history=SizingHistory(probes=4))
    _, acts = look(many, policy)
    assert held(acts) == "low_confidence"


def test_an_urgent_plan_waits_for_nothing() -> None:
    more = plan(replace(SMALL, server_memory=1 << 30), aim="safe")
    policy = Fixed(plan=plan(), soon=more)
    state, acts = look(SteeringState(), policy, rates=[100.0], absent=1)
    assert acts == (ApplyPlan(plan=more, origin=SMALL),)
    state = steer(state, ResizeInEffect(now_s=20.0, size=more.target), RULES, policy)[0]
    quiet = Fixed(plan=plan(more.target))
    state, acts = look(state, quiet, size=more.target, begin_s=30.0)
    assert held(acts) == "no_gain"  # the policy is asked again: no trial by speed came before
    assert state.trial is None


def test_a_plan_for_one_node_is_bounded_and_remembered() -> None:
    hot = NodeTarget(node="server-0", cpu=3.0)
    nodes = (NodeUse(node="server-0", role="server", granted_cores=1.0),)
    policy = Fixed(plan=plan(SMALL, nodes=(hot,), relieves="hot_server"))
    state, acts = look(SteeringState(), policy, nodes=nodes)
    assert isinstance(acts[0], ApplyPlan)
    too_large = Fixed(plan=plan(SMALL, nodes=(replace(hot, cpu=30.0),)))
    _, acts = look(SteeringState(), too_large, nodes=nodes)
    assert held(acts) == "bounds"
    state = steer(state, ResizeInEffect(now_s=60.0, size=SMALL), RULES, policy)[0]
    state, acts = look(state, policy, nodes=nodes, rates=[100.0] * 7 + [60.0] * 5)
    assert acts[1].nodes == (NodeTarget(node="server-0", cpu=1.0),)
    assert state.history.avoids(SMALL, 130.0, ("server-0",))
    assert not state.history.avoids(SMALL, 130.0, ("server-1",))
    assert not state.history.avoids(LARGE, 130.0)


def test_a_size_that_was_slower_is_avoided_and_one_far_from_it_is_not() -> None:
    origin = JobSize(workers=1, servers=1, worker_cpu=0.15, server_cpu=0.15)
    tried = replace(origin, workers=4, worker_cpu=0.3)
    fewer, more = replace(tried, workers=2), replace(tried, workers=8)
    close = replace(tried, workers=5)

    def avoids(why: str) -> list[bool]:
        one = AvoidedSize(origin=origin, target=tried, until_s=10.0, why=why)
        return [one.covers(size) for size in (tried, close, more, fewer)]

    assert avoids("worse") == [True, True, False, False]
    assert avoids("refused") == [True, True, True, False]


def test_a_step_can_be_taken_again_from_its_record() -> None:
    policy = Fixed(plan=plan())
    before, _ = look(in_effect(policy), policy, size=LARGE, rates=[100.0] * 8)
    fact = SizeSeen(seen=observation(size=LARGE, rates=[100.0] * 7 + [60.0] * 5))
    _, acts = steer(before, fact, RULES, policy)
    line = SteeringLine(before=before, fact=fact, rules=RULES, acts=acts)
    read = msgspec.json.decode(msgspec.json.encode(line), type=SteeringLine)
    assert read == line
    assert read.acts_now(policy) == acts
    fresh = SteeringLine(before=SteeringState(), fact=fact, rules=RULES)
    assert msgspec.json.decode(msgspec.json.encode(fresh), type=SteeringLine) == fresh


def test_the_policy_that_keeps_the_size_says_so() -> None:
    _, acts = look(SteeringState(), KeepSize())
    assert held(acts) == "not_asked"
    assert acts[0].describe() == "the policy does not change sizes"
