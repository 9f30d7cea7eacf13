"""The device coordinator's law: what opportunistic jobs may use of a guaranteed job's device.

When both kinds of job have come together, the opportunistic ones are squeezed to the least duty
until the guaranteed job runs steadily. Then they pause, and the guaranteed job's step is measured
alone. From there on the duty follows its steps, window by window: it grows while a step takes as
long as alone, within a budget, and falls when it does not. The time alone is measured again every
few minutes, and when a step takes what sharing does not explain.

A duty that was too much twice in a row is remembered: growth is fast only below it. Each cut
doubles the number of good windows that a slow raise takes. So the duty settles, and does not swing.
When cuts do not help, the guaranteed job is measured alone again: it may be slower itself.

Pure: `decide` is a function of the state and the newest steps.

Reference: AntMan section 3.3 (OSDI 2020), which has no formula; the factors are those of TGS
(NSDI 2023). Differs: windows last until the mean of their steps is known well enough.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Literal

import msgspec
from msgspec.structs import replace

from paceline.features.sharing.policy.duty import LEAST_DUTY
from paceline.features.sharing.wire import GateMode, SharingCause, SharingDecision
from paceline.wire.spec import ShareClass

MAX_STEPS = 4096
"""Steps of a window that are kept."""
QUARTILES = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""


class SharingJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job on the device."""

    name: str
    share: ShareClass
    since_s: float
    """Time at which the job came."""


class SharingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that the device coordinator sees at one moment."""

    now_s: float
    guaranteed: str = ""
    """The job whose time is kept; empty: there is none."""
    life: int = 0
    """Number of the life of its processes: another number says that they have begun again."""
    others: tuple[str, ...] = ()
    steps_s: tuple[float, ...] = ()
    """Steps of the guaranteed job that have ended since the facts before these."""
    tells_gaps: bool = False
    """Whether the guaranteed job says when it is idle."""


class SharingRules(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of the law."""

    budget: float = 0.03
    """Part by which a step may take longer than alone."""
    harm: float = 3.0
    """Budgets that a step must never take."""
    window_s: float = 0.5
    window_steps: int = 10
    """A window lasts at least both."""
    longest_s: float = 5.0
    """A window whose steps vary lasts so long at most."""
    alone_steps: int = 20
    """Steps that say whether a job runs steadily, and as many that are measured alone at least."""
    most_alone_steps: int = 50
    """Most steps that are measured alone, where steps vary."""
    patience_s: float = 30.0
    """Seconds for which a job with no steady steps is waited for, once it has steps."""
    again_s: float = 300.0
    """Seconds after which the time alone is measured again."""
    spread: float = 0.2
    """Distance of the quartiles of steps, to their median, above which they vary."""
    odd: float = 0.15
    odd_windows: int = 3
    """A loss of ``odd`` in so many windows in a row is not explained by sharing. Nor is one above
    the budget that does not fall with the duty. At the least duty each such window counts as one
    part of ``patience``."""
    sure: int = 2
    """Windows in a row above the budget that make a duty too much."""
    grow: float = 1.5
    add: float = 0.03
    most_add: float = 0.25
    """Largest raise of the duty at once, as a part of the duty."""
    cut: float = 0.8
    slash: float = 0.1
    most_patience: int = 16
    """Good windows that a raise takes at most."""


class SharingState(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the device coordinator from one moment to the next."""

    phase: Literal["free", "arrival", "alone", "shared"] = "free"
    guaranteed: str = ""
    life: int = 0
    others: tuple[str, ...] = ()
    mode: GateMode = GateMode.OFF
    duty: float = 1.0
    """Duty in force; in phase "alone": the duty with which sharing goes on."""
    since_s: float = 0.0
    """Time at which the phase or the window began; of arrival: at which the first step was seen."""
    steps_s: tuple[float, ...] = ()
    """Times of the phase's or the window's steps so far, in seconds."""
    alone_s: float = 0.0
    alone_spread: float = 0.0
    measured_s: float = 0.0
    """Time at which ``alone_s`` was measured."""
    fast: bool = True
    """True: the duty grows by a factor; False: by an addition."""
    ceiling: float = math.inf
    """Duty that was too much; inf: none was."""
    good: int = 0
    """Windows within the budget since the last change."""
    patience: int = 1
    """Number of good windows that a raise takes."""
    odd: float = 0.0
    """Windows in a row that sharing does not explain."""
    over: int = 0
    """Windows in a row above the budget."""
    over_s: float = 0.0
    """Seconds that a step took in the first of the windows above the budget."""
    unstable: bool = False


Decided = tuple[SharingState, SharingDecision | None]


def guaranteed_of(jobs: Sequence[SharingJob]) -> str:
    """Choose the job whose time is kept; empty: there is none.

    It is the guaranteed job that came first, else the first of those that leave it open.
    """
    for share in ("guaranteed", "auto"):
        found = sorted((job.since_s, job.name) for job in jobs if job.share == share)
        if found:
            return found[0][1]
    return ""


def decide(state: SharingState, facts: SharingFacts, rules: SharingRules) -> Decided:
    """Take in the newest steps; the new state, and what is decided, if anything is."""
    if not (facts.guaranteed and facts.others):
        fresh = SharingState(guaranteed=facts.guaranteed, others=facts.others)
        if state.phase == "free":
            return fresh, None
        return _told(fresh, facts, rules, "departure")
    known = state.guaranteed, state.life
    if state.phase == "free" or known != (facts.guaranteed, facts.life):
        return _arrival(facts, rules, "arrival")
    came = not set(facts.others) <= set(state.others)
    steps_s = (*state.steps_s, *facts.steps_s)[-MAX_STEPS:]
    state = replace(state, others=facts.others, steps_s=steps_s)
    if came:
        return _arrival(facts, rules, "newcomer")
    match state.phase:
        case "arrival":
            return _arriving(state, facts, rules)
        case "alone":
            return _measuring(state, facts, rules)
        case _:
            return _sharing(state, facts, rules)


def _arrival(facts: SharingFacts, rules: SharingRules, cause: SharingCause) -> Decided:
    state = SharingState(
        phase="arrival",
        guaranteed=facts.guaranteed,
        life=facts.life,
        others=facts.others,
        mode=_mode(facts),
        duty=LEAST_DUTY,
        since_s=facts.now_s,
    )
    return _told(state, facts, rules, cause)


def _arriving(state: SharingState, facts: SharingFacts, rules: SharingRules) -> Decided:
    """Wait for the guaranteed job to run steadily."""
    newest = state.steps_s[-rules.alone_steps :]
    if not newest:
        return replace(state, since_s=facts.now_s), None
    waited_s = facts.now_s - state.since_s
    steady = len(newest) == rules.alone_steps and spread_of(newest) <= rules.spread
    if steady or (waited_s > rules.patience_s and len(newest) > 1):
        return _alone(state, facts, rules, "steady")
    return state, None


def _alone(
    state: SharingState, facts: SharingFacts, rules: SharingRules, cause: SharingCause
) -> Decided:
    """Have the others pause."""
    step_s = middle_mean(state.steps_s)
    state = replace(state, phase="alone", since_s=facts.now_s, steps_s=(), mode=GateMode.PAUSE)
    return _told(state, facts, rules, cause, step_s)


def _measuring(state: SharingState, facts: SharingFacts, rules: SharingRules) -> Decided:
    """Wait for enough steps alone; the first of them began before the others paused."""
    alone = state.steps_s[1:]
    doubtful = doubt_of(alone) > rules.budget / 4 and len(alone) < rules.most_alone_steps
    if len(alone) < rules.alone_steps or doubtful:
        if facts.now_s - state.since_s <= rules.patience_s:
            return state, None
        if not alone:  # it does not step now: as if it had just come
            return _arrival(facts, rules, "arrival")
    alone_s = middle_mean(alone)
    if not state.alone_s or abs(alone_s / state.alone_s - 1.0) > rules.budget:
        state = replace(state, duty=LEAST_DUTY, fast=True, ceiling=math.inf, patience=1)
    elif state.over and state.over_s / alone_s - 1.0 <= rules.budget:
        # The duty was not too much: the guaranteed job is slower itself.
        state = replace(state, fast=True, ceiling=math.inf, patience=1)
    state = replace(
        state,
        phase="shared",
        mode=_mode(facts),
        alone_s=alone_s,
        alone_spread=spread_of(alone),
        measured_s=facts.now_s,
        since_s=facts.now_s,
        steps_s=(),
        good=0,
        odd=0.0,
        over=0,
    )
    return _told(state, facts, rules, "measured", alone_s)


def _sharing(state: SharingState, facts: SharingFacts, rules: SharingRules) -> Decided:
    """Judge the window, if it is over."""
    mode, took_s = _mode(facts), facts.now_s - state.since_s
    if mode != state.mode:
        return _told(replace(state, mode=mode), facts, rules, "gaps")
    if took_s < rules.window_s or len(state.steps_s) < rules.window_steps:
        return state, None
    step_s, spread = middle_mean(state.steps_s), spread_of(state.steps_s)
    loss = step_s / state.alone_s - 1.0
    may_wait = loss <= rules.harm * rules.budget and took_s < rules.longest_s
    if may_wait and doubt_of(state.steps_s) > rules.budget / 2:
        return state, None
    window = state.steps_s
    state = replace(state, since_s=facts.now_s, steps_s=())
    state, cause = _judged(state, step_s, spread, rules)
    if cause == "regime" or facts.now_s - state.measured_s > rules.again_s:
        again = replace(state, steps_s=window)
        return _alone(again, facts, rules, "regime" if cause == "regime" else "again")
    if cause is None:
        return state, None
    return _told(state, facts, rules, cause, step_s)


def _judged(
    state: SharingState, step_s: float, spread: float, rules: SharingRules
) -> tuple[SharingState, SharingCause | None]:
    """Follow one window."""
    loss = step_s / state.alone_s - 1.0
    over, duty = loss > rules.budget, state.duty
    state = replace(state, over=state.over + 1 if over else 0)
    if state.over == 1:
        state = replace(state, over_s=step_s)
    odd = 1.0 if loss < -rules.budget or loss > rules.odd else 0.0
    if over and duty <= LEAST_DUTY:
        odd = max(odd, 1.0 / state.patience)
    elif state.over > 1 and step_s - state.alone_s > rules.cut * (state.over_s - state.alone_s):
        odd = 1.0
    state = replace(state, odd=state.odd + odd if odd else 0.0)
    if state.odd >= rules.odd_windows:
        return state, "regime"
    if over:
        harm = loss > rules.harm * rules.budget
        state = replace(
            state,
            duty=max(duty * (rules.slash if harm else rules.cut), LEAST_DUTY),
            good=0,
            patience=min(2 * state.patience, rules.most_patience),
            unstable=False,
        )
        if harm or state.over >= rules.sure:
            state = replace(state, fast=harm, ceiling=duty)
        changed = state.duty != duty
        return state, ("harm" if harm else "over") if changed else None
    if spread > rules.spread + state.alone_spread:
        return replace(state, unstable=True), None if state.unstable else "unstable"
    state = replace(state, good=state.good + 1, unstable=False)
    return _raised(state, rules) if duty < 1.0 else (state, None)


def _raised(state: SharingState, rules: SharingRules) -> tuple[SharingState, SharingCause | None]:
    """Raise the duty, if enough windows were good."""
    grown = state.duty * rules.grow
    if state.fast and grown <= rules.cut * state.ceiling:
        return replace(state, duty=min(grown, 1.0), good=0), "within"
    state = replace(state, fast=False)
    if state.good < state.patience:
        return state, None
    added = min(rules.add, rules.most_add * state.duty)
    return replace(state, duty=min(state.duty + added, 1.0), good=0), "within"


def _mode(facts: SharingFacts) -> GateMode:
    return GateMode.GAP if facts.tells_gaps else GateMode.DUTY


def _told(
    state: SharingState,
    facts: SharingFacts,
    rules: SharingRules,
    cause: SharingCause,
    step_s: float = 0.0,
) -> Decided:
    decision = SharingDecision(
        cause=cause,
        mode=state.mode,
        duty=state.duty,
        guaranteed=facts.guaranteed,
        num_others=len(facts.others),
        step_s=step_s,
        alone_s=state.alone_s,
        budget=rules.budget,
    )
    return state, decision


def middle_mean(steps_s: Sequence[float]) -> float:
    """Return the mean without the tenth that is shortest and the tenth that is longest."""
    found = sorted(steps_s)
    cut = len(found) // 10
    return fmean(found[cut : len(found) - cut])


def doubt_of(steps_s: Sequence[float]) -> float:
    """Return the standard error of the mean, as a part of it."""
    if not steps_s:
        return math.inf
    return spread_of(steps_s) / QUARTILES / math.sqrt(len(steps_s))


def spread_of(steps_s: Sequence[float]) -> float:
    """Return the distance of the quartiles, to the median."""
    found = sorted(steps_s)
    quarter = len(found) // 4
    return (found[-1 - quarter] - found[quarter]) / median(found)
