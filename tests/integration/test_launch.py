"""Starting and resuming: nobody is told that a job runs before its master answers."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.base.errors import PermanentError
from paceline.base.jobdir import JobDir
from paceline.base.processes import start_detached
from paceline.cli import launch
from paceline.wire.outcome import Outcome, write_outcome
from paceline.wire.spec import JobSpec, save

STALE = "127.0.0.1:1\n"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobDir]:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    job = JobDir.create("launched")
    save(JobSpec(script="/train.py"), job.spec)
    job.master_address.write_text(STALE)
    yield job
    shutil.rmtree(job.run_dir)


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


def test_a_master_that_never_answers_is_reported(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "START_S", 0.5)
    monkeypatch.setattr(launch, "start_detached", lambda *_: Played())
    since_s = time.monotonic()
    with pytest.raises(PermanentError, match="the job did not start"):
        launch.resume(job)
    assert time.monotonic() - since_s >= 0.5


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
