"""Slow spells: when they are told, and what is read of them again."""

import msgspec

from paceline.features.stragglers.events import (
    NodesComparedEvent,
    StragglerFoundEvent,
    StragglerGoneEvent,
)
from paceline.features.stragglers.spells import Spells, SpellWatch, spells_of
from paceline.wire.client import SlowPart
from paceline.wire.events.base import Event
from paceline.wire.events.job import MasterStartedEvent
from paceline.wire.events.lines import decode_events

NODES = ["worker-0", "worker-1"]
SLOW = SlowPart(
    culprit="computation", nodes=("worker-1",), ratio=2.5, since_s=8.0, done="nothing so far"
)
FOUND = StragglerFoundEvent(t=16.0, node="worker-1", ratio=2.5, since_s=8.0, done="nothing so far")
GONE = StragglerGoneEvent(t=30.0, node="worker-1", since_s=8.0)


def looked(*looks: tuple[float, list[SlowPart], list[str]]) -> list[Event]:
    watch, told = SpellWatch(), list[Event]()
    for at_s, slow, compared in looks:
        told += [event.at(at_s) for event in watch.look(slow, compared, at_s)]
    return told


def test_a_node_is_told_when_it_was_slow_and_then_well_for_some_seconds() -> None:
    looks = [(t, [SLOW] if 10 <= t < 26 else [], NODES) for t in range(0, 40, 2)]
    assert looked(*((float(t), slow, names) for t, slow, names in looks)) == [
        NodesComparedEvent(t=0.0, count=2),
        FOUND,
        msgspec.structs.replace(GONE, t=32.0),
    ]


def test_a_look_alone_says_nothing() -> None:
    once = [(float(t), [SLOW] if t == 10 else [], NODES) for t in range(0, 40, 2)]
    assert [type(event) for event in looked(*once)] == [NodesComparedEvent]
    assert looked((0.0, [], [])) == [], "with nobody to compare nothing is known"


def test_a_node_that_is_not_compared_is_not_called_well() -> None:
    slow = [(float(t), [SLOW], NODES) for t in range(0, 10, 2)]
    restarting = [(float(t), list[SlowPart](), ["worker-0", "worker-2"]) for t in range(10, 60, 2)]
    assert isinstance(looked(*slow, *restarting)[-1], StragglerFoundEvent)
    gone = looked(*slow, *restarting, (70.0, [], ["worker-0", "worker-2"]))[-1]
    assert isinstance(gone, StragglerGoneEvent)
    assert gone.left


def test_what_is_done_about_a_slow_node_is_told_when_it_changes() -> None:
    restarted = msgspec.structs.replace(SLOW, done="restarted 1 time")
    looks = [(float(t), [SLOW if t < 12 else restarted], NODES) for t in range(0, 30, 2)]
    told = [event for event in looked(*looks) if isinstance(event, StragglerFoundEvent)]
    assert [event.done for event in told] == ["nothing so far", "restarted 1 time"]
    assert {event.since_s for event in told} == {0.0}, "of one spell"


def read_again(*events: Event) -> Spells:
    """Read events as the core does, which knows no event of a feature."""
    return spells_of(decode_events([event.text().encode().rstrip() for event in events]))


def test_spells_are_read_from_the_events() -> None:
    spells = read_again(NodesComparedEvent(t=1.0, count=2), FOUND)
    assert (spells.compared, list(spells.now), spells.relieved) == (2, ["worker-1"], ())
    (ended,) = read_again(FOUND, GONE).relieved
    assert (ended.since_s, ended.until_s, ended.ratio) == (8.0, 30.0, 2.5)
    later = read_again(FOUND, MasterStartedEvent(t=20.0, restarted=True))
    assert (later.now, later.relieved) == ({}, ()), "the new master looks anew"
