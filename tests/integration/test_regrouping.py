"""Layers that begin to train in later epochs end as in one process when workers die.

And the master.
"""

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

SCRIPT = Path(__file__).with_name("jobs") / "regrouped.py"


@contextlib.contextmanager
def job_of(out: Path, *flags: str) -> Iterator[RunningJob]:
    """Two workers."""
    out.mkdir()
    spec = JobSpec(
        script=str(SCRIPT),
        args=("--out", str(out), "--step-s", "0.03", *flags),
        name="regrouped",
        strategy="allreduce",
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


@pytest.fixture
def expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of one process."""
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    out = tmp_path / "alone"
    out.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    command = [sys.executable, str(SCRIPT), "--out", str(out)]
    subprocess.run(command, env=env, check=True, timeout=100)
    (values,) = ends(out)
    assert len(values) == 6 + 6
    return values


def check(job: RunningJob, expected: list[float]) -> None:
    outcome = job.end()
    assert outcome.state == "finished", outcome
    assert not job.events("diverged")
    found = ends(job.out)
    assert len(found) == 2
    for values in found:
        assert values == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("at", [28, pytest.param(12, marks=pytest.mark.soak)])
@pytest.mark.parametrize("flags", [(), pytest.param(("--ranges",), marks=pytest.mark.soak)])
def test_a_worker_and_the_master_die_and_the_next_life_has_all_groups(
    flags: tuple[str, ...], at: int, tmp_path: Path, expected: list[float]
) -> None:
    with job_of(tmp_path / "job", "--die", f"1:{at}", *flags) as job:
        job.until_committed(32 * (at // 2))  # the next master may come after the worker's death
        job.kill_master()
        check(job, expected)
        assert len(job.events("relaunch")) == 1
        assert len(job.events("master_started")) == 2


@pytest.mark.soak
@pytest.mark.parametrize("flags", [(), ("--ranges",)])
@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_all_die_and_the_cut_has_all_groups(
    flags: tuple[str, ...], epoch: int, tmp_path: Path, expected: list[float]
) -> None:
    with job_of(tmp_path / "job", "--step-s", "0.1", *flags) as job:
        job.until_committed(256 * epoch + 100)
        job.kill_nodes()
        check(job, expected)
        assert len(job.events("relaunch")) == 2


@pytest.mark.soak
def test_a_worker_that_trains_something_else_is_named(
    tmp_path: Path, expected: list[float]
) -> None:
    with job_of(tmp_path / "job", "--differ") as job:
        outcome = job.end()
    assert outcome.state == "failed"
    assert "the workers train different parameters" in outcome.error
    assert "4 tensors" in outcome.error
    assert "2 tensors" in outcome.error
    assert "in worker-1" in outcome.error
