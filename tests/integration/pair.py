"""Two workers that train a script as one process does: each life of it writes what it ends with."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.jobs.launch import launch
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob


@contextlib.contextmanager
def pair_of(script: Path, out: Path, *flags: str, **named: Any) -> Iterator[RunningJob]:
    """The job, with cuts every 0.3 s."""
    out.mkdir()
    spec = JobSpec(
        script=str(script),
        args=("--out", str(out), "--step-s", "0.03", *flags),
        name=script.stem,
        strategy="allreduce",
        workers=NodeSpec(count=2),
        checkpoint=CheckpointSpec(every_s=0.3, share=0.5),
        restart=RestartSpec(backoff_s=0.1),
        solution="none",
        preflight=False,
        **named,
    )
    with contextlib.closing(RunningJob(launch(spec), out)) as job:
        yield job


def ends(out: Path) -> list[list[float]]:
    """What the scripts that came to their end have written."""
    return [[*map(float.fromhex, one.read_text().split())] for one in sorted(out.glob("*.end"))]


def run_alone(script: Path, out: Path, *flags: str) -> None:
    """Run the script in one process, without a job."""
    out.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    command = [sys.executable, str(script), "--out", str(out), *flags]
    subprocess.run(command, env=env, check=True, timeout=100)


def alone(script: Path, out: Path, *flags: str) -> list[float]:
    """What one process ends with."""
    run_alone(script, out, *flags)
    (values,) = ends(out)
    return values


def check_ends(job: RunningJob, expected: list[float]) -> None:
    """Both workers end as the one process does."""
    outcome = job.end()
    assert outcome.state == "finished", outcome
    assert not job.events("diverged")
    found = ends(job.out)
    assert len(found) == 2
    for values in found:
        assert values == pytest.approx(expected, rel=1e-9)
