"""What is slow in a job: of a script by its events, of others by what a solution sees."""

import io
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from paceline.base.jobdir import JobDir
from paceline.cli.show import show_job
from paceline.features.failslow.events import (
    DiagnosedEvent,
    FollowsEvent,
    RelievedEvent,
    RestartAdvisedEvent,
    SlowedEvent,
)
from paceline.features.failslow.slowness import ScriptPace, Slowness, slownesses
from paceline.features.stragglers.policy.decision_log import Decided, Measured, log_of
from paceline.features.stragglers.slow import shown as last_shown
from paceline.features.stragglers.slow import slow_parts
from paceline.jobs.jsonl import LineFile
from paceline.jobs.outcome import Outcome
from paceline.jobs.slowness import headline, rows
from paceline.policy.observation import Observation, ServerSeen, WorkerSeen
from paceline.policy.stats.regimes import Point, Regime
from paceline.wire.client import Shown
from paceline.wire.events.base import Event
from paceline.wire.events.job import LaunchedEvent, MasterStartedEvent
from paceline.wire.events.nodes import ProcessUpEvent
from paceline.wire.spec import JobSpec

SLOWED = SlowedEvent(t=19.0, step=440, before_s=0.027, after_s=0.054)
FOUND = DiagnosedEvent(
    t=22.0, culprit="computation", nodes=("worker-2",), ratio=2.28, evidence="52 ms", took_s=3.1
)
LINK = DiagnosedEvent(t=22.0, culprit="link", nodes=("worker-0", "worker-1"), ratio=9.8, took_s=3.1)
WELL = RelievedEvent(t=40.0, step=900, before_s=0.054, after_s=0.028)


def told(*events: Event) -> Slowness | None:
    pace = ScriptPace()
    for event in events:
        pace.note(event)
    return pace.now


def table(*events: Event) -> list[tuple[str, ...]]:
    now = told(*events)
    return rows(now.parts, 0.0) if now else []


def test_a_slow_script_is_told_from_its_onset_on() -> None:
    job, looked_for = "the job", "the cause is looked for"
    assert table() == []
    assert table(SLOWED) == [(job, "2.00", "0:19", looked_for)]
    rank = ("worker-2", "2.28", "0:19", "nothing: a script steers itself")
    assert table(SLOWED, FOUND) == [rank]
    assert [row[0] for row in table(SLOWED, FOUND, LINK)] == ["worker-2", "worker-0 - worker-1"]
    unknown = msgspec.structs.replace(FOUND, culprit="nothing", nodes=(), evidence="")
    assert table(SLOWED, unknown) == [(job, "2.00", "0:19", "no component was found to blame")]


def test_advice_is_what_is_done_and_outlives_the_next_diagnosis() -> None:
    advised = RestartAdvisedEvent(
        t=30.0, nodes=("worker-2",), lost_s=31.0, start_s=8.0, redo_s=22.0, has_saved=True
    )
    later = msgspec.structs.replace(FOUND, t=50.0, took_s=1.0)
    for events in ((FOUND, advised), (FOUND, advised, later)):
        (row,) = table(SLOWED, *events)
        assert row[3] == "a restart without it is advised"
    (_, other) = table(SLOWED, FOUND, LINK, advised)
    assert other[3] == "nothing: a script steers itself"


def test_a_later_diagnosis_replaces_the_one_before_and_keeps_since_when() -> None:
    again = SlowedEvent(t=60.0, step=900, before_s=0.054, after_s=0.081)
    both = [
        msgspec.structs.replace(FOUND, t=62.0, took_s=2.0),
        msgspec.structs.replace(FOUND, t=62.0, took_s=2.0, nodes=("worker-0",), ratio=3.0),
    ]
    assert [row[:3] for row in table(SLOWED, FOUND, again, *both)] == [
        ("worker-2", "2.28", "0:19"),
        ("worker-0", "3.00", "1:00"),
    ]
    now = told(SLOWED, FOUND, again)
    assert now is not None and (now.healthy_s, now.slow_s) == (0.027, 0.081)


@pytest.mark.parametrize(
    ("end", "unseen"),
    [
        (WELL, ""),
        (
            ProcessUpEvent(t=40.0, node="worker-0", inc=7, pid=9),
            "processes of the script were started again",
        ),
        (
            MasterStartedEvent(t=40.0, restarted=True),
            "the master was started again, and nobody saw whether it ended",
        ),
        (
            FollowsEvent(t=40.0, node="worker-1", reason="so"),
            "other steps were followed from then on",
        ),
    ],
)
def test_a_slowness_ends_with_a_relief_or_is_lost_sight_of(end: Event, unseen: str) -> None:
    (one,) = slownesses([SLOWED, FOUND, end])
    assert (one.since_s, one.until_s, one.unseen_end) == (19.0, 40.0, unseen)
    assert told(SLOWED, FOUND, end) is None
    (first, second) = slownesses([SLOWED, end, msgspec.structs.replace(SLOWED, t=50.0)])
    assert (first.until_s, second.since_s, second.until_s) == (40.0, 50.0, None)


def test_a_partial_relief_ends_nothing() -> None:
    still = msgspec.structs.replace(WELL, still_slow=True, after_s=0.04)
    now = told(SLOWED, FOUND, still)
    assert now is not None and now.slow_s == 0.04


def test_a_part_that_stands_out_at_the_start_is_told_without_an_onset() -> None:
    at_start = msgspec.structs.replace(FOUND, took_s=0.0)
    now = told(ProcessUpEvent(t=1.0, node="worker-0", inc=1, pid=2), at_start)
    assert now is not None and now.healthy_s is None
    assert headline(now.parts, 2.0) == "slow since 0:20: worker-2 computes 2.28 times as long"


def test_the_headline_says_who_or_that_nobody_was_found() -> None:
    now = told(SLOWED)
    assert now is not None
    expected = "slow since 0:19: a step takes 2.00 times as long (the cause is looked for)"
    assert headline(now.parts, 0.0) == expected
    assert headline((), 0.0) == ""
    many = [
        msgspec.structs.replace(FOUND, nodes=(f"worker-{rank}",), ratio=9.0 - rank)
        for rank in range(5)
    ]
    now = told(SLOWED, *many)
    assert now is not None
    assert headline(now.parts, 0.0) == (
        "slow since 0:19: worker-0 computes 9.00 times as long, worker-1 computes 8.00 times as "
        "long, worker-2 computes 7.00 times as long and 2 more"
    )


# --------------------------------------------------------------------------- other jobs


def observation(slow_s: float = 0.3, *, batch_size: int = 64, restarts: int = 0) -> Observation:
    """Four workers, the second of which may be slow since second 70, and two even servers."""

    def regime(compute_s: float, size: int, since_s: float) -> Regime:
        points = (Point(size, 100, compute_s),)
        return Regime(since_s=since_s, iterations=100, points=points, scatter=0.01)

    workers = [
        WorkerSeen(node=f"worker-{i}", batch_size=64, regime=regime(0.1, 64, 10.0))
        for i in range(4)
    ]
    workers[1] = WorkerSeen(
        node="worker-1",
        batch_size=batch_size,
        restarts=restarts,
        regime=regime(slow_s, batch_size, 70.0),
    )
    servers = [ServerSeen(node=f"server-{i}", regime=regime(0.01, 0, 10.0)) for i in range(2)]
    return Observation(
        now_s=100.0,
        step=500,
        mode="allreduce",
        global_batch=256,
        steps_left=None,
        workers=tuple(workers),
        servers=tuple(servers),
    )


def test_stragglers_stand_in_the_same_table() -> None:
    assert rows(slow_parts(observation(), 1030.0), 900.0) == [
        ("worker-1", "3.00", "1:40", "nothing so far")
    ]
    assert slow_parts(observation(0.1), 1030.0) == ()


def test_what_is_done_about_a_straggler_is_what_is_in_force() -> None:
    (part,) = slow_parts(observation(batch_size=16, restarts=2), 0.0)
    assert part.done == "restarted 2 times; computes 16 samples where an even share has 52"
    (part,) = slow_parts(observation(batch_size=1), 0.0)
    assert part.done == "computes 1 sample where an even share has 48"
    (part,) = slow_parts(msgspec.structs.replace(observation(), backup=1), 0.0)
    assert part.done == "steps do not wait for it"


def test_a_slow_server_is_told_too() -> None:
    seen = observation(0.1)
    points = (Point(0, 100, 0.05),)
    slow = Regime(since_s=60.0, iterations=100, points=points, scatter=0.01)
    servers = (*seen.servers, ServerSeen(node="server-2", regime=slow))
    (part,) = slow_parts(msgspec.structs.replace(seen, servers=servers, replacing="server-2"), 0.0)
    assert (part.nodes, part.ratio) == (("server-2",), pytest.approx(5.0))
    assert part.done == "another server replaces it"


def test_of_a_job_that_has_ended_the_last_decision_counts(tmp_path: Path) -> None:
    job = JobDir(tmp_path)
    log = LineFile(log_of(job))
    assert last_shown(job) == Shown()
    log.add(Decided(t=1.0, no=1, observation=observation(0.1)))
    log.add(Decided(t=1030.0, no=2, observation=observation()))
    log.add(Measured(t=1040.0, no=2, index=0, before=1.0, after=2.0, seconds=5.0))
    log.flush()
    with log_of(job).open("a") as file:
        file.write('{"torn')
    (part,) = last_shown(job).slow
    assert (part.nodes, part.since_s) == (("worker-1",), 1000.0)
    job.spec.write_bytes(msgspec.json.encode(JobSpec(script="train.py")))
    job.outcome.write_bytes(
        msgspec.json.encode(Outcome(state="stopped", exit_code=130, jct_s=1040.0))
    )
    assert re.search(r"worker-1 .* nothing so far", shown(job))


def test_status_of_a_job_that_has_ended_shows_what_was_slow(tmp_path: Path) -> None:
    job = JobDir(tmp_path / "jobs" / "slow-1")
    job.path.mkdir(parents=True)
    job.spec.write_bytes(msgspec.json.encode(JobSpec(script="train.py", strategy="script")))
    events = [LaunchedEvent(t=0.0), SLOWED, FOUND]
    job.events.write_text("".join(event.text() for event in events))
    outcome = Outcome(state="stopped", exit_code=130, jct_s=30.0)
    job.outcome.write_bytes(msgspec.json.encode(outcome))
    assert "worker-2  2.28           0:19   nothing: a script steers itself" in shown(job)
    job.events.write_text("".join(event.text() for event in [*events, WELL]))
    assert "worker-2  2.28           0:19 to 0:40  well again; before: nothing" in shown(job)


def shown(job: JobDir) -> str:
    out = io.StringIO()
    show_job(job, Console(file=out, width=100))
    return out.getvalue()
