"""Disks that are full for a while: nothing leaves unjournalled, nothing is lost, all heals."""

import asyncio
import errno
import functools
import json
import os
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import cast

import pytest

from paceline.base.errors import PermanentError
from paceline.base.jobdir import JobDir
from paceline.base.numbering import EpochNo, StepNo
from paceline.base.processes import is_locked, try_lock
from paceline.base.record_log import JournalRefused
from paceline.jobs import jsonl as outlet
from paceline.jobs.history import read_events
from paceline.jobs.jsonl import LineFile
from paceline.jobs.outcome import Outcome, make_room, read_outcome, write_outcome
from paceline.master import waiting
from paceline.master.facts import Asked, Fact, StopAsked, Tick
from paceline.master.job_clock import MasterStarted
from paceline.master.journal import Journal, JournalRecord
from paceline.master.outbox import Outbox
from paceline.master.ports import Backend
from paceline.master.waiting import open_journal, until_written
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.nodes.node import JobEnded, WorkersWanted
from paceline.wire.client import Call, Done, GetStatus, JobStatus, Kill, Reply, StopJob
from tests.conftest import fill

RECORDS = [MasterStarted(started_s=float(number)) for number in range(4)]


class FakeJournal:
    """A journal whose disk refuses on request."""

    def __init__(self) -> None:
        self.refuses = False
        self.records: list[JournalRecord] = []

    def append(self, records: list[JournalRecord]) -> None:
        if records and self.refuses:
            raise JournalRefused("no space left on /job/journal.sqlite")
        self.records += records

    def close(self) -> None:
        pass


class Scene:
    """An outbox over a fake journal, and what has left it."""

    def __init__(self, folder: Path) -> None:
        self.job = JobDir(folder)
        self.journal = FakeJournal()
        nobody = cast("Membership", None), cast("Backend", None)
        self.outbox = Outbox(self.job, *nobody, journal=cast("Journal", self.journal))
        self.left: list[int] = []
        self.inbox: list[Fact] = []

    def decide(self, number: int) -> None:
        self.outbox.record(RECORDS[number])
        self.outbox.later(lambda: self.left.append(number))

    def refuse(self) -> None:
        self.journal.refuses = True
        self.decide(0)
        self.outbox.flush()

    def events(self) -> list[str]:
        return [event.name for event in read_events(self.job.events)]

    async def wait(self, patience_s: float = 60.0) -> str:
        def reply(_: Call) -> Reply:
            return STATUS

        return await until_written(self.outbox, self.inbox, reply, patience_s)


STATUS = JobStatus(
    job_id="job-1",
    state="training",
    master_pid=8,
    epoch_no=EpochNo(1),
    step=StepNo(7),
    committed=500,
    total=1000,
    samples_per_s=100.0,
    eta_s=5.0,
    started_s=0.0,
    valid_cuts=(),
    nodes=(),
    num_events=0,
)
"""As it was before the disk refused."""


def in_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Run an asynchronous test in an event loop of its own."""

    @functools.wraps(test)
    def run(**fixtures: object) -> None:
        asyncio.run(test(**fixtures))

    return run


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "RETRY_S", 0.001)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_nothing_leaves_while_the_journal_refuses_and_all_in_order_afterwards(
    scene: Scene,
) -> None:
    scene.refuse()
    assert scene.outbox.refused
    scene.decide(1)
    scene.outbox.flush()
    assert scene.left == []
    scene.journal.refuses = False
    scene.decide(2)
    scene.outbox.flush()
    assert scene.journal.records == RECORDS[:3]
    assert scene.left == [0, 1, 2]
    assert scene.outbox.has_healed_within(60.0)
    assert not scene.outbox.refused
    assert scene.events() == ["disk_refuses", "disk_heals"]
    told = read_events(scene.job.events)[0].clause
    assert told.startswith("no space left on /job/journal.sqlite")
    assert "paceline stop --now" in told


def test_what_was_given_up_never_leaves_and_is_never_journalled(scene: Scene) -> None:
    scene.refuse()
    scene.outbox.give_up()
    scene.journal.refuses = False
    scene.decide(1)
    scene.outbox.flush()
    scene.outbox.close(JobEnded())
    assert scene.journal.records == []
    assert scene.left == [1]  # the job's processes must end all the same


def test_an_orderly_end_on_a_full_disk_ends(scene: Scene) -> None:
    scene.refuse()
    scene.outbox.close(JobEnded())


@in_loop
async def test_a_master_stands_still_until_its_journal_can_be_written(scene: Scene) -> None:
    scene.refuse()
    waited = asyncio.create_task(scene.wait())
    scene.inbox.append(Tick())
    await asyncio.sleep(0.01)
    assert not waited.done()
    assert scene.inbox == []
    scene.journal.refuses = False
    assert await waited == ""
    assert scene.left == [0]


@in_loop
async def test_people_are_answered_meanwhile(scene: Scene) -> None:
    scene.refuse()
    waited = asyncio.create_task(scene.wait())
    calls: list[Call] = [GetStatus(), StopJob(), Kill(node="worker-0")]
    asked = [Asked(call, asyncio.get_running_loop().create_future()) for call in calls]
    scene.inbox += asked
    status, stop, kill = [await one.answer for one in asked]
    told = cast("JobStatus", status)
    assert (told.samples_per_s, told.eta_s, told.step) == (0.0, None, 7), "it stands still"
    assert told.waits_for.startswith("no space left on ")
    assert "as soon as it can write: no space left" in cast("Done", stop).error
    assert "not now: no space left" in cast("Done", kill).error
    assert scene.inbox == [asked[1]]  # to be obeyed later
    scene.journal.refuses = False
    await waited


@pytest.mark.parametrize("how", ["call", "signals"])
@in_loop
async def test_a_stop_at_once_is_obeyed_without_the_disk(scene: Scene, how: str) -> None:
    scene.refuse()
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    now: list[Fact] = [Asked(StopJob(now=True), future)]
    scene.inbox += now if how == "call" else [StopAsked(), StopAsked()]
    assert await scene.wait() == ""
    assert not scene.outbox.refused
    assert scene.inbox  # the order itself is the master's to carry out


@in_loop
async def test_after_the_stated_time_the_job_fails_and_says_for_what_it_waited(
    scene: Scene,
) -> None:
    scene.refuse()
    told = await scene.wait(patience_s=0.01)
    assert told.startswith("no space left on /job/journal.sqlite, for 0 s; make room there")
    assert scene.left == []


def test_a_real_journal_on_a_full_disk_refuses_and_heals(small_disk: Path) -> None:
    journal = Journal(small_disk / "journal.sqlite")
    journal.append(RECORDS[:1])
    ballast = fill(small_disk)
    many: list[JournalRecord] = [WorkersWanted(count=number) for number in range(5_000)]
    for _ in range(3):
        with pytest.raises(JournalRefused, match=r"no space left on .*journal"):
            journal.append(many)
    ballast.unlink()
    journal.append(many)
    assert list(journal.replay()) == [*RECORDS[:1], *many]
    journal.close()


def test_a_journal_that_can_only_be_read_refuses_and_heals(small_disk: Path) -> None:
    journal = Journal(small_disk / "journal.sqlite")
    journal.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(JournalRefused):
        journal.append(RECORDS)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    journal.append(RECORDS)
    assert list(journal.replay()) == RECORDS
    journal.close()


@in_loop
async def test_a_starting_master_waits_for_room_and_gives_up_with_the_reason(
    small_disk: Path,
) -> None:
    ballast = fill(small_disk)
    with pytest.raises(PermanentError, match=r"no space left on .*, for 0 s; make room there"):
        await open_journal(small_disk / "journal.sqlite", 0.0)
    opening = asyncio.create_task(open_journal(small_disk / "journal.sqlite", 60.0))
    await asyncio.sleep(0.01)
    assert not opening.done()
    ballast.unlink()
    (await opening).close()


def test_an_outcome_has_room_on_a_disk_that_is_full_by_then(small_disk: Path) -> None:
    path = small_disk / "outcome.json"
    make_room(path)
    fill(small_disk)
    outcome = Outcome(state="failed", exit_code=1, error="no space left", traceback="x" * 9000)
    assert write_outcome(outcome, path)
    assert read_outcome(path) == outcome
    assert not write_outcome(Outcome(state="finished", exit_code=0), path)
    assert [one.name for one in small_disk.iterdir() if "outcome" in one.name] == ["outcome.json"]


def test_without_room_the_outcome_is_refused_and_leaves_nothing(small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        write_outcome(Outcome(state="failed", exit_code=1), small_disk / "outcome.json")
    assert [one.name for one in small_disk.iterdir()] == ["ballast"]


def test_lines_have_reserved_room_and_wait_for_more(small_disk: Path) -> None:
    path = small_disk / "events.jsonl"
    lines = LineFile(path, reserve_bytes=8192)
    lines.add({"event": "first"})
    lines.flush()
    ballast = fill(small_disk)
    lines.add({"event": "disk_refuses"})
    lines.flush()
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()][-1:] == [
        "disk_refuses"
    ]
    for number in range(100):
        lines.add({"event": "later", "reason": str(number).zfill(1000)})
        lines.flush()
    ballast.unlink()
    lines.flush()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [int(line["reason"]) for line in found[2:]] == list(range(100))


def test_lines_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet, "MAX_KEPT", 3)
    (tmp_path / "file").touch()
    refuse = [True]

    def opened(self: Path, *rest: object, **more: object) -> object:
        if refuse[0]:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, *rest, **more)

    real = cast("Callable[..., object]", Path.open)
    monkeypatch.setattr(Path, "open", opened)
    lines = LineFile(tmp_path / "file")
    for number in range(10):
        lines.add(number)
        lines.flush()
    refuse[0] = False
    lines.flush()
    assert (tmp_path / "file").read_text() == "7\n8\n9\n"


def test_torn_and_damaged_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    torn = b'{"t": 2, "ev{"t": 3, "event": "x"}\n{"t": 4}\n{"t": 5, "event": "\xff"}\n'
    path.write_bytes(b'{"t": 1, "event": "one"}\n' + torn)
    assert [event.name for event in read_events(path)] == ["one"]


def test_locks_work_where_nothing_can_be_written(small_disk: Path) -> None:
    path = small_disk / "lock"
    path.touch()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert not is_locked(path)
    descriptor = try_lock(path)
    assert descriptor is not None
    assert is_locked(path)
    os.close(descriptor)
