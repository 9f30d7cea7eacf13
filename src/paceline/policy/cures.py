"""The planner: which cure of a fail-slow event is worth its cost by now, and when it is undone.

To do nothing (S1) is free by the step: the time that a step takes above the healthy one is lost. A
cure is dear once. As in ski rental, the cheapest cure that helps is applied when the loss has
reached its cost: for one cure, the total is then at most twice that of one who knew how long the
event lasts, and one step's loss. After a cure the loss begins at zero again, so that only what is
left of the slowness counts towards the next, dearer one. A cure that brought nothing is undone.
When the faults are over, cures are undone, the topology first.

Each application follows a loss of at least its price. A cure that was undone not long ago has twice
the price, so faults that come and go do not make the job change back and forth.

Pure: `decide` is a function of the state and one step's facts, so a log is replayed line by line.

Reference: FALCON sections 4.1 and 4.2 (arXiv:2410.12588).
Differs: losses are a sum, where the paper multiplies the number of steps by the present gap; the
loss is re-based. No bound is claimed for several cures (see `ski_rental` of the experiments).
"""

import enum
from statistics import median
from typing import Literal

import msgspec


class Cure(enum.StrEnum):
    """Cure against a slowness, besides doing nothing."""

    MICRO_BATCHES = "S2"
    """Slow replicas compute fewer micro-batches."""
    TOPOLOGY = "S3"
    """Ranks change places, so that a slow link or node matters less."""
    RESTART = "S4"
    """Restart from the newest checkpoint, without the slow node."""


Cause = Literal["computation", "link", "unknown"]
"""Unknown: validation found no component, yet steps are slow."""

_HELPS: dict[Cure, tuple[Cause, ...]] = {
    Cure.MICRO_BATCHES: ("computation", "unknown"),
    Cure.TOPOLOGY: ("computation", "link"),
    Cure.RESTART: ("computation", "link"),
}
_UNDONE_IN_TURN = (Cure.TOPOLOGY, Cure.MICRO_BATCHES)
"""A restart is not undone."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is slow."""

    cause: Cause
    ranks: tuple[int, ...] = ()


class CureOption(msgspec.Struct, frozen=True, kw_only=True):
    """A cure in this job."""

    cure: Cure
    cost_s: float
    """Seconds that the cure costs: as measured the last time, else estimated."""
    unavailable: str = ""
    """Reason why the cure cannot be had here; empty: it can."""
    by_hand: bool = False
    """A person must apply it: paceline does not steer this job."""


class EventFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that are known after a step."""

    step: int
    step_s: float
    steps: int = 1
    """Number of steps of which this is the mean."""
    healthy_s: float
    """Seconds that a step took before the event."""
    faults: tuple[Fault, ...] = ()
    """Faults that last, also where a cure hides them; empty: all is well."""
    options: tuple[CureOption, ...] = ()


class PlannerRules(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of the planner, in steps."""

    settle: int = 5
    """Steps after a cure whose times tell whether it helps."""
    calm: int = 5
    """Steps without a fault before cures are undone."""
    memory: int = 500
    """Steps during which a cure that was undone stays dearer."""
    min_gain: float = 0.1
    """Part of the slowness that a cure must take away, or it is undone."""


class CureAct(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of what the planner answers."""

    cure: Cure
    reason: str


class ApplyCure(CureAct, frozen=True):
    """Order to apply a cure whose cost the loss has reached."""


class AdviseCure(CureAct, frozen=True):
    """Advice to a person to apply a cure whose cost the loss has reached."""


class PassCure(CureAct, frozen=True):
    """A cure that would be worth its cost by now, but cannot be had."""


class RevertCure(CureAct, frozen=True):
    """Order to undo a cure that brought nothing or is no longer needed."""


AnyCureAct = ApplyCure | AdviseCure | PassCure | RevertCure


class CureTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The steps after a cure."""

    cure: Cure
    before_s: float
    """Seconds of a step before the cure."""
    renewed: bool
    """True: the cure was already in force, for other faults."""
    steps_s: tuple[float, ...] = ()


class CureUndone(msgspec.Struct, frozen=True, kw_only=True):
    """Record of an undone cure: how many times, and the step of the last time."""

    step: int
    times: int


class PlannerState(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the planner from one step to the next."""

    faults: tuple[Fault, ...] = ()
    """Faults of the present event; empty: there is no event."""
    loss_s: float = 0.0
    """Seconds lost since the event began, or since the last cure settled."""
    recent_s: tuple[float, ...] = ()
    """Times of the event's newest steps, in seconds."""
    applied: tuple[Cure, ...] = ()
    """Cures in force."""
    done_with: tuple[Cure, ...] = ()
    """Cures that are not considered again while the faults are the same."""
    trial: CureTrial | None = None
    fewer: int = 0
    """Steps since which faults are missing."""
    undone: dict[Cure, CureUndone] = {}


def decide(
    state: PlannerState, facts: EventFacts, rules: PlannerRules
) -> tuple[PlannerState, tuple[AnyCureAct, ...]]:
    """Take in one step; the new state and what to do."""
    if not state.faults and not facts.faults:
        return state, ()
    state = _with_faults(state, facts, rules)
    if not facts.faults:
        return _relieved(state, facts, rules) if state.fewer >= rules.calm else (state, ())
    gap_s = max(facts.step_s - facts.healthy_s, 0.0) * facts.steps
    recent_s = (*state.recent_s, facts.step_s)[-rules.settle :]
    if state.trial is None:
        state = msgspec.structs.replace(state, recent_s=recent_s, loss_s=state.loss_s + gap_s)
        return _escalated(state, facts, rules)
    steps_s = (*state.trial.steps_s, facts.step_s)
    trial = msgspec.structs.replace(state.trial, steps_s=steps_s)
    state = msgspec.structs.replace(state, recent_s=recent_s, trial=trial)
    return _judged(state, facts, rules, trial) if len(steps_s) >= rules.settle else (state, ())


def _with_faults(state: PlannerState, facts: EventFacts, rules: PlannerRules) -> PlannerState:
    """Take in the faults: a new one at once, the end of one when it is sure.

    Other faults are a reason to consider again what did not help, and to divide work again. The
    loss stays: it was lost.
    """
    known, now = set(state.faults), set(facts.faults)
    fewer = 0 if known <= now else state.fewer + 1
    if now <= known and (fewer < rules.calm or not now):
        return msgspec.structs.replace(state, fewer=fewer)
    # While one is missing, but not surely over, it stays among them.
    faults = (
        facts.faults if fewer >= rules.calm else tuple(dict.fromkeys(state.faults + facts.faults))
    )
    return msgspec.structs.replace(state, faults=faults, fewer=0, done_with=())


def _relieved(
    state: PlannerState, facts: EventFacts, rules: PlannerRules
) -> tuple[PlannerState, tuple[AnyCureAct, ...]]:
    """End the event: all cures that can be undone are."""
    acts = tuple(
        RevertCure(cure=cure, reason=f"no fault for {state.fewer} steps")
        for cure in _UNDONE_IN_TURN
        if cure in state.applied
    )
    return PlannerState(undone=_undone(state, facts, rules, acts)), acts


def _undone(
    state: PlannerState, facts: EventFacts, rules: PlannerRules, acts: tuple[RevertCure, ...]
) -> dict[Cure, CureUndone]:
    undone = {
        cure: each for cure, each in state.undone.items() if facts.step - each.step <= rules.memory
    }
    for act in acts:
        times = undone[act.cure].times if act.cure in undone else 0
        undone[act.cure] = CureUndone(step=facts.step, times=times + 1)
    return undone


def _judged(
    state: PlannerState, facts: EventFacts, rules: PlannerRules, trial: CureTrial
) -> tuple[PlannerState, tuple[AnyCureAct, ...]]:
    """End a cure's trial: what it left of the slowness counts from here on."""
    after_s = median(trial.steps_s)
    state = msgspec.structs.replace(state, trial=None, loss_s=0.0)
    gain_s = trial.before_s - after_s
    if (
        gain_s >= rules.min_gain * (trial.before_s - facts.healthy_s)
        or trial.cure not in _UNDONE_IN_TURN
        or trial.renewed
    ):
        return state, ()
    reason = f"a step took {trial.before_s:.3g} s before it and {after_s:.3g} s after it"
    act = RevertCure(cure=trial.cure, reason=reason)
    applied = tuple(cure for cure in state.applied if cure != trial.cure)
    undone = _undone(state, facts, rules, (act,))
    return msgspec.structs.replace(state, applied=applied, undone=undone), (act,)


def _escalated(
    state: PlannerState, facts: EventFacts, rules: PlannerRules
) -> tuple[PlannerState, tuple[AnyCureAct, ...]]:
    """Apply the cheapest cure whose price the loss has reached; pass over those not to be had."""
    acts: list[AnyCureAct] = []
    causes = {fault.cause for fault in state.faults}
    for price_s, option in sorted(
        ((_price_s(state, facts, rules, option), option) for option in facts.options),
        key=lambda one: (one[0], one[1].cure),
    ):
        cure = option.cure
        if cure in state.done_with or causes.isdisjoint(_HELPS[cure]):
            continue
        if state.loss_s < price_s:
            break
        lost = (
            f"{' and '.join(sorted(causes))}: {state.loss_s:.3g} s were lost, at "
            f"{facts.step_s:.3g} s a step instead of {facts.healthy_s:.3g} s"
        )
        reason = f"{lost}; {cure} costs {price_s:.3g} s"
        state = msgspec.structs.replace(state, done_with=(*state.done_with, cure))
        if option.unavailable:
            acts.append(PassCure(cure=cure, reason=f"{lost}, but {option.unavailable}"))
        elif option.by_hand:
            acts.append(AdviseCure(cure=cure, reason=reason))
        else:
            acts.append(ApplyCure(cure=cure, reason=reason))
            renewed = cure in state.applied
            trial = CureTrial(cure=cure, before_s=median(state.recent_s), renewed=renewed)
            applied = state.applied if renewed else (*state.applied, cure)
            return msgspec.structs.replace(state, applied=applied, trial=trial), tuple(acts)
    return state, tuple(acts)


def _price_s(
    state: PlannerState, facts: EventFacts, rules: PlannerRules, option: CureOption
) -> float:
    """Its cost, doubled for each time that it was undone, while that is not long ago."""
    undone = state.undone.get(option.cure)
    if undone is None or facts.step - undone.step > rules.memory:
        return option.cost_s
    return option.cost_s * 2.0**undone.times
