"""A job's files as facts: events and measurements, read whole or as they grow."""

from pathlib import Path

import pytest

from paceline.jobs.history import Tail, read_events, read_last_metrics, read_metrics
from paceline.wire.events.base import Event
from paceline.wire.events.job import (
    FinishedEvent,
    MasterDiedEvent,
    MasterStartedEvent,
    SupervisorStartedEvent,
)
from paceline.wire.events.nodes import (
    AgentJoinedEvent,
    NodeStartedEvent,
    NoLimitsEvent,
    ProcessExitedEvent,
    ProcessUpEvent,
    RelaunchEvent,
    Verdict,
)
from paceline.wire.events.state import CutValidEvent, EpochEvent, RestoredEvent


def test_a_tail_gives_each_whole_line_once_and_waits_for_the_end_of_the_last(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.lines() == []
    path.write_bytes(b"one\ntwo\nthr")
    assert tail.lines() == [b"one", b"two"]
    assert tail.lines() == []
    with path.open("ab") as file:
        file.write(b"ee\n")
    assert tail.lines() == [b"three"]


def test_a_tail_of_a_file_that_was_begun_again_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(path)
    assert tail.lines() == [b"one", b"two"]
    path.write_bytes(b"new\n")
    assert tail.lines() == [b"new"]


def test_a_tail_from_the_end_leaves_out_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n")
    tail = Tail(path, from_end=True)
    with path.open("ab") as file:
        file.write(b"new\n")
    assert tail.lines() == [b"new"]


def test_events_of_the_supervisor_with_fields_of_their_own_are_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"t":1.5,"event":"supervisor_started","pid":7}\n')
    assert read_events(path) == [SupervisorStartedEvent(t=1.5, pid=7)]


def test_the_newest_measurement_is_found_without_reading_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_last_metrics(path) is None
    lines = [
        f'{{"t":{t},"committed":{t * 10},"samples_per_s":10.0,"nodes":{{}}}}' for t in range(50)
    ]
    path.write_text("\n".join(lines) + '\n{"t":51,"comm')
    for tail_bytes in (200, 1 << 16):
        last = read_last_metrics(path, tail_bytes)
        assert last is not None
        assert (last.t, last.committed) == (49, 490)
    assert len(read_metrics(path)) == 50


HEALTHY = [
    SupervisorStartedEvent(t=0.0, pid=7),
    MasterStartedEvent(t=0.0, restarted=False),
    AgentJoinedEvent(t=1.0, node="worker-0", pid=5),
    NodeStartedEvent(t=1.0, node="worker-0", inc=1),
    ProcessUpEvent(t=2.0, node="worker-0", inc=1, pid=6),
    EpochEvent(t=2.0, epoch_no=1, cut_no=0, undone=0),
    RestoredEvent(t=2.0, epoch_no=1),
    CutValidEvent(t=3.0, cut_no=1, step=0),
    ProcessExitedEvent(
        t=4.0, node="worker-0", inc=1, verdict=Verdict.FINISHED, reason="the script returned"
    ),
    FinishedEvent(t=5.0),
]


@pytest.mark.parametrize("event", HEALTHY, ids=lambda event: event.name)
def test_what_every_healthy_job_has_is_no_news(event: Event) -> None:
    assert not event.is_news
    assert event.sentence()


def test_losses_are_news_in_words() -> None:
    told = {
        RelaunchEvent(t=1.0, node="worker-1", inc=4, cause="signal SIGKILL", wait_s=0.0): (
            "worker-1 ended (signal SIGKILL), started again"
        ),
        RelaunchEvent(t=1.0, node="server-0", inc=4, cause="exit code 1", wait_s=2.0): (
            "server-0 ended (exit code 1), started again in 2.0 s"
        ),
        EpochEvent(t=1.0, epoch_no=2, cut_no=3, undone=0): "the model is loaded from cut 3",
        MasterStartedEvent(t=1.0, restarted=True): ("a new master goes on from the journal"),
        NoLimitsEvent(
            t=1.0, node="worker-0", reason="worker-0 runs without limits (cpu limit 2: why)"
        ): ("worker-0 runs without limits (cpu limit 2: why)"),
        MasterDiedEvent(t=1.0, reason="exit code -9"): "master died: exit code -9",
    }
    assert {event: event.sentence() for event in told} == told
    assert all(event.is_news for event in told)
