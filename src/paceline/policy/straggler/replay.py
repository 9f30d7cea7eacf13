"""Decisions made again from a log: by the solution that made them, or by another one.

A decision is a pure function of its observation, so the log's own solution must answer as it did;
where it does not, it is another version of it, or it remembers something.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import assert_never

import msgspec

from paceline.policy.straggler.actions import AnyAction
from paceline.policy.straggler.decision_log import (
    ActionRefused,
    AnyLine,
    Begun,
    CurePlanned,
    Decided,
    Failed,
    Helped,
    Measured,
    TookEffect,
)
from paceline.policy.straggler.solution import Solution


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """One decision, then and now."""

    decided: Decided
    actions: tuple[AnyAction, ...]
    """Actions of the solution that was asked now."""

    @property
    def same(self) -> bool:
        """Whether every field of every action is equal, reasons and estimates included."""
        return self.actions == self.decided.actions


def replay(lines: Iterable[AnyLine], choose: Callable[[Begun], Solution]) -> Iterator[Replayed]:
    """Ask again for every decision of a log.

    Args:
        lines: of the log; those before its first `Begun` are passed over.
        choose: the solution for the run that the line begins.
    """
    asked: Solution | None = None
    for line in lines:
        match line:
            case Begun():
                asked = choose(line)
            case Decided():
                if asked is not None:
                    yield Replayed(decided=line, actions=tuple(asked.decide(line.observation)))
            case Failed() | ActionRefused() | TookEffect() | Measured() | Helped():
                pass  # what followed a decision is no part of it
            case CurePlanned():
                pass  # no solution made it; see `plans`
            case _:
                assert_never(line)


def plans(lines: Iterable[AnyLine]) -> list[CurePlanned]:
    """The lines of a script's planner, which can each be asked again by itself."""
    return [line for line in lines if isinstance(line, CurePlanned)]
