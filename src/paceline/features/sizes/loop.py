"""The loop that finds the job's size (`policy.steering`), run and written down.

Its policy is asked while no change is under way.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from paceline.features.sizes.policy.observation import ResourceObservation
from paceline.features.sizes.policy.plan import Hold
from paceline.features.sizes.policy.registry import RESOURCES
from paceline.features.sizes.policy.steering import SteeringLine, steer
from paceline.features.sizes.policy.steering_state import (
    AnySteeringAct,
    AnySteeringFact,
    ResizeFailed,
    ResizeInEffect,
    SizeSeen,
    SteeringRules,
    SteeringState,
)
from paceline.master.decision_file import DecisionFile
from paceline.policy.decisions.question import Question

LATE_S = 60.0
"""A policy plans within this, or its plan counts for nothing: the job is another one by then."""


class SizingKept(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Record: what the loop remembers, and the change that is under way."""

    state: SteeringState
    at_s: float = 0.0
    """When it was written, by the clock of the times in it, which a reboot sets back."""
    wall_s: float = 0.0
    """The same in Unix time."""


Steered = tuple[SteeringState, tuple[AnySteeringAct, ...]]


class SizeLoop:
    """The loop of one job.

    Args:
        name: the policy of the spec.
        args: its parameters.
        rules: of the spec.
        log: its steps go there.
        wall_clock: Unix time, for the log.

    Raises:
        ConfigError: there is no such policy, or it takes no such parameters.
    """

    def __init__(
        self,
        name: str,
        args: Mapping[str, str],
        rules: SteeringRules,
        log: Path,
        wall_clock: Callable[[], float],
    ) -> None:
        self._policy, self._rules = RESOURCES.make(name, args), rules
        self._name, self._args = name, dict(args)
        self._log = DecisionFile(log, wall_clock)
        self.state = SteeringState()
        self.question = Question[SteeringLine](LATE_S)
        self._no = 0
        self._held = ""
        """Why nothing was changed last: it is written down once."""

    def ask(self, seen: ResourceObservation, now_s: float) -> tuple[int, Callable[[], Steered]]:
        """Show the loop the job; the question's number, and what answers it in a thread."""
        self._no += 1
        line, policy = self._line(SizeSeen(seen=seen)), self._policy
        self.question.ask(self._no, line, now_s)
        return self._no, lambda: steer(line.before, line.fact, line.rules, policy)

    def answered(self, no: int, steered: Steered) -> tuple[AnySteeringAct, ...]:
        """Go on with an answer; what is to be done."""
        line = self.question.take(no)
        return () if line is None else self._took(line, steered)

    def changed(self, fact: ResizeInEffect | ResizeFailed) -> tuple[AnySteeringAct, ...]:
        """Take in what became of a change, about which the policy is not asked."""
        return self._took(self._line(fact), steer(self.state, fact, self._rules, self._policy))

    def _line(self, fact: AnySteeringFact) -> SteeringLine:
        return SteeringLine(
            policy=self._name,
            args=self._args,
            before=self.state,
            fact=fact,
            rules=self._rules,
        )

    def _took(self, line: SteeringLine, steered: Steered) -> tuple[AnySteeringAct, ...]:
        self.state, acts = steered
        held = _held(acts)
        if held is None or held != self._held:
            self._log.add(replace(line, acts=acts))
            self._log.flush()
        self._held = held or ""
        return acts


def _held(acts: Iterable[AnySteeringAct]) -> str | None:
    """Why nothing was changed; None: the step is written down in any case."""
    found = list(acts)
    if len(found) == 1 and isinstance(found[0], Hold):
        return found[0].cause
    return None


def by_another_clock(kept: SizingKept, now_s: float, wall_s: float) -> SteeringState:
    """What another master goes on with: it measures from its start, and avoids what was avoided.

    Args:
        kept: by the former master.
        now_s: by the clock of this one.
        wall_s: the same in Unix time.
    """
    state, change = kept.state, kept.state.change
    if change is not None:
        change = replace(change, begun_s=0.0)
    passed_s = max(wall_s - kept.wall_s, 0.0)
    moved_s = now_s - passed_s - kept.at_s
    avoided = tuple(replace(each, until_s=each.until_s + moved_s) for each in state.history.avoided)
    history = replace(state.history, avoided=avoided)
    return replace(state, history=history, since_s=None, next_s=None, change=change)
