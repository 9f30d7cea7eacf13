"""Events that were the core's, and are of sizes and history: words, fields, lines of before."""

import json
from typing import get_args

import msgspec
import pytest

from paceline.features.history.master import HistoryUnusableEvent
from paceline.features.sizes import events
from paceline.wire.events.base import Event, FeatureEvent, PlainEvent, known_by
from paceline.wire.events.job import FinishedEvent
from paceline.wire.events.lines import decode_event

W = {"node": "worker-1", "inc": 3}
S = {"node": "server-0", "inc": 1}
TOLD: list[tuple[FeatureEvent, str, str]] = [
    (
        HistoryUnusableEvent(error="history x: no"),
        "history x: no; the job goes on, learns nothing from earlier ones, and is not kept",
        "history x: no; the job goes on, learns nothing from earlier ones, and is not kept",
    ),
    (
        events.SizePlannedEvent(plan="workers 1 -> 3"),
        "workers 1 -> 3",
        "the job is to change its size: workers 1 -> 3",
    ),
    (
        events.SizeChangedEvent(size="3 workers", took_s=4.25),
        "3 workers",
        "the job has another size: 3 workers (after 4.2 s)",
    ),
    (
        events.SizeJudgedEvent(
            before_per_s=1e4, after_per_s=2.5e4, expected_per_s=3e4, found="faster"
        ),
        "faster: 25,000 samples/s after 10,000, 30,000 were expected",
        "the change of size made the job faster: 25,000 samples/s after 10,000, 30,000 were expected",
    ),
    (
        events.SizeKeptEvent(cause="a change was given up: refused"),
        "a change was given up: refused",
        "the job keeps its size: a change was given up: refused",
    ),
    (
        events.MemoryRaisedEvent(
            **S,
            limit_bytes=200 << 20,
            need_bytes=470 << 20,
            used_bytes=143 << 20,
            given_bytes=1 << 30,
        ),
        "server-0 uses 143 MiB of 200 MiB, and is expected to need 470 MiB as tables grow; each "
        "server gets 1 GiB",
        "server-0 uses 143 MiB of 200 MiB, and is expected to need 470 MiB as tables grow; each "
        "server gets 1 GiB",
    ),
    (
        events.MachineShortEvent(need_bytes=30 << 30, left_bytes=5 << 30),
        "the servers are expected to need 30 GiB more as tables grow, and their machine has 5 GiB "
        "left: train on one with more memory",
        "the servers are expected to need 30 GiB more as tables grow, and their machine has 5 GiB "
        "left: train on one with more memory",
    ),
    (
        events.MemoryShortEvent(**W, limit_bytes=1 << 30, need_bytes=2 << 30, after_oom=True),
        "worker-1 ran out of 1 GiB; the spec allows no more: set workers.max_memory, or use more "
        "workers",
        "worker-1 ran out of 1 GiB; the spec allows no more: set workers.max_memory, or use more "
        "workers",
    ),
]
"""Every event: its clause, and its sentence."""
EVENTS = [event for event, _, _ in TOLD]
UNREAD = b'{"t":1,"event":"size_changed","reason":"3 workers"}'
"""A line without a field that its sentence needs."""


def read_again(event: Event, kind: type[Event]) -> list[Event]:
    """Read an event as its feature does."""
    if kind is HistoryUnusableEvent:
        return known_by([event], msgspec.json.Decoder(HistoryUnusableEvent).decode)
    return events.read([event])


def test_every_event_is_here() -> None:
    assert {type(event) for event in EVENTS} == {
        HistoryUnusableEvent,
        *get_args(events.AnySizesEvent),
    }


@pytest.mark.parametrize(("event", "clause", "sentence"), TOLD)
def test_an_event_has_words_which_the_core_reads(
    event: FeatureEvent, clause: str, sentence: str
) -> None:
    assert (event.clause, event.sentence()) == (clause, sentence)
    read = decode_event(event.at(1.5).text().encode())
    assert isinstance(read, PlainEvent)
    assert (read.name, read.feature, read.is_news) == (event.name, event.feature_name, True)
    assert (read.clause, read.sentence()) == (clause, sentence)
    assert read.line() == json.loads(event.at(1.5).text())


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_the_feature_reads_its_fields_again(event: FeatureEvent) -> None:
    stamped = event.at(1.5)
    read = decode_event(stamped.text().encode())
    assert read_again(read, type(event)) == read_again(stamped, type(event)) == [stamped]
    assert events.read([FinishedEvent(t=2.0)]) == [FinishedEvent(t=2.0)]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_a_line_of_before_says_and_holds_as_much(event: FeatureEvent) -> None:
    """The line of an earlier release, in which the event was the core's, has no words of its own."""
    line = event.at(1.5).line()
    had = {name: value for name, value in line.items() if name not in ("feature", "words")}
    read = decode_event(json.dumps(had).encode())
    assert (read.name, read.clause, read.sentence()) == (event.name, event.clause, event.sentence())
    assert read.is_news and read.line() == had
    assert read_again(read, type(event)) == [event.at(1.5)]


def test_a_line_without_a_field_of_its_sentence_keeps_its_reason() -> None:
    read = decode_event(UNREAD)
    assert read.sentence() == "size changed: 3 workers"
    assert events.read([read]) == [read]
