"""The loop that finds the job's size (`paceline.policy.resources.steering`), run and written down.

A policy may be anybody's code, and a search takes a while. So a question is answered in a thread,
one at a time, while no change is under way.
"""

import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from paceline.jobs.jsonl import LineFile
from paceline.master.size_facts import SizingAnswered, SizingKept
from paceline.policy.resources.observation import ResourceObservation
from paceline.policy.resources.plan import Hold
from paceline.policy.resources.registry import RESOURCES
from paceline.policy.resources.steering import SteeringLine, steer
from paceline.policy.resources.steering_state import (
    AnySteeringAct,
    AnySteeringFact,
    ResizeFailed,
    ResizeInEffect,
    SizeSeen,
    SteeringRules,
    SteeringState,
)

LOG_BYTES = 32 << 20
"""A log that is larger is put aside, and the one that lay there is dropped."""


class SizeLoop:
    """The loop of one job.

    Args:
        name: the policy of the spec.
        args: its parameters.
        rules: of the spec.
        log: its steps go there.
        post: hands an answer to the event loop, from a thread; it comes to `took`.
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
        post: Callable[[SizingAnswered], None],
        wall_clock: Callable[[], float],
    ) -> None:
        self._policy, self._rules, self._post = RESOURCES.make(name, args), rules, post
        self._name, self._args = name, dict(args)
        self._log, self._wall_clock = LineFile(log), wall_clock
        self.state = SteeringState()
        self.is_asking = False
        self._held = ""
        """Why nothing was changed last: it is written down once."""

    def ask(self, seen: ResourceObservation) -> None:
        """Show the loop the job."""
        self.is_asking = True
        fact = SizeSeen(seen=seen)
        line = self._line(fact)
        policy, post = self._policy, self._post

        def answer() -> None:
            try:
                after, acts = steer(line.before, line.fact, line.rules, policy)
            except Exception:  # noqa: BLE001 - a policy may be anybody's code
                error = traceback.format_exc()
                post(SizingAnswered(line=line, after=line.before, error=error))
                return
            post(SizingAnswered(line=replace(line, acts=acts), after=after))

        threading.Thread(target=answer, name="sizing", daemon=True).start()

    def answered(self, answer: SizingAnswered) -> tuple[AnySteeringAct, ...]:
        """Go on with an answer; what is to be done."""
        self.is_asking = False
        return self._took(answer.line, answer.after)

    def changed(self, fact: ResizeInEffect | ResizeFailed) -> tuple[AnySteeringAct, ...]:
        """Take in what became of a change, about which the policy is not asked."""
        after, acts = steer(self.state, fact, self._rules, self._policy)
        return self._took(replace(self._line(fact), acts=acts), after)

    def _line(self, fact: AnySteeringFact) -> SteeringLine:
        return SteeringLine(
            t=self._wall_clock(),
            policy=self._name,
            args=self._args,
            before=self.state,
            fact=fact,
            rules=self._rules,
        )

    def _took(self, line: SteeringLine, after: SteeringState) -> tuple[AnySteeringAct, ...]:
        self.state = after
        held = _held(line.acts)
        if held is None or held != self._held:
            self._log.add(line)
            self._log.flush()
            if self._log.num_bytes > LOG_BYTES:
                self._log.put_aside()
        self._held = held or ""
        return line.acts


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
