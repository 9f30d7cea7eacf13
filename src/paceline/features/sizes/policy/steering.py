"""The loop around a resource policy: facts in, the job's next state and acts out.

One change is under way at a time. After it took effect the job settles; then what the plan expected
is held against what is measured, and a plan that made the job slower is taken back. A change that
was refused, stays pending or made things worse is not tried again for a while, each time for twice
as long. A plan is followed only if its gain exceeds the noise, what is not known of the target, and
the cost of the change, so a job that has a good size keeps it.

Pure: `steer` is a function of the state and one fact. The state is a value, so it can be journalled
and a log can be replayed line by line.

Reference: DLRover sections 4.2 and 4.3 (at least 60 s between two changes), DLRover-RM section 4.3.
Differs: neither paper holds a plan against what it brought, or takes one back.
"""

import math
from typing import assert_never

import msgspec
from msgspec.structs import replace

from paceline.features.sizes.policy.history import (
    AvoidedSize,
    MeasuredSize,
    PlanOutcome,
    SizingHistory,
)
from paceline.features.sizes.policy.observation import NodeUse, ResourceObservation
from paceline.features.sizes.policy.plan import Hold, HoldCause, NodeTarget, ResourcePlan
from paceline.features.sizes.policy.planner import ResourcePolicy
from paceline.features.sizes.policy.rates import JobRate, rate_since
from paceline.features.sizes.policy.steering_state import (
    AnySteeringAct,
    AnySteeringFact,
    ApplyPlan,
    ChangeUnderWay,
    JudgePlan,
    PlanOnTrial,
    ResizeFailed,
    ResizeInEffect,
    SizeSeen,
    SteeringRules,
    SteeringState,
    TakeBack,
    Verdict,
)

_MOST_DOUBLINGS = 6


class SteeringLine(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one step of the loop, from which the step can be taken again."""

    t: float = 0.0
    """Unix time at which it was written."""
    policy: str = ""
    """The name of the policy around which it was taken, and its parameters."""
    args: dict[str, str] = {}
    before: SteeringState
    fact: AnySteeringFact
    rules: SteeringRules
    acts: tuple[AnySteeringAct, ...] = ()

    def acts_now(self, policy: ResourcePolicy) -> tuple[AnySteeringAct, ...]:
        """How the loop would act today, around any policy."""
        return steer(self.before, self.fact, self.rules, policy)[1]


def steer(
    state: SteeringState, fact: AnySteeringFact, rules: SteeringRules, policy: ResourcePolicy
) -> tuple[SteeringState, tuple[AnySteeringAct, ...]]:
    """Take in one fact; return the next state and what is to be done."""
    match fact:
        case SizeSeen(seen=seen):
            return _seen(state, seen, rules, policy)
        case ResizeInEffect():
            return _in_effect(state, fact, rules), ()
        case ResizeFailed():
            return _failed(state, fact, rules), ()
        case _:
            assert_never(fact)


def _in_effect(state: SteeringState, fact: ResizeInEffect, rules: SteeringRules) -> SteeringState:
    """Let the change settle."""
    change = state.change
    took_s = fact.now_s - change.begun_s if change else 0.0
    return replace(
        state,
        size=fact.size,
        since_s=fact.now_s + max(rules.settle_s, took_s),
        next_s=fact.now_s + max(rules.between_s, took_s) * 2.0**state.failures,
        asked_s=None,
        change=None,
        trial=PlanOnTrial(change=change, effect_s=fact.now_s) if change else None,
    )


def _failed(state: SteeringState, fact: ResizeFailed, rules: SteeringRules) -> SteeringState:
    """Remember what could not be had."""
    change = state.change
    after = replace(
        state,
        size=fact.size,
        since_s=fact.now_s + rules.settle_s,
        asked_s=None,
        change=None,
        trial=None,
        failures=min(state.failures + 1, _MOST_DOUBLINGS),
    )
    after = replace(after, next_s=fact.now_s + rules.between_s * 2.0**after.failures)
    if change is None:
        return after
    history = _avoiding(state.history, change, fact.why, fact.now_s, rules)
    return replace(after, history=history)


def _avoiding(
    history: SizingHistory, change: ChangeUnderWay, why: str, now_s: float, rules: SteeringRules
) -> SizingHistory:
    nodes = change.plan.node_names
    times = history.times_avoided(change.origin, change.plan.target, nodes) + 1
    until_s = now_s + rules.avoid_s * 2.0 ** min(times - 1, _MOST_DOUBLINGS)
    return history.with_avoided(
        AvoidedSize(
            origin=change.origin,
            target=change.plan.target,
            until_s=until_s,
            why=why,
            nodes=nodes,
            times=times,
        )
    )


def _seen(
    state: SteeringState, seen: ResourceObservation, rules: SteeringRules, policy: ResourcePolicy
) -> tuple[SteeringState, tuple[AnySteeringAct, ...]]:
    """Look at the job: judge, then decide."""
    if state.change is not None:
        return state, (Hold(cause="change_under_way"),)
    state = _kept_up(state, seen, rules)
    plan = policy.urgent(seen, state.history)
    if plan is not None and not _unfit(plan, seen, state.history):
        return _ordered(state, plan, seen, None)
    if seen.absent:
        since_s = max(state.since_s or seen.now_s, seen.now_s)
        state = replace(state, since_s=since_s)
        return state, (Hold(cause="nodes_absent", detail=f"{seen.absent} of them"),)
    rate = rate_since(seen.windows, state.since_s, rules.least_windows)
    if rate is None:
        cause: HoldCause = "settling" if state.trial else "too_little_measured"
        return state, (Hold(cause=cause),)
    state = replace(state, history=state.history.with_measured(_measured(seen, rate)))
    acts: tuple[AnySteeringAct, ...] = ()
    if state.trial is not None:
        state, acts = _tried(state, state.trial, seen, rate, rules)
        if state.trial is not None or state.change is not None:
            return state, acts
    state, more = _decided(state, seen, rate, rules, policy)
    return state, (*acts, *more)


def _kept_up(
    state: SteeringState, seen: ResourceObservation, rules: SteeringRules
) -> SteeringState:
    """Begin again if the size is not the one that was seen last: a person has changed it."""
    if state.size is not None and not state.size.differing(seen.size):
        return state
    if state.size is None:
        return replace(state, size=seen.size)
    since_s = seen.now_s + rules.settle_s
    return replace(state, size=seen.size, since_s=since_s, trial=None)


def _measured(seen: ResourceObservation, rate: JobRate) -> MeasuredSize:
    return MeasuredSize(
        size=seen.size,
        batch=seen.batch_at(seen.size.workers),
        rate=rate,
        parts=seen.parts,
        worker_cores=_mean_cores(seen.of_role("worker")),
        server_cores=_mean_cores(seen.of_role("server")),
        skew=_skew(seen.of_role("server")),
        at_s=seen.now_s,
    )


def _skew(nodes: tuple[NodeUse, ...]) -> float | None:
    used = [each.used_cores for each in nodes if each.used_cores is not None]
    return max(used) * len(used) / sum(used) if used and sum(used) else None


def _mean_cores(nodes: tuple[NodeUse, ...]) -> float | None:
    used = [each.used_cores for each in nodes if each.used_cores is not None]
    return sum(used) / len(used) if used else None


def _tried(
    state: SteeringState,
    trial: PlanOnTrial,
    seen: ResourceObservation,
    after: JobRate,
    rules: SteeringRules,
) -> tuple[SteeringState, tuple[AnySteeringAct, ...]]:
    """Hold a change that took effect against what it promised."""
    change = trial.change
    if change.before is None:  # an urgent plan: it is not about speed
        return replace(state, trial=None), ()
    verdict = judge(change.before, after, change.plan, rules)
    if verdict == "open":
        return state, (Hold(cause="settling", detail="the last plan is not judged yet"),)
    judged = JudgePlan(
        plan=change.plan,
        origin=change.origin,
        before=change.before,
        after=after,
        verdict=verdict,
        back=change.back,
    )
    state = replace(state, trial=None)
    if change.back:
        return _back_again(state, change, verdict), (judged,)
    history = state.history.with_outcome(
        PlanOutcome(
            origin=change.origin,
            target=change.plan.target,
            relieves=change.plan.relieves,
            before_per_s=change.before.per_s,
            expected_per_s=change.plan.expected_per_s,
            after_per_s=after.per_s,
            verdict=verdict,
            at_s=seen.now_s,
        )
    )
    if verdict != "worse":
        helped = verdict == "better" or change.plan.aim != "faster"
        failures = 0 if helped else min(state.failures + 1, _MOST_DOUBLINGS)
        return replace(state, history=history, failures=failures), (judged,)
    history = _avoiding(history, change, "worse", seen.now_s, rules)
    back = replace(change, before=after, begun_s=seen.now_s, back=True)
    state = replace(
        state,
        history=replace(history, changes=history.changes + 1),
        change=back,
        failures=min(state.failures + 1, _MOST_DOUBLINGS),
    )
    undo = TakeBack(
        plan=change.plan,
        target=change.origin,
        nodes=change.nodes_before,
        before=change.before,
        after=after,
    )
    return state, (judged, undo)


def _back_again(state: SteeringState, change: ChangeUnderWay, verdict: Verdict) -> SteeringState:
    """After a taking back: if it did not help, the plan was not what made the job slower."""
    if verdict == "better":
        return state
    history = state.history.without_avoided(
        change.origin, change.plan.target, change.plan.node_names
    )
    return replace(state, history=history)


def judge(before: JobRate, after: JobRate, plan: ResourcePlan, rules: SteeringRules) -> Verdict:
    """Whether a rate differs from the one before by more than noise; ``open``: not to be said yet.

    Args:
        before: when the plan was ordered.
        after: since it settled.
        plan: it may allow a loss.
        rules: the loop's constants.
    """
    error = rules.certainty * math.hypot(before.error, after.error)
    least = before.per_s * (1.0 - plan.allowed_loss)
    slack = max(error, rules.harm * before.per_s)
    if after.per_s < least - slack:
        return "worse" if after.settled or after.windows >= rules.most_windows else "open"
    if after.per_s > before.per_s + error:
        return "better"
    is_precise = error <= rules.min_gain * before.per_s
    return "as_before" if is_precise or after.windows >= rules.most_windows else "open"


def _decided(
    state: SteeringState,
    seen: ResourceObservation,
    rate: JobRate,
    rules: SteeringRules,
    policy: ResourcePolicy,
) -> tuple[SteeringState, tuple[AnySteeringAct, ...]]:
    """Ask the policy, if it is time, and look at its plan."""
    if state.next_s is not None and seen.now_s < state.next_s:
        cause: HoldCause = "pause_after_failure" if state.failures else "settling"
        return state, (Hold(cause=cause, detail=f"{state.next_s - seen.now_s:.0f} s more"),)
    if not rate.settled and rate.windows < rules.most_windows:
        return state, (Hold(cause="not_settled"),)
    if state.asked_s is not None and seen.now_s < state.asked_s + rules.ask_s:
        return state, (Hold(cause="asked_recently"),)
    state = replace(state, asked_s=seen.now_s)
    answer = policy.decide(seen, state.history)
    if isinstance(answer, Hold):
        return state, (answer,)
    refusal = _refusal(answer, seen, state, rate, rules)
    if refusal is not None:
        return state, (refusal,)
    return _ordered(state, answer, seen, rate)


def _ordered(
    state: SteeringState, plan: ResourcePlan, seen: ResourceObservation, rate: JobRate | None
) -> tuple[SteeringState, tuple[AnySteeringAct, ...]]:
    change = ChangeUnderWay(
        plan=plan,
        origin=seen.size,
        before=rate,
        begun_s=seen.now_s,
        nodes_before=_nodes_now(plan, seen),
    )
    history = replace(
        state.history,
        changes=state.history.changes + 1,
        probes=state.history.probes + (plan.aim == "learn"),
    )
    after = replace(state, change=change, trial=None, history=history)
    return after, (ApplyPlan(plan=plan, origin=seen.size),)


def _nodes_now(plan: ResourcePlan, seen: ResourceObservation) -> tuple[NodeTarget, ...]:
    """Return the sizes of nodes which the job's size will not tell once the plan is done."""
    uneven = [
        role
        for role in ("worker", "server")
        if len({each.granted_cores for each in seen.of_role(role)}) > 1
    ]
    return tuple(
        NodeTarget(node=each.node, cpu=each.granted_cores, memory=each.granted_bytes)
        for each in seen.nodes
        if each.node in plan.node_names or each.role in uneven
    )


def _unfit(plan: ResourcePlan, seen: ResourceObservation, history: SizingHistory) -> Hold | None:
    """Why a plan cannot be ordered, whatever it brings; None: it can."""
    if not plan.nodes and not plan.target.differing(seen.size):
        return Hold(cause="no_gain", passed=plan)
    if excess := seen.bounds.excess(plan.target, seen.prices, _extra_cores(plan, seen)):
        return Hold(cause="bounds", detail=excess, passed=plan)
    avoided = history.avoids(plan.target, seen.now_s, plan.node_names)
    if avoided is not None:
        detail = f"{avoided.why}; again in {avoided.until_s - seen.now_s:.0f} s"
        return Hold(cause="refused_before", detail=detail, passed=plan)
    return None


def _extra_cores(plan: ResourcePlan, seen: ResourceObservation) -> float:
    """Cores of single nodes beyond what the target grants each of their role.

    A node that the plan does not name keeps what it has beyond its role.
    """
    usual = {"worker": plan.target.worker_cpu, "server": plan.target.server_cpu}
    before = {"worker": seen.size.worker_cpu, "server": seen.size.server_cpu}
    own = {each.node: each.cpu for each in plan.nodes}
    kept = {
        each.node: each.granted_cores if each.granted_cores > before[each.role] else 0.0
        for each in seen.nodes
    }
    granted = ((each.role, own.get(each.node, kept[each.node])) for each in seen.nodes)
    return sum(max(cpu - usual[role], 0.0) for role, cpu in granted)


def _refusal(
    plan: ResourcePlan,
    seen: ResourceObservation,
    state: SteeringState,
    rate: JobRate,
    rules: SteeringRules,
) -> Hold | None:
    """Why a plan is not followed; None: it is."""
    if (unfit := _unfit(plan, seen, state.history)) is not None:
        return unfit
    soon_s = seen.transition_s(plan.target) + rules.settle_s
    left_s = _left_s(seen, rate)
    if left_s <= 2.0 * soon_s:
        return Hold(cause="ends_soon", detail=f"in about {left_s:.0f} s", passed=plan)
    match plan.aim:
        case "safe":
            return None
        case "learn":
            is_spent = state.history.probes >= rules.max_probes
            return Hold(cause="low_confidence", passed=plan) if is_spent else None
        case "cheaper":
            is_bounded = plan.expected_per_s >= rate.per_s * (1.0 - plan.allowed_loss)
            saves = plan.cost_per_hour < 0.0 and is_bounded
            return None if saves else Hold(cause="not_worth_its_cost", passed=plan)
        case "faster":
            caution = _caution(state, rules)
            return _too_little(plan, rate, left_s, caution, rules)
        case _:
            assert_never(plan.aim)


def _caution(state: SteeringState, rules: SteeringRules) -> float:
    """How many errors a plan must stand: a job that is being improved is worth a try."""
    outcomes = state.history.outcomes
    is_improving = outcomes and outcomes[-1].verdict == "better" and not state.failures
    return rules.caution * (0.5 if is_improving else 1.0 + state.failures)


def _left_s(seen: ResourceObservation, rate: JobRate) -> float:
    if seen.samples_left is None:
        return math.inf
    return seen.samples_left / rate.per_s if rate.per_s else math.inf


def _too_little(
    plan: ResourcePlan, rate: JobRate, left_s: float, caution: float, rules: SteeringRules
) -> Hold | None:
    """Why a plan that promises speed is not worth it; None: it is."""
    if plan.confidence < rules.min_confidence:
        return Hold(cause="low_confidence", detail=f"{plan.confidence:.2f}", passed=plan)
    gain = plan.expected_per_s / rate.per_s - 1.0 if rate.per_s else math.inf
    surely = plan.expected_per_s * math.exp(-caution * plan.expected_error)
    noise = rules.certainty * rate.relative_error if rate.per_s else 0.0
    if gain < max(rules.min_gain, noise) or surely <= rate.per_s:
        detail = f"{gain:+.1%} expected, noise {noise:.1%}, error {plan.expected_error:.1%}"
        return Hold(cause="noise", detail=detail, passed=plan)
    if math.isfinite(left_s) and plan.expected_per_s * (left_s - plan.cost_s) <= (
        rate.per_s * left_s
    ):
        return Hold(cause="not_worth_its_cost", detail=f"{plan.cost_s:.0f} s", passed=plan)
    return None
