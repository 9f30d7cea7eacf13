"""Supervisors with real processes, over a master that does as little as a test needs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.base.jobdir import JobDir
from paceline.base.processes import (
    JOB_DIR,
    find_job_processes,
    is_locked,
    kill_quietly,
    try_lock,
)
from paceline.jobs.outcome import End, code_of, read_outcome
from paceline.supervisor.supervisor import POLL_S
from paceline.wire.spec import JobSpec, save

PATIENCE_S = 60.0

FAKE_MASTER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from paceline.base.errors import PermanentError
from paceline.base.jobdir import JobDir
from paceline.base.processes import try_lock
from paceline.wire.last_words import say_at_death
from paceline.jobs.outcome import Outcome, write_outcome

say_at_death(int(sys.argv[3]))
job = JobDir(Path(sys.argv[1]))
if (job.path / "die_at_once").exists():
    sys.exit("cannot start")
if (job.path / "hopeless").exists():
    raise PermanentError("the journal is damaged; move it away")
lock = try_lock(job.master_lock)
if lock is None:
    sys.exit("another master")

def stop(number, frame):
    if not (job.path / "stubborn").exists():
        write_outcome(Outcome(state="stopped", exit_code=128 + number), job.outcome)
        sys.exit(0)

signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
subprocess.Popen(["sleep", "300"], start_new_session=True)
with open(job.path / "masters", "a") as masters:
    masters.write(f"{os.getpid()}\\n")
while not (job.path / "finish").exists():
    time.sleep(0.01)
write_outcome(Outcome(state="finished", exit_code=0), job.outcome)
"""

RUNNER = """
import sys
from pathlib import Path
from paceline.base.jobdir import JobDir
from paceline.supervisor import restarts, supervisor
from paceline.supervisor.__main__ import take_job

restarts.BUDGET = 2
supervisor.LEAVE_GRACE_S = 0.2
job = JobDir(Path(sys.argv[1]))
if take_job(job) is None:
    sys.exit(3)
supervisor.Supervisor(job, "fake_master").run()
"""


class Scene:
    """A job, and supervisors to run on it."""

    def __init__(self, job: JobDir, folder: Path) -> None:
        self.job = job
        self._folder = folder
        (folder / "fake_master.py").write_text(FAKE_MASTER)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        paths = f"{self._folder}:{os.environ.get('PYTHONPATH', '')}"
        env = {**os.environ, JOB_DIR: str(self.job.path), "PYTHONPATH": paths}
        command = [sys.executable, "-c", RUNNER, str(self.job.path)]
        self.started.append(subprocess.Popen(command, env=env, start_new_session=True))
        return self.started[-1]

    def masters(self) -> list[int]:
        path = self.job.path / "masters"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def check_nothing_is_left(self) -> None:
        assert find_job_processes(self.job.path) == []
        assert not self.job.run_dir.exists()
        # A process that ends holds its locks a little longer than it can be seen.
        until(lambda: not is_locked(self.job.supervisor_lock))


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    scene = Scene(JobDir.create("supervised"), tmp_path)
    yield scene
    for process in find_job_processes(scene.job.path):
        kill_quietly(process.pid)
    for process in scene.started:
        process.wait()


def test_a_killed_master_is_started_again_and_a_finished_job_leaves_nothing(scene: Scene) -> None:
    supervisor = scene.start()
    until(lambda: len(scene.masters()) == 1)
    kill_quietly(scene.masters()[0])
    until(lambda: len(scene.masters()) == 2)
    (scene.job.path / "finish").touch()
    assert supervisor.wait(PATIENCE_S) == 0
    outcome = read_outcome(scene.job.outcome)
    assert outcome is not None
    assert outcome.state == "finished"
    scene.check_nothing_is_left()
    events = [json.loads(line)["event"] for line in scene.job.events.read_text().splitlines()]
    assert events == ["launched", "supervisor_started", "master_died"]


def test_a_master_that_always_dies_ends_the_job_with_its_last_words(scene: Scene) -> None:
    (scene.job.path / "die_at_once").touch()
    supervisor = scene.start()
    assert supervisor.wait(PATIENCE_S) == 0
    outcome = read_outcome(scene.job.outcome)
    assert outcome is not None
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    assert "3 times in a row" in outcome.error
    assert outcome.jct_s > 0
    assert outcome.traceback.endswith("cannot start\n")
    scene.check_nothing_is_left()


def test_a_master_that_says_why_no_other_could_go_on_ends_the_job_at_once(scene: Scene) -> None:
    (scene.job.path / "hopeless").touch()
    assert scene.start().wait(PATIENCE_S) == 0
    outcome = read_outcome(scene.job.outcome)
    assert outcome is not None
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    assert outcome.error == "the journal is damaged; move it away"
    assert outcome.traceback == ""
    assert "master_died" not in scene.job.events.read_text()
    scene.check_nothing_is_left()


def test_a_stop_request_is_passed_on_to_the_master(scene: Scene) -> None:
    supervisor = scene.start()
    until(lambda: len(scene.masters()) == 1)
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(PATIENCE_S) == 0
    outcome = read_outcome(scene.job.outcome)
    assert outcome is not None
    assert (outcome.state, outcome.exit_code) == ("stopped", 130), "the same signal"
    scene.check_nothing_is_left()


@pytest.mark.parametrize(
    ("first", "second", "end"),
    [
        (signal.SIGTERM, signal.SIGINT, End.TERMINATED),
        (signal.SIGINT, signal.SIGTERM, End.INTERRUPTED),
    ],
)
def test_a_second_stop_request_ends_everything_at_once(
    scene: Scene, first: int, second: int, end: End
) -> None:
    (scene.job.path / "stubborn").touch()
    supervisor = scene.start()
    until(lambda: len(scene.masters()) == 1)
    supervisor.send_signal(first)
    until(lambda: "stop_asked" in scene.job.events.read_text())
    supervisor.send_signal(second)
    assert supervisor.wait(PATIENCE_S) == 0
    outcome = read_outcome(scene.job.outcome)
    assert outcome is not None
    assert (outcome.state, outcome.exit_code) == ("stopped", code_of(end))
    assert outcome.end is outcome.how is end
    scene.check_nothing_is_left()


def test_a_master_that_dies_while_it_stops_leaves_the_end_to_its_supervisor(scene: Scene) -> None:
    (scene.job.path / "stubborn").touch()
    supervisor = scene.start()
    until(lambda: len(scene.masters()) == 1)
    supervisor.send_signal(signal.SIGTERM)
    until(lambda: "stop_asked" in scene.job.events.read_text())
    kill_quietly(scene.masters()[0])
    assert supervisor.wait(PATIENCE_S) == 0
    outcome = read_outcome(scene.job.outcome)
    assert outcome is not None
    assert (outcome.end, outcome.exit_code) == (End.TERMINATED, 143)
    assert "the master died while the job was stopping" in outcome.error
    scene.check_nothing_is_left()


def test_a_successor_leaves_a_living_master_alone_and_replaces_it_when_it_dies(
    scene: Scene,
) -> None:
    first = scene.start()
    until(lambda: len(scene.masters()) == 1)
    first.kill()
    second = scene.start()
    until(lambda: scene.job.events.read_text().count("supervisor_started") == 2)
    assert len(scene.masters()) == 1
    kill_quietly(scene.masters()[0])
    until(lambda: len(scene.masters()) == 2)
    second.send_signal(signal.SIGTERM)
    assert second.wait(PATIENCE_S) == 0
    scene.check_nothing_is_left()


def test_a_supervisor_that_was_frozen_and_thawed_goes_on(scene: Scene) -> None:
    supervisor = scene.start()
    until(lambda: len(scene.masters()) == 1)
    for _ in range(3):
        supervisor.send_signal(signal.SIGSTOP)
        time.sleep(2 * POLL_S)  # its wait is over when it goes on
        supervisor.send_signal(signal.SIGCONT)
        time.sleep(0.05)
    assert "stop_asked" not in scene.job.events.read_text()
    (scene.job.path / "finish").touch()
    assert supervisor.wait(PATIENCE_S) == 0
    scene.check_nothing_is_left()


def test_a_job_has_one_supervisor(scene: Scene) -> None:
    first = scene.start()
    until(lambda: len(scene.masters()) == 1)
    assert scene.start().wait(PATIENCE_S) == 3
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE_S) == 0


LAST_MASTER = """
import sys
from paceline.base.jobdir import JobDir
from paceline.master import __main__ as master
from paceline.jobs.outcome import Outcome, write_outcome

async def serve(job, spec):
    write_outcome(Outcome(state="finished", exit_code=0), job.outcome)

master.serve = serve
master.main()
"""


def end_of_master(job: JobDir) -> subprocess.CompletedProcess[bytes]:
    """A master that has nothing left to do but to exit."""
    save(JobSpec(script="train.py"), job.spec)
    env = {**os.environ, JOB_DIR: str(job.path)}
    command = [sys.executable, "-c", LAST_MASTER, str(job.path)]
    return subprocess.run(command, env=env, check=True, timeout=PATIENCE_S)


def test_a_supervisor_that_died_before_the_job_s_end_is_replaced_to_clean_up(
    scene: Scene,
) -> None:
    end_of_master(scene.job)
    until(lambda: not scene.job.run_dir.exists())
    until(lambda: not find_job_processes(scene.job.path))
    scene.check_nothing_is_left()
    assert scene.job.events.read_text().count("supervisor_started") == 1
    outcome = read_outcome(scene.job.outcome)
    assert outcome is not None
    assert outcome.state == "finished"


def test_a_living_supervisor_is_not_replaced_at_the_end(scene: Scene) -> None:
    lock = try_lock(scene.job.supervisor_lock)
    assert lock is not None
    end_of_master(scene.job)
    os.close(lock)
    assert find_job_processes(scene.job.path) == []
    assert scene.job.run_dir.exists()
    shutil.rmtree(scene.job.run_dir)
