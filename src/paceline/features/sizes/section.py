"""What the report tells of a job's size: rows, of which changes have letters in its drawings."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, assert_never

from paceline.features.sizes.events import (
    SizeChangedEvent,
    SizeJudgedEvent,
    SizeKeptEvent,
    SizePlannedEvent,
    read,
)
from paceline.jobs.facts import Facts
from paceline.jobs.history import MetricsPoint
from paceline.jobs.sections import Section
from paceline.jobs.wording import clock, seconds
from paceline.wire.events.job import ScaledEvent
from paceline.wire.events.nodes import ServersChangedEvent, ServersNotChangedEvent

COLUMNS = ("", "at", "what became of the size")
SEEN_S = 3.0
"""Metrics come once a second: a shorter pause is not seen for sure."""


class SizeRow(NamedTuple):
    """Something about the job's size; with a letter, if it is a change in effect."""

    letter: str
    t: float
    words: str


def size_rows(facts: Facts) -> list[SizeRow]:
    """All that became of the job's size, in order."""
    letters = (chr(ord("A") + number % 26) for number in itertools.count())
    return [SizeRow(next(letters) if marks else "", t, words) for marks, t, words in _told(facts)]


def tell(facts: Facts, add: Callable[[Section], None]) -> None:
    """Add the section about the job's size, if anything became of it."""
    found = size_rows(facts)
    if not found:
        return
    section = Section(
        "sizes",
        "Its size",
        columns=COLUMNS,
        rows=[(row.letter, clock(row.t - facts.started_s), row.words) for row in found],
        note="Letters mark the changes in the plots over time.",
        marks=tuple((row.letter, row.t) for row in found if row.letter),
    )
    add(section)


SizeStoryTakes = (
    SizePlannedEvent
    | SizeJudgedEvent
    | SizeKeptEvent
    | SizeChangedEvent
    | ScaledEvent
    | ServersChangedEvent
    | ServersNotChangedEvent
)


def _told(facts: Facts) -> Iterator[tuple[bool, float, str]]:
    """Whether it is a change in effect, when, and the words."""
    planned, ordered_s = False, None
    for event in read(facts.events):
        if not isinstance(event, SizeStoryTakes):
            continue
        match event:
            case SizePlannedEvent() | SizeJudgedEvent() | SizeKeptEvent():
                planned = isinstance(event, SizePlannedEvent)
                yield False, event.t, event.sentence()
            case SizeChangedEvent():
                planned = False
                yield True, event.t, event.sentence()
            case ScaledEvent(role="server"):
                ordered_s = event.t
            case ScaledEvent():
                if event.before is not None and not planned:
                    yield True, event.t, f"workers {event.before} -> {event.count}"
            case ServersChangedEvent():
                # Of a plan, it is a part of the change that follows.
                yield not planned, event.t, _servers(event, ordered_s, facts.points)
                ordered_s = None
            case ServersNotChangedEvent():
                yield False, event.t, event.sentence()
                ordered_s = None
            case _:
                assert_never(event)


def _servers(
    event: ServersChangedEvent, ordered_s: float | None, points: Sequence[MetricsPoint]
) -> str:
    before = event.count - len(event.joined) + len(event.left)
    words = f"servers {before} -> {event.count}"
    if ordered_s is None:
        return words
    words += f", {seconds(event.t - ordered_s)} after the order"
    paused_s = pause(points, ordered_s, event.t)
    return f"{words}; no samples for {seconds(paused_s)}" if paused_s >= SEEN_S else words


def pause(points: Sequence[MetricsPoint], start_s: float, stop_s: float) -> float:
    """The longest time between two dates in which no sample came into the model."""
    longest_s, most, since_s = 0.0, -1, start_s
    for point in points:
        if point.committed > most or not start_s <= point.t <= stop_s:
            most, since_s = max(most, point.committed), point.t
        else:
            longest_s = max(longest_s, point.t - since_s)
    return longest_s
