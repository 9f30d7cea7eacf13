"""Models that a script trains one after the other end as in one process, whatever dies when."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.jobs.launch import launch
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob

SCRIPT = Path(__file__).with_name("jobs") / "folds.py"
SAMPLES = 2 * 171
"""Of a fold, by and large."""
SOAK = pytest.mark.soak


@contextlib.contextmanager
def job_of(out: Path, *flags: str, strategy: str = "allreduce") -> Iterator[RunningJob]:
    """Two workers."""
    out.mkdir()
    spec = JobSpec(
        script=str(SCRIPT),
        args=("--out", str(out), "--step-s", "0.03", *flags),
        name="folds",
        strategy=strategy,
        workers=NodeSpec(count=2),
        checkpoint=CheckpointSpec(every_s=0.3, share=0.5),
        restart=RestartSpec(backoff_s=0.1),
        solution="none",
        preflight=False,
    )
    with contextlib.closing(RunningJob(launch(spec), out)) as job:
        yield job


def ends(out: Path) -> list[list[float]]:
    return [[*map(float.fromhex, one.read_text().split())] for one in sorted(out.glob("*.end"))]


def alone(out: Path, *flags: str) -> list[float]:
    """What one process ends with."""
    out.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    command = [sys.executable, str(SCRIPT), "--out", str(out), *flags]
    subprocess.run(command, env=env, check=True, timeout=100)
    (values,) = ends(out)
    assert len(values) == 3 * 6
    return values


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def check(job: RunningJob, expected: list[float]) -> None:
    outcome = job.end()
    assert outcome.state == "finished", outcome
    assert not job.events("diverged")
    found = ends(job.out)
    assert len(found) == 2
    for values in found:
        assert values == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "flags",
    [
        ("--leave",),
        pytest.param((), marks=SOAK),
        pytest.param(("--init",), marks=SOAK),
        pytest.param(("--init", "--leave"), marks=SOAK),
        pytest.param(("--range",), marks=SOAK),
        pytest.param(("--same",), marks=SOAK),
    ],
)
def test_workers_and_the_master_die_in_later_folds(flags: tuple[str, ...], tmp_path: Path) -> None:
    expected = alone(tmp_path / "alone", *flags)
    with job_of(tmp_path / "job", "--die", "1:1:0,0:2:3", *flags) as job:
        job.until_committed(SAMPLES)
        job.kill_master()
        check(job, expected)
        assert len(job.events("relaunch")) == 2
        assert len(job.events("master_started")) == 2


@SOAK
@pytest.mark.parametrize("flags", [(), ("--init",), ("--leave",), ("--range",), ("--same",)])
@pytest.mark.parametrize("fold", [0, 1, 2])
def test_all_die_in_a_fold(flags: tuple[str, ...], fold: int, tmp_path: Path) -> None:
    expected = alone(tmp_path / "alone", *flags)
    with job_of(tmp_path / "job", "--step-s", "0.1", *flags) as job:
        size = 7 * 34 if "--leave" in flags else SAMPLES
        job.until_committed(size * fold + 100)
        job.kill_nodes()
        check(job, expected)


@SOAK
def test_a_worker_that_prepares_once_more_is_named(tmp_path: Path) -> None:
    with job_of(tmp_path / "job", "--more") as job:
        outcome = job.end()
    assert outcome.state == "failed"
    assert "different trainings of the script" in outcome.error
    assert "training 2 in worker-0" in outcome.error
    assert "training 1 in worker-1" in outcome.error


@SOAK
def test_models_that_begin_differently_become_that_of_the_first_worker(tmp_path: Path) -> None:
    expected = alone(tmp_path / "alone")
    with job_of(tmp_path / "job", "--differ") as job:
        assert job.end().state == "finished"
        assert len(job.events("diverged")) == 2, "in folds 1 and 2"
        for values in ends(job.out):
            assert values == pytest.approx(expected, rel=1e-9)
