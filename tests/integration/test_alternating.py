"""Two optimizers in turn end as in one process, also if a worker dies between their steps.

One may step on every third batch only.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.jobs.launch import launch
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob

SCRIPT = Path(__file__).with_name("jobs") / "alternating.py"


def found(out: Path) -> list[list[float]]:
    lines = [path.read_text().split() for path in sorted(out.glob("*.end"))]
    return [[int(one[0]), *map(float.fromhex, one[1:])] for one in lines]


def alone(tmp_path: Path, every: int) -> list[float]:
    """What one process finds."""
    out = tmp_path / "alone"
    out.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--every", str(every)]
    subprocess.run(command, env=env, check=True, timeout=100)
    (values,) = found(out)
    assert values[0] == 24
    return values


@pytest.mark.parametrize(
    ("every", "at", "all_die"),
    [
        (3, 6, False),
        *(pytest.param(1, at, False, marks=pytest.mark.soak) for at in (1, 2, 6, 24)),
        *(pytest.param(3, at, False, marks=pytest.mark.soak) for at in (1, 5, 23, 24)),
        *(pytest.param(every, 6, True, marks=pytest.mark.soak) for every in (1, 3)),
    ],
)
def test_a_step_that_breaks_between_two_optimizers_is_done_once(
    every: int, at: int, all_die: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    expected = alone(tmp_path, every)
    out = tmp_path / "job"
    out.mkdir()
    spec = JobSpec(
        script=str(SCRIPT),
        args=("--out", str(out), "--every", str(every), "--die", f"1:{at}", "--step-s", "0.05"),
        name="alternating",
        strategy="allreduce",
        workers=NodeSpec(count=3),
        checkpoint=CheckpointSpec(every_s=0.3, share=0.5),
        restart=RestartSpec(backoff_s=0.1),
        solution="none",
        preflight=False,
    )
    job = RunningJob(launch(spec), out)
    try:
        if all_die:
            job.until_committed(32 * 10)
            job.kill_nodes()
        outcome = job.end()
        assert outcome.state == "finished", outcome
        assert len(job.events("relaunch")) == 1 + 3 * all_die
        assert not job.events("diverged")
    finally:
        job.close()
    ends = found(out)
    assert len(ends) == 3
    for values in ends:
        assert values == pytest.approx(expected, rel=1e-9)
