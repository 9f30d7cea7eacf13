"""A job's files as facts: events and measurements, read whole or as they grow."""

from pathlib import Path

import pytest

from paceline.jobs.history import (
    Event,
    Tail,
    decode_events,
    is_news,
    read_events,
    read_last_metrics,
    read_metrics,
    sentence,
)


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
    assert read_events(path) == [Event(1.5, "supervisor_started", pid=7)]


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
    Event(0, "supervisor_started"),
    Event(0, "master_started"),
    Event(1, "agent_joined", "worker-0", 0, "pid 5"),
    Event(1, "node_started", "worker-0", 1),
    Event(2, "process_up", "worker-0", 1, "pid 6"),
    Event(2, "epoch", "", 0, "epoch 1 from cut 0"),
    Event(2, "restored", "", 0, "epoch 1"),
    Event(3, "cut_valid", "", 0, "cut 1 at step 0"),
    Event(4, "process_exited", "worker-0", 1, "the script returned"),
    Event(5, "finished"),
]


@pytest.mark.parametrize("event", HEALTHY, ids=lambda event: event.event)
def test_what_every_healthy_job_has_is_no_news(event: Event) -> None:
    assert not is_news(event)
    assert sentence(event)


def test_losses_are_news_in_words() -> None:
    told = {
        Event(1, "relaunch", "worker-1", 4, "signal SIGKILL; again in 0.0 s"): (
            "worker-1 ended (signal SIGKILL), started again"
        ),
        Event(1, "relaunch", "server-0", 4, "exit code 1; again in 2.0 s"): (
            "server-0 ended (exit code 1), started again in 2.0 s"
        ),
        Event(1, "epoch", "", 0, "epoch 2 from cut 3", cut_no=3): (
            "a cut is loaded: epoch 2 from cut 3"
        ),
        Event(1, "master_started", "", 0, "from the journal"): (
            "a new master goes on from the journal"
        ),
        Event(1, "no_limits", "worker-0", 0, "worker-0 runs without limits (cpu limit 2: why)"): (
            "worker-0 runs without limits (cpu limit 2: why)"
        ),
        Event(1, "master_died", "", 0, "exit code -9"): "master died: exit code -9",
    }
    assert {event: sentence(event) for event in told} == told
    assert all(map(is_news, told))


def test_empty_lines_between_events_are_passed_over() -> None:
    assert decode_events([b"", b'{"t":1,"event":"finished"}']) == [Event(1, "finished")]
