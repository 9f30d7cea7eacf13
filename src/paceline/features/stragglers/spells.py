"""Slow spells of nodes: found by looks at a running job, and read again from its events.

`SpellWatch` says when a spell begins and ends. A node must be slow, or well, for some seconds: on a
machine that others use, too, a look alone says little.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import assert_never

import msgspec

from paceline.features.stragglers.events import (
    AnyStragglersEvent,
    NodesComparedEvent,
    StragglerFoundEvent,
    StragglerGoneEvent,
    read,
)
from paceline.wire.client import SlowPart
from paceline.wire.events.base import Event
from paceline.wire.events.job import MasterStartedEvent

SURE_S = 5.0
"""Seconds for which a node must be slow, or well, before that is told."""
LEFT_S = 60.0
"""Seconds after which a node that is not compared any more is not called slow any more."""
MOST_SHOWN = 5
"""Most spells that have ended and are shown: the newest."""


class _Seen(msgspec.Struct):
    """One node that was slow, as the looks have seen it."""

    part: SlowPart
    slow_from_s: float
    """Time of the first look in which it was slow."""
    seen_s: float
    """Time of the newest look in which it was compared."""
    well_from_s: float | None = None
    """Time of the first look since which it was compared and not slow; None: it is slow."""
    told: StragglerFoundEvent | None = None


class SpellWatch:
    """Begins and ends of slow spells; times are Unix times."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._has_compared = False

    def look(
        self, slow: Sequence[SlowPart], compared: Collection[str], now_s: float
    ) -> list[AnyStragglersEvent]:
        """Take in a look; return what is to be told.

        Args:
            slow: the nodes that are slow.
            compared: names of the nodes that could be compared.
            now_s: time of the look.
        """
        told: list[AnyStragglersEvent] = []
        if compared and not self._has_compared:
            self._has_compared = True
            told.append(NodesComparedEvent(count=len(compared)))
        for part in slow:
            seen = self._seen.setdefault(part.nodes[0], _Seen(part, now_s, now_s))
            seen.part, seen.seen_s, seen.well_from_s = part, now_s, None
            if now_s - seen.slow_from_s >= SURE_S and _is_news(seen, now_s):
                seen.told = _found(seen).at(now_s)
                told.append(seen.told)
        for node, seen in list(self._seen.items()):
            if seen.seen_s == now_s:
                continue
            if node in compared:
                seen.seen_s = now_s
                seen.well_from_s = now_s if seen.well_from_s is None else seen.well_from_s
            over = _over(node, seen, now_s)
            if over is not None or (seen.told is None and node in compared):
                del self._seen[node]
            told += [over] if over is not None and seen.told is not None else []
        return told


def _over(node: str, seen: _Seen, now_s: float) -> StragglerGoneEvent | None:
    """Tell whether a spell is over: the node is well for a while, or has long left."""
    since_s = seen.told.since_s if seen.told is not None else seen.slow_from_s
    if seen.well_from_s is not None and now_s - seen.well_from_s >= SURE_S:
        return StragglerGoneEvent(node=node, since_s=since_s)
    if now_s - seen.seen_s >= LEFT_S:
        return StragglerGoneEvent(node=node, since_s=since_s, left=True)
    return None


def _found(seen: _Seen) -> StragglerFoundEvent:
    part = seen.part
    since_s = min(part.since_s, seen.slow_from_s) if seen.told is None else seen.told.since_s
    return StragglerFoundEvent(
        node=part.nodes[0], ratio=part.ratio, since_s=since_s, done=part.done
    )


def _is_news(seen: _Seen, now_s: float) -> bool:
    """Tell whether a spell is new, or something else is done about it, for a while."""
    told = seen.told
    return told is None or (told.done != seen.part.done and now_s - told.t >= SURE_S)


SpellsTakes = AnyStragglersEvent | MasterStartedEvent
"""Events that begin or end slow spells."""


class Spells:
    """Slow spells of a job, event by event."""

    def __init__(self) -> None:
        self.now: dict[str, SlowPart] = {}
        """Nodes that are slow, or were when the job ended."""
        self.ended: list[SlowPart] = []
        """Spells after which the node was well again, in the order of their ends."""
        self.compared = 0
        """Nodes that were compared; 0: none were, so nothing is known."""

    def note(self, event: Event) -> None:
        """Take in the next event. A new master looks anew: what it does not find is not told."""
        if not isinstance(event, SpellsTakes):
            return
        match event:
            case NodesComparedEvent():
                self.compared = max(self.compared, event.count)
            case StragglerFoundEvent():
                self.now[event.node] = SlowPart(
                    culprit="computation",
                    nodes=(event.node,),
                    ratio=event.ratio,
                    since_s=event.since_s,
                    done=event.done,
                )
            case StragglerGoneEvent():
                part = self.now.pop(event.node, None)
                if part is not None and not event.left:
                    self.ended.append(msgspec.structs.replace(part, until_s=event.t))
            case MasterStartedEvent():
                self.now.clear()
            case _:
                assert_never(event)

    def since(self, part: SlowPart) -> SlowPart:
        """Date a slow node from the begin of its spell: a restart in between measures it anew."""
        told = self.now.get(part.nodes[0])
        return part if told is None else msgspec.structs.replace(part, since_s=told.since_s)

    @property
    def relieved(self) -> tuple[SlowPart, ...]:
        """Return the newest spells that have ended."""
        return tuple(self.ended[-MOST_SHOWN:])


def spells_of(events: Iterable[Event]) -> Spells:
    """Read the slow spells of a job from its events, as the core has read them."""
    spells = Spells()
    for event in read(events):
        spells.note(event)
    return spells
