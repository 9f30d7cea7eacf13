"""What became of a job's size: rows of the report, letters that mark its plots, and a curve."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, assert_never

from paceline.base.jobdir import role_of
from paceline.jobs.facts import Facts
from paceline.jobs.history import MetricsPoint
from paceline.jobs.wording import clock, seconds
from paceline.wire.events.job import (
    ScaledEvent,
    SizeChangedEvent,
    SizeJudgedEvent,
    SizeKeptEvent,
    SizePlannedEvent,
)
from paceline.wire.events.nodes import ServersChangedEvent, ServersNotChangedEvent

COLUMNS = ("", "at", "what became of the size")
SEEN_S = 3.0
"""Metrics come once a second: a shorter pause is not seen for sure."""


class SizeRow(NamedTuple):
    """Something about the job's size; with a letter, if it is a change in effect."""

    letter: str
    t: float
    words: str


class SizePoint(NamedTuple):
    """The nodes of a job at one measurement."""

    t: float
    """Unix time."""
    workers: int
    servers: int
    cores: float
    """Granted to all of them; no number: not known, or one of them has no quota."""


def size_rows(facts: Facts) -> list[SizeRow]:
    """All that became of the job's size, in order."""
    letters = (chr(ord("A") + number % 26) for number in itertools.count())
    return [SizeRow(next(letters) if marks else "", t, words) for marks, t, words in _told(facts)]


def has_changed(facts: Facts) -> bool:
    """Whether another number of nodes, or another quota, has come into effect."""
    if any(row.letter for row in size_rows(facts)):
        return True
    quotas: dict[str, float] = {}
    seen = (one for point in facts.points for one in point.nodes.items())
    return any(
        quotas.setdefault(name, node.cores) != node.cores
        for name, node in seen
        if node.cores is not None
    )


def size_curve(points: Sequence[MetricsPoint]) -> list[SizePoint]:
    """How large the job was at each measurement."""
    return [_size_at(point) for point in points]


def _size_at(point: MetricsPoint) -> SizePoint:
    roles = [role_of(name) for name in point.nodes]
    cores = [math.nan if node.cores is None else node.cores for node in point.nodes.values()]
    granted = sum(cores) if cores else math.nan
    return SizePoint(point.t, roles.count("worker"), roles.count("server"), granted)


def table_rows(facts: Facts) -> list[tuple[str, ...]]:
    """Rows as `COLUMNS` has them."""
    return [(row.letter, clock(row.t - facts.started_s), row.words) for row in size_rows(facts)]


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
    for event in facts.events:
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
