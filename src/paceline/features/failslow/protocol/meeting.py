"""A meeting of all ranks of a script: they stand still between two steps, and measure themselves.

    ranks         machine                    what ends a meeting early
      |<- MeetAt ---|  at a step ahead         a rank is late: all meet again, at a later step
      |- AtMeeting->|  all have come           a rank does not come: the others train on
      |<- Measure --|
      |- measured ->|  all have measured       a rank does not answer
      |<- GoOn -----|

Reference: FALCON (arXiv:2410.12588), section 4.3: suspension and validation.
Differs: a rank that does not come is named, and nobody is trapped in a collective call.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from paceline.base.numbering import Inc
from paceline.features.failslow.policy.validation import ValidationPlan
from paceline.features.failslow.wire import (
    AtMeeting,
    GoOn,
    Measure,
    MeetAt,
    RankMeasured,
    ToRank,
)

MARGIN_S = 0.8
"""Seconds from the order of a meeting to its step, in which orders arrive. A late rank puts it
off."""
MISSED_S = 0.5
"""A rank that has done the step of a meeting so long ago, and has not come, waits in its next step
for the others, which stand still: they go on and meet again."""
COMING_S, COMING_STEPS = 5.0, 3.0
"""Seconds and steps for which a meeting is awaited; a rank that steps on is late by a few at
most."""
MEASURING_S = 30.0
MOST_TRIES = 3
"""Most tries of a meeting that a rank is late for, or goes past."""


class Rank(msgspec.Struct, frozen=True):
    """One process of the script."""

    node: str
    inc: Inc
    machine: str = ""
    """The name of the one that it runs on."""


class TellRank(msgspec.Struct, frozen=True):
    """Deliver to the feature's part in the process of this incarnation."""

    inc: Inc
    message: ToRank


class RankPace(NamedTuple):
    """Where the ranks are."""

    newest: Mapping[int, int]
    """Newest step of each rank."""
    step_s: float


class MeetingOver(msgspec.Struct, frozen=True, kw_only=True):
    """A meeting has ended."""

    plan: ValidationPlan
    measured: dict[int, RankMeasured] | None
    """None: not all have come, so nobody was asked to measure."""
    late: frozenset[int]
    """Ranks that had gone past its step when they heard of it."""
    absent: tuple[int, ...]
    """Ranks that have not come, and of which nothing is known."""


class _Open(msgspec.Struct):
    number: int
    plan: ValidationPlan
    step: int
    until_s: float
    tries: int
    came: set[int] = set()
    late: set[int] = set()
    missed_s: float = math.inf
    """Time since which a rank is known to have gone past this meeting; infinite: none has."""
    measured: dict[int, RankMeasured] | None = None


Met = tuple[list[TellRank], MeetingOver | None]


class RankMeetings:
    """The machine: one meeting at a time.

    Args:
        first: number of the first meeting; none before it had a larger one.
    """

    def __init__(self, first: int) -> None:
        self._number = first
        self._ranks: Mapping[int, Rank] = {}
        self._open: _Open | None = None

    def begin(self, ranks: Mapping[int, Rank]) -> None:
        """These ranks are to meet from now on; a meeting that is open is forgotten."""
        self._ranks, self._open = ranks, None

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def call(self, plan: ValidationPlan, pace: RankPace, now_s: float) -> list[TellRank]:
        """Have all ranks meet and measure by a plan."""
        return self._call(plan, pace, now_s, 1)

    def _call(
        self, plan: ValidationPlan, pace: RankPace, now_s: float, tries: int
    ) -> list[TellRank]:
        self._number += 1
        ahead = 1 + math.ceil(MARGIN_S / pace.step_s)
        step = max(pace.newest.values()) + ahead
        until_s = now_s + ahead * pace.step_s * COMING_STEPS + COMING_S
        self._open = _Open(self._number, plan, step, until_s, tries)
        return [
            TellRank(one.inc, MeetAt(inc=one.inc, meeting=self._number, step=step))
            for one in self._ranks.values()
        ]

    def came(self, rank: int | None, message: AtMeeting, pace: RankPace, now_s: float) -> Met:
        """A rank has come; or it is late, and the meeting is put off."""
        meeting = self._open
        if rank is None or meeting is None or message.meeting != meeting.number:
            return [TellRank(message.inc, GoOn(inc=message.inc, meeting=message.meeting))], None
        if meeting.measured is not None:
            return [], None  # repeated
        if message.late:
            meeting.late.add(rank)
            return self._again(meeting, pace, now_s)
        meeting.came.add(rank)
        return self._measure(meeting, now_s) if meeting.came == self._ranks.keys() else [], None

    def _again(self, meeting: _Open, pace: RankPace, now_s: float) -> Met:
        """Meet at a later step, unless that was tried often enough."""
        if meeting.tries >= MOST_TRIES:
            return self._over(meeting)
        free = self._let_go(meeting)
        return [*free, *self._call(meeting.plan, pace, now_s, meeting.tries + 1)], None

    def _measure(self, meeting: _Open, now_s: float) -> list[TellRank]:
        meeting.measured, meeting.until_s = {}, now_s + MEASURING_S
        names = tuple(one.node for _, one in sorted(self._ranks.items()))
        passes = tuple(
            tuple(dict.fromkeys((min(hop), max(hop)) for hop in one)) for one in meeting.plan.passes
        )
        return [
            TellRank(
                one.inc, Measure(inc=one.inc, meeting=meeting.number, names=names, passes=passes)
            )
            for one in self._ranks.values()
        ]

    def has_measured(self, rank: int | None, message: RankMeasured) -> Met:
        """A rank has measured itself."""
        meeting = self._open
        if rank is None or meeting is None or message.meeting != meeting.number:
            return [], None
        if meeting.measured is None:
            return [], None
        meeting.measured[rank] = message
        return self._over(meeting) if meeting.measured.keys() == self._ranks.keys() else ([], None)

    def tick(self, pace: RankPace, now_s: float) -> Met:
        """Go on without those who do not come or answer."""
        meeting = self._open
        if meeting is None:
            return [], None
        if now_s > meeting.until_s:
            return self._over(meeting)
        if self._is_missed(meeting, pace, now_s):
            return self._again(meeting, pace, now_s)
        return [], None

    def _is_missed(self, meeting: _Open, pace: RankPace, now_s: float) -> bool:
        """Whether a rank has gone past: its order came when it had just looked for one."""
        if not meeting.came or meeting.measured is not None or meeting.tries >= MOST_TRIES:
            return False
        awaited = self._ranks.keys() - meeting.came
        if not any(pace.newest.get(rank, 0) >= meeting.step for rank in awaited):
            return False
        meeting.missed_s = min(meeting.missed_s, now_s)
        return now_s - meeting.missed_s > MISSED_S

    def _let_go(self, meeting: _Open) -> list[TellRank]:
        """The ranks that stand still train on."""
        self._open = None
        return [
            TellRank(self._ranks[rank].inc, GoOn(inc=self._ranks[rank].inc, meeting=meeting.number))
            for rank in sorted(meeting.came)
        ]

    def _over(self, meeting: _Open) -> Met:
        # Where a rank was late, the others may have been on their way to that meeting.
        absent = () if meeting.late else tuple(sorted(self._ranks.keys() - meeting.came))
        over = MeetingOver(
            plan=meeting.plan,
            measured=meeting.measured,
            late=frozenset(meeting.late),
            absent=absent,
        )
        return self._let_go(meeting), over
