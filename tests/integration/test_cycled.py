"""A trainer that goes on until it has counted enough batches ends as a plain run, whatever dies."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.jobs.launch import ask, launch
from paceline.wire.client import StopJob
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob

SCRIPT = Path(__file__).with_name("jobs") / "cycled.py"
BATCH = 16


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@contextlib.contextmanager
def job_of(out: Path, *flags: str) -> Iterator[RunningJob]:
    spec = JobSpec(
        script=str(SCRIPT),
        args=("--out", str(out), "--step-s", "0.04", *flags),
        strategy="allreduce",
        workers=NodeSpec(count=2),
        checkpoint=CheckpointSpec(every_s=0.5, share=0.5),
        restart=RestartSpec(backoff_s=0.1),
        solution="none",
        preflight=False,
    )
    out.mkdir()
    with contextlib.closing(RunningJob(launch(spec), out)) as job:
        yield job


def plain(out: Path, *flags: str) -> dict[str, Any]:
    """What the script holds at its end without a job."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    command = [sys.executable, str(SCRIPT), "--out", str(out), *flags]
    subprocess.run(command, env=env, check=True, timeout=100)
    (found,) = ends(out).values()
    return found


def ends(out: Path) -> dict[str, dict[str, Any]]:
    """What each worker's last life held, by its rank."""
    return {path.stem.partition("-")[0]: json.loads(path.read_text()) for path in out.glob("*.end")}


def check(job: RunningJob, expected: dict[str, Any], ranks: set[str]) -> None:
    outcome = job.end()
    assert outcome.state == "finished", outcome
    found = ends(job.out)
    assert found.keys() == ranks
    for held in found.values():
        for name, value in expected.items():
            assert held[name] == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize("flags", [(), pytest.param(("--again",), marks=pytest.mark.soak)])
def test_it_has_counted_each_batch_once(flags: tuple[str, ...], tmp_path: Path) -> None:
    expected = plain(tmp_path / "alone", *flags)
    with job_of(tmp_path / "job", *flags) as job:
        job.until_committed(12 * BATCH)
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        job.until_committed(25 * BATCH)
        ask(job.job, StopJob())
        assert job.end().state == "stopped"
        job.resume()
        job.until_committed(35 * BATCH)
        os.kill(job.pid_of("worker-0"), signal.SIGKILL)
        check(job, expected, {"0", "1"})


@pytest.mark.parametrize("flags", [("--again",), pytest.param((), marks=pytest.mark.soak)])
def test_a_life_that_finds_all_done_does_not_train_once_more(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    expected = plain(tmp_path / "alone", *flags)
    with job_of(tmp_path / "job", *flags, "--die", "1:50") as job:
        check(job, expected, {"0"})
        said = (job.job.logs / "worker-1.log").read_text()
        # The loop that it passes may end its script with an error of its own.
        ends = ("the other workers' scripts have returned", "This does not end the job")
        assert any(one in said for one in ends)
