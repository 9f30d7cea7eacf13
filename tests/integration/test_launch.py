"""Starting and resuming: nobody is told that a job runs before its master answers."""

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.base.errors import ConfigError, PermanentError, TransientError
from paceline.base.jobdir import JobDir
from paceline.base.processes import JOB_DIR, is_locked, start_detached, try_lock
from paceline.jobs import launch, leftovers
from paceline.jobs.leftovers import clear_leftovers
from paceline.jobs.outcome import Outcome, write_outcome
from paceline.jobs.resize import Resize
from paceline.wire.client import Call, Done, Reply, Scale
from paceline.wire.control import ControlServer
from paceline.wire.events.job import DiskRefusesEvent
from paceline.wire.spec import JobSpec, save

STALE = "127.0.0.1:1\n"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobDir]:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    job = JobDir.create("launched")
    save(JobSpec(script="/train.py"), job.spec)
    job.master_address.write_text(STALE)
    yield job
    shutil.rmtree(job.run_dir, ignore_errors=True)


@pytest.mark.parametrize("refused", ["make_room", "make_run_dir", "write_resize"])
def test_a_job_whose_resumption_is_refused_keeps_its_outcome(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    write_outcome(Outcome(state="stopped", exit_code=4), job.outcome)
    before = job.outcome.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(JobDir if refused == "make_run_dir" else launch, refused, refuse)
    with pytest.raises(OSError, match="No space left"):
        launch.resume(job, Resize(workers=3))
    assert job.outcome.read_bytes() == before
    assert not is_locked(job.supervisor_lock)


def run_as_supervisor(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: str, *rest: object) -> object:
        return start_detached(module, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(launch, "start_detached", start)


def test_a_resumed_job_whose_supervisor_dies_at_once_is_no_running_job(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as_supervisor("paceline.there_is_no_such_module", monkeypatch)
    with pytest.raises(PermanentError, match="the job did not start"):
        launch.resume(job)


def end_soon(job: JobDir, after_s: float = 0.3) -> threading.Timer:
    """Have the job end, so that its starter goes on.

    Not before the start, which takes away the outcome that it finds.
    """
    timer = threading.Timer(
        after_s, write_outcome, (Outcome(state="failed", exit_code=3), job.outcome)
    )
    timer.start()
    return timer


def test_a_slow_supervisor_is_waited_for_and_the_starter_says_for_what(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "SAY_S", 0.05)

    def start(*_: object) -> "Played":
        timers.append(end_soon(job))
        return Played()

    timers: list[threading.Timer] = []
    monkeypatch.setattr(launch, "start_detached", start)
    launch.resume(job)
    timers[0].join()
    told = capsys.readouterr().err
    assert f"job {job.job_id}: waiting for its supervisor to start, 0 s so far" in told


def test_the_starter_goes_by_the_supervisor_that_there_is_and_by_what_the_master_says(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "SAY_S", 0.05)

    def start(*_: object) -> "Played":  # an agent was faster, and its supervisor has the lock
        locks.extend([try_lock(job.supervisor_lock), try_lock(job.master_lock)])
        timers.append(end_soon(job))
        return Played(0)

    locks: list[int | None] = []
    timers: list[threading.Timer] = []
    monkeypatch.setattr(launch, "start_detached", start)
    soon_s = time.time() + 5.0
    refuses = DiskRefusesEvent(t=soon_s, error="no space left on /x", waits="master")
    of_before = DiskRefusesEvent(t=1.0, error="no space left on /old", waits="journal")
    job.events.write_text(refuses.text() + of_before.text())
    launch.resume(job)
    timers[0].join()
    told = capsys.readouterr().err
    assert "waiting for its master to answer (no space left on /x)" in told
    for descriptor in locks:
        assert descriptor is not None
        os.close(descriptor)


@pytest.mark.parametrize(("module", "kept_up"), [("agent", True), ("zygote", False)])
def test_a_job_without_supervisor_lives_as_long_as_somebody_would_start_another(
    job: JobDir, module: str, kept_up: bool
) -> None:
    assert not launch.is_kept_up(job)
    command = [sys.executable, "-c", "print(1, flush=True); input()", "-m", f"paceline.{module}"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, JOB_DIR: str(job.path)},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert launch.is_kept_up(job) == kept_up
        process.kill()


def test_what_a_job_that_is_over_has_left_is_cleared_by_the_next_look(job: JobDir) -> None:
    job.make_run_dir()
    assert clear_leftovers() == [], "it may go on from its run directory"
    write_outcome(Outcome(state="finished", exit_code=0), job.outcome)
    lock = try_lock(job.supervisor_lock)
    assert lock is not None
    assert clear_leftovers() == [], "its supervisor does that"
    os.close(lock)
    (job.run_dir / "memory").mkdir()
    assert clear_leftovers() == [job.job_id]
    deadline_s = time.monotonic() + 30.0
    while job.run_dir.exists() or is_locked(job.supervisor_lock):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    assert clear_leftovers() == []
    leftovers._cleaners.pop().wait()


def test_a_job_that_ended_before_it_was_asked_has_started(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> "Played":
        write_outcome(Outcome(state="failed", exit_code=3), job.outcome)
        return Played(0)

    monkeypatch.setattr(launch, "start_detached", end)
    launch.resume(job)


class Played:
    """A process as far as its exit code goes."""

    def __init__(self, code: int | None = None) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code


@pytest.fixture
def supervised(job: JobDir) -> Iterator[JobDir]:
    job.make_run_dir()
    lock = try_lock(job.supervisor_lock)
    assert lock is not None
    yield job
    os.close(lock)


def test_an_order_waits_for_a_master_that_is_being_restarted(supervised: JobDir) -> None:
    orders: list[Call] = []
    ordered = asyncio.Event()

    async def answer(call: Call) -> Reply:
        if isinstance(call, Scale):
            orders.append(call)
            ordered.set()
        return Done()

    async def restart() -> None:
        server = ControlServer(supervised.secret(), lambda _: asyncio.sleep(0), answer)
        await server.start(path=supervised.master_socket)
        await ordered.wait()
        await server.stop()

    late = threading.Timer(0.5, lambda: asyncio.run(restart()))
    late.start()
    assert launch.ask_running(supervised, Scale(workers=2)) == Done()
    late.join()
    assert orders == [Scale(workers=2)]


@pytest.mark.parametrize("ends", [True, False], ids=["the job ends", "the master dies"])
def test_an_order_whose_answer_is_lost_is_not_said_to_be_done(
    supervised: JobDir, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(launch, "RESTART_S", 1.5)
    ordered, up = threading.Event(), threading.Event()

    async def answer(call: Call) -> Reply:
        if isinstance(call, Scale):
            ordered.set()
            await asyncio.sleep(60.0)
        return Done()

    async def serve() -> None:
        server = ControlServer(supervised.secret(), lambda _: asyncio.sleep(0), answer)
        await server.start(path=supervised.master_socket)
        up.set()
        await asyncio.to_thread(ordered.wait)
        if ends:
            write_outcome(Outcome(state="finished", exit_code=0), supervised.outcome)
        await server.stop()

    master = threading.Thread(target=lambda: asyncio.run(serve()))
    master.start()
    assert up.wait(10.0)
    expected = (
        (ConfigError, r"^job \S+ has ended meanwhile: it has finished; `paceline status")
        if ends
        else (TransientError, r"^job \S+: its master did not answer \(.+\), so it is not known")
    )
    with pytest.raises(expected[0], match=expected[1]):
        launch.ask_running(supervised, Scale(workers=2))
    master.join()


def test_a_master_that_does_not_come_again_is_said_in_words(
    supervised: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "RESTART_S", 0.3)
    with pytest.raises(TransientError, match=r"has not answered .* try again"):
        launch.ask_running(supervised, Scale(workers=2))


@pytest.mark.parametrize(
    ("ended", "sources", "is_another"),
    [
        (True, {}, True),
        (False, {}, True),
        (True, {"listen": "--set listen"}, True),
        (False, {"listen": "--set listen"}, False),
    ],
)
def test_a_resumed_job_has_another_secret_unless_workers_elsewhere_may_live(
    job: JobDir,
    monkeypatch: pytest.MonkeyPatch,
    ended: bool,
    sources: dict[str, str],
    is_another: bool,
) -> None:
    save(JobSpec(script="/train.py", sources=sources), job.spec)
    if ended:
        write_outcome(Outcome(state="stopped", exit_code=4), job.outcome)
    before = job.secret()
    monkeypatch.setattr(launch, "start_supervisor", lambda _: None)
    launch.resume(job)
    assert (job.secret() != before) == is_another
    assert job.secret_file.stat().st_mode & 0o777 == 0o600
    assert job.resumed.exists()
