"""When a script was slow, since when, and what was to blame: one story for all who tell it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self, assert_never

import msgspec
from msgspec.structs import replace

from paceline.features.failslow.events import (
    DiagnosedEvent,
    FollowsEvent,
    RelievedEvent,
    RestartAdvisedEvent,
    SlowedEvent,
    read,
)
from paceline.wire.client import SlowPart
from paceline.wire.events.base import Event
from paceline.wire.events.job import MasterStartedEvent
from paceline.wire.events.nodes import ProcessUpEvent

FailSlowEvent = SlowedEvent | DiagnosedEvent | RestartAdvisedEvent | RelievedEvent
"""Events that tell of a script's slownesses."""
TOLD = "nothing: a script steers itself"
ADVISED = "a restart without it is advised"
UNSEEN: dict[type[Event], str] = {
    ProcessUpEvent: "processes of the script were started again",
    MasterStartedEvent: "the master was started again, and nobody saw whether it ended",
    FollowsEvent: "other steps were followed from then on",
}
"""After these events steps are compared with later ones only."""
MOST_SHOWN = 5
"""Most parts that are well again and are shown."""
SLOW, VERY_SLOW = 1.1, 1.5
"""Times the value from the job's start; from there on a part is yellow, or red."""


class Slowness(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which a script was slow."""

    since_s: float
    """Unix times."""
    until_s: float | None = None
    """None: it has not ended, or the job has ended with it."""
    unseen_end: str = ""
    """Why nobody knows whether it ended then; empty: its end was seen, or it goes on."""
    healthy_s: float | None = None
    """Time of a step before; None: a part stood out at the job's start."""
    slow_s: float = 0.0
    """Time of a step since."""
    onset_s: float = 0.0
    """Unix time at which a step became longer last."""
    diagnosed: tuple[DiagnosedEvent, ...] = ()
    """The newest diagnosis, an event for each culprit."""
    advised: tuple[str, ...] = ()
    """Nodes without which a restart was advised."""
    parts: tuple[SlowPart, ...] = ()
    """Parts that are slow; while the cause is not known, the job itself."""

    def grown(self, event: SlowedEvent) -> Self:
        """Take in that a step has become (even) longer."""
        slower = replace(self, onset_s=event.t, slow_s=event.after_s)
        if self.healthy_s is None:
            slower = replace(slower, healthy_s=event.before_s)
        return slower if self.diagnosed else slower.unknown("the cause is looked for")

    def with_culprit(self, event: DiagnosedEvent) -> Self:
        """Take in a culprit of the newest diagnosis."""
        alike = tuple(one for one in self.diagnosed if one.took_s == event.took_s)
        found = replace(self, diagnosed=(*alike, event))
        if event.culprit == "nothing":
            return found.unknown(event.who)
        since_s = {one.nodes: one.since_s for one in self.parts}
        part = SlowPart(
            culprit=event.culprit,
            nodes=event.nodes,
            ratio=event.ratio,
            since_s=since_s.get(event.nodes, self.onset_s),
            done=_done(event.nodes, self.advised),
        )
        return replace(found, parts=(*self.parts, part) if alike else (part,))

    def with_advice(self, event: RestartAdvisedEvent) -> Self:
        """Take in that a restart without some nodes is worth its price."""
        parts = tuple(
            replace(part, done=_done(part.nodes, event.nodes)) if part.nodes else part
            for part in self.parts
        )
        return replace(self, advised=event.nodes, parts=parts)

    def unknown(self, done: str) -> Self:
        """Say that no part is known to be slow, and what is done about that."""
        ratio = self.slow_s / self.healthy_s if self.healthy_s else 1.0
        whole = SlowPart(culprit="nothing", nodes=(), ratio=ratio, since_s=self.since_s, done=done)
        return replace(self, parts=(whole,))


def _done(nodes: Sequence[str], advised: Sequence[str]) -> str:
    return ADVISED if set(nodes) <= set(advised) else TOLD


SlownessTakes = (
    RestartAdvisedEvent | RelievedEvent | ProcessUpEvent | MasterStartedEvent | FollowsEvent
)
"""Events that change a slowness which is known, or end it."""


class ScriptPace:
    """A script's slownesses, event by event.

    A new process, or a new master, measures the script as it finds it. Whether a slowness that went
    on until then is over is not known.
    """

    def __init__(self) -> None:
        self.now: Slowness | None = None
        """None: nothing is known to be slow."""
        self.onsets = 0
        self.diagnoses: Counter[str] = Counter()
        """Number of diagnoses for each culprit."""

    def note(self, event: Event) -> Slowness | None:
        """Take in the next event; return the slowness that it ends."""
        now = self.now
        if isinstance(event, SlowedEvent):
            self.onsets += 1
            self.now = (now or Slowness(since_s=event.t)).grown(event)
        elif isinstance(event, DiagnosedEvent):
            self.diagnoses[event.culprit] += 1
            begun = now or Slowness(since_s=event.t, onset_s=event.t)
            self.now = begun.with_culprit(event)
        elif now is not None and isinstance(event, SlownessTakes):
            return self._follow(now, event)
        return None

    def _follow(self, now: Slowness, event: SlownessTakes) -> Slowness | None:
        match event:
            case RestartAdvisedEvent():
                self.now = now.with_advice(event)
            case RelievedEvent(still_slow=True):
                self.now = replace(now, slow_s=event.after_s)
            case RelievedEvent():
                self.now = None
                return replace(now, until_s=event.t)
            case ProcessUpEvent() | MasterStartedEvent() | FollowsEvent():
                self.now = None
                return replace(now, until_s=event.t, unseen_end=UNSEEN[type(event)])
            case _:
                assert_never(event)
        return None


def relieved_parts(found: Iterable[Slowness]) -> tuple[SlowPart, ...]:
    """Name the parts that were slow in a script, and whose relief was seen; the newest."""
    ended = [one for one in found if one.until_s is not None and not one.unseen_end]
    parts = (replace(part, until_s=one.until_s) for one in ended for part in one.parts)
    return tuple(parts)[-MOST_SHOWN:]


def slownesses(events: Iterable[Event]) -> list[Slowness]:
    """List the times in which a script was slow, the last of which may go on.

    Args:
        events: of a job, as the core has read them, or as what they are.
    """
    pace, found = ScriptPace(), []
    for event in read(events):
        ended = pace.note(event)
        if ended is not None:
            found.append(ended)
    return found if pace.now is None else [*found, pace.now]


def colour_of(ratio: float) -> str:
    """The colour of a part that takes so many times what it took at the job's start."""
    return "red" if ratio >= VERY_SLOW else "yellow" if ratio >= SLOW else "green"
