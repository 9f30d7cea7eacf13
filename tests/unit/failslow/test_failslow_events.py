"""The events of fail-slow: their words, which the core reads, and their fields, also of before."""

import json
from typing import get_args

import pytest

from paceline.features.failslow import events
from paceline.features.failslow.wire import NodeSpeed
from paceline.wire.events.base import FeatureEvent, PlainEvent
from paceline.wire.events.job import FinishedEvent
from paceline.wire.events.lines import decode_event
from paceline.wire.messages.base import Link

W = {"node": "worker-1", "inc": 3}
SPEED = NodeSpeed(
    threads=1,
    matmul_flops=41e9,
    copy_bytes_per_s=9e9,
    links=(Link("worker-0", 1e8, 1e-4), Link("worker-2", 3e8, 1e-4)),
)
TOLD: list[tuple[FeatureEvent, str, str]] = [
    (
        events.CheckedEvent(**W, speed=SPEED),
        "matmul 41 GFLOP/s, memory 9 GB/s, links 0.1 to 0.3 GB/s",
        "worker-1 was checked: matmul 41 GFLOP/s, memory 9 GB/s, links 0.1 to 0.3 GB/s",
    ),
    (
        events.CheckFailedEvent(**W, reason="links: ValueError('x')"),
        "links: ValueError('x')",
        "the check of worker-1 failed, the job goes on without it: links: ValueError('x')",
    ),
    (
        events.SlowNodeEvent(node="worker-1", what="links", value=1e9, ratio=0.25),
        "its links carry at most 1 GB/s, 0.25 of the median",
        "worker-1 is slow: its links carry at most 1 GB/s, 0.25 of the median",
    ),
    (
        events.SlowLinkEvent(ends=("worker-0", "worker-1"), what="link", value=1e8, ratio=0.1),
        "worker-0 - worker-1: 0.1 GB/s, 0.10 of the median",
        "a link is slow: worker-0 - worker-1: 0.1 GB/s, 0.10 of the median",
    ),
    (
        events.StartUnseenEvent(reason="worker-1 told none of its calls"),
        "worker-1 told none of its calls",
        "of the job's start not all is known: worker-1 told none of its calls",
    ),
    (
        events.FollowsEvent(node="worker-1", reason="worker-0 has made none while it made 40"),
        "worker-0 has made none while it made 40",
        "the steps of worker-1 are followed from now on, and compared with each other: worker-0 "
        "has made none while it made 40",
    ),
    (
        events.SlowedEvent(step=1440, before_s=0.02, after_s=0.05),
        "since step 1,440 a step takes 50 ms, 2.50 times the 20 ms before",
        "the job is slow: since step 1,440 a step takes 50 ms, 2.50 times the 20 ms before",
    ),
    (
        events.DiagnosedEvent(
            culprit="link",
            nodes=("worker-0", "worker-1"),
            ratio=9.8,
            evidence="measured by itself",
            absent=("worker-2",),
        ),
        "the link worker-0 - worker-1 takes 9.80 times as long: measured by itself; did not come to "
        "be measured: worker-2",
        "the link worker-0 - worker-1 takes 9.80 times as long: measured by itself; did not come to "
        "be measured: worker-2",
    ),
    (
        events.RestartAdvisedEvent(
            nodes=("worker-3",), lost_s=31.0, start_s=8.0, redo_s=22.0, has_saved=True
        ),
        "a restart without worker-3 is worth its price by now: 31 s are lost, and it would cost "
        "30 s (8 s to start, 22 s of work since torch.save last ran)",
        "a restart without worker-3 is worth its price by now: 31 s are lost, and it would cost "
        "30 s (8 s to start, 22 s of work since torch.save last ran)",
    ),
    (
        events.RelievedEvent(step=1500, before_s=0.05, after_s=0.03, still_slow=True),
        "a step takes 30 ms since step 1,500, longer than when it was healthy",
        "the job is faster: a step takes 30 ms since step 1,500, longer than when it was healthy",
    ),
]
"""Every event: its clause, and its sentence."""
EVENTS = [event for event, _, _ in TOLD]


def test_every_event_is_here() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(events.AnyFailSlowEvent))


@pytest.mark.parametrize(("event", "clause", "sentence"), TOLD)
def test_an_event_has_words_which_the_core_reads(
    event: FeatureEvent, clause: str, sentence: str
) -> None:
    assert (event.clause, event.sentence()) == (clause, sentence)
    read = decode_event(event.at(1.5).text().encode())
    assert isinstance(read, PlainEvent)
    assert (read.name, read.feature, read.is_news) == (event.name, "failslow", event.is_news)
    assert (read.clause, read.sentence()) == (clause, sentence)
    assert read.line() == json.loads(event.at(1.5).text())


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_the_feature_reads_its_fields_again(event: FeatureEvent) -> None:
    stamped = event.at(1.5)
    read = decode_event(stamped.text().encode())
    assert events.read([read, FinishedEvent(t=2.0)]) == [stamped, FinishedEvent(t=2.0)]
    assert events.read([stamped]) == [stamped]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_a_line_of_before_is_read_as_well(event: FeatureEvent) -> None:
    """The line of an earlier release, in which the event was the core's, has no words of its own."""
    line = event.at(1.5).line()
    had = {name: value for name, value in line.items() if name not in ("feature", "words", "usual")}
    read = decode_event(json.dumps(had).encode())
    assert (read.clause, read.name, read.is_news) == (event.clause, event.name, event.is_news)
    assert events.read([read]) == [event.at(1.5)]


def test_a_line_of_another_version_stays_as_it_is() -> None:
    read = decode_event(b'{"t":1,"event":"diagnosed","reason":"worker-1 computes longer"}')
    assert events.read([read]) == [read]
