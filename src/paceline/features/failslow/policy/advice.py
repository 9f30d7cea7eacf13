"""Advice for a script that paceline does not steer: a restart, when it pays.

Such a script divides its work itself, and decides where its ranks are: S2 and S3 are not offered.
A person can start it again without what is slow; that costs its start, and the work since it last
saved.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from paceline.features.failslow.events import DiagnosedEvent, RestartAdvisedEvent
from paceline.features.failslow.policy.causes import CAUSES
from paceline.features.failslow.policy.detection import PaceChange, StepFact
from paceline.features.failslow.policy.planned import CurePlanned
from paceline.policy.cures import (
    Cure,
    CureOption,
    EventFacts,
    Fault,
    PlannerRules,
    PlannerState,
    decide,
)

Advice = CurePlanned | RestartAdvisedEvent
"""Outcomes of the planner: a line of the decision log, or advice for a person."""
MAX_WAITING = 1000
"""Steps that are kept until a diagnosis says what they were lost to."""


class RestartPrice(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a restart of the script, in seconds."""

    start_s: float
    """Seconds from the start of the ranks to the end of their first step, as measured the last
    time."""
    redo_s: float
    """Seconds of work since the script last saved, or since it began, which a restart repeats."""
    has_saved: bool


class RestartAdvice:
    """The planner of one life of a script.

    Args:
        ranks: by node.
        begun_s: when their start began; None: nobody saw it, so a restart has no price.
    """

    def __init__(self, ranks: Mapping[str, int], begun_s: float | None) -> None:
        self._ranks = ranks
        self._rules, self._state = PlannerRules(), PlannerState()
        self._begun_s, self._saved_s = begun_s, begun_s
        self._start_s: float | None = None
        self._is_slow = False
        self._faults: tuple[Fault, ...] = ()
        self._waiting: deque[tuple[int, float, float, int]] = deque(maxlen=MAX_WAITING)
        """Step, its time, that of a healthy one, and of how many it is the mean."""

    def _price(self, now_s: float) -> RestartPrice | None:
        """Return the cost of a restart now; None: not known."""
        if self._begun_s is None or self._saved_s is None or self._start_s is None:
            return None
        return RestartPrice(
            start_s=self._start_s,
            redo_s=now_s - self._saved_s,
            has_saved=self._saved_s > self._begun_s,
        )

    def made(self, end_s: float, *, saved: bool) -> None:
        """A step has ended; ``saved``: the script has saved in it."""
        if self._start_s is None and self._begun_s is not None:
            self._start_s = end_s - self._begun_s
        if saved:
            self._saved_s = end_s

    def changed(self, change: PaceChange) -> None:
        """The job has become slow, or faster again."""
        if not change.slow:
            self._is_slow, self._faults, self._state = False, (), PlannerState()
            self._waiting.clear()
        elif not self._is_slow:
            self._is_slow, self._faults = True, ()
            steps = change.found_step - change.since_step + 1
            self._waiting.append((change.found_step, change.after_s, change.before_s, steps))

    def diagnosed(self, found: Sequence[DiagnosedEvent]) -> None:
        """Take in what slows the job; if all ranks are slow, no restart without some helps."""
        blamed = {node for one in found for node in one.nodes if one.culprit == "computation"}
        everybody = blamed == self._ranks.keys()
        self._faults = () if everybody else tuple(self._fault(one) for one in found)

    def _fault(self, found: DiagnosedEvent) -> Fault:
        cause = CAUSES[found.cause].relieved_as
        if cause == "unknown":
            return Fault(cause=cause)
        return Fault(cause=cause, ranks=tuple(sorted(self._ranks[one] for one in found.nodes)))

    def step(self, fact: StepFact, lost_s: float) -> list[Advice]:
        """Take in a step; what the planner does, and what is advised.

        ``lost_s``: of it, above what a healthy one takes for as much work.
        """
        if not self._is_slow:
            return []
        healthy_s = max(fact.took_s - lost_s / fact.steps, 0.0)
        self._waiting.append((fact.number, fact.took_s, healthy_s, fact.steps))
        if not self._faults:
            return []
        lines = [self._decide(*each, fact.end_s) for each in self._waiting]
        self._waiting.clear()
        told: list[Advice] = []
        for line in lines:
            told += [line] if line.acts else []
            told += [self._advised(line, fact.end_s)] if line.advised else []
        return told

    def _advised(self, line: CurePlanned, now_s: float) -> RestartAdvisedEvent:
        price = self._price(now_s)
        assert price is not None
        to_blame = {rank for fault in line.facts.faults for rank in fault.ranks}
        return RestartAdvisedEvent(
            nodes=tuple(node for node, rank in self._ranks.items() if rank in to_blame),
            lost_s=line.lost_s,
            start_s=price.start_s,
            redo_s=price.redo_s,
            has_saved=price.has_saved,
        )

    def _decide(
        self, step: int, step_s: float, healthy_s: float, steps: int, now_s: float
    ) -> CurePlanned:
        price = self._price(now_s)
        options: tuple[CureOption, ...] = ()
        if price is not None:
            cost_s = price.start_s + price.redo_s
            options = (CureOption(cure=Cure.RESTART, cost_s=cost_s, by_hand=True),)
        before = self._state
        facts = EventFacts(
            step=step,
            step_s=step_s,
            steps=steps,
            healthy_s=healthy_s,
            faults=self._faults,
            options=options,
        )
        self._state, acts = decide(before, facts, self._rules)
        return CurePlanned(before=before, facts=facts, rules=self._rules, acts=acts)
