"""The event of a job that shares a device, also as an earlier version has written it."""

import json

import pytest

from paceline.features.sharing.wire import GateMode, SharingDecision, SharingEvent
from paceline.wire.events.base import PlainEvent
from paceline.wire.events.lines import decode_event

ARRIVAL = SharingDecision(cause="arrival", mode=GateMode.DUTY, duty=0.02, guaranteed="a")
DEPARTURE = SharingDecision(cause="departure", mode=GateMode.OFF)
CLAUSES = {
    "arrival": "cpu:0: a is there, and does not run steadily yet; opportunistic jobs: 2% of the "
    "device",
    "departure": "cpu:0: no guaranteed job shares the device; opportunistic jobs: no limit",
}


@pytest.mark.parametrize("decision", [ARRIVAL, DEPARTURE])
def test_the_event_has_words_which_the_core_reads(decision: SharingDecision) -> None:
    event = SharingEvent(t=5.0, node="worker-1", device="cpu:0", decision=decision)
    assert event.clause == CLAUSES[decision.cause]
    assert event.sentence() == f"worker-1 shares {event.clause}"
    read = decode_event(event.text().encode())
    assert isinstance(read, PlainEvent)
    assert (read.name, read.feature, read.node) == ("sharing", "sharing", "worker-1")
    assert read.sentence() == event.sentence()


def test_a_line_of_before_keeps_its_words() -> None:
    clause = CLAUSES["arrival"]
    line = {"t": 5.0, "event": "sharing", "node": "worker-1", "reason": clause, "device": "cpu:0"}
    read = decode_event(json.dumps(line).encode())
    assert read.clause == clause
    assert read.sentence() == f"sharing worker-1: {clause}"
