"""Two optimizers in turn end as in one process, also if a worker dies between their steps.

So may the master, or all workers, and one optimizer may step on every third batch only.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.jobs.launch import launch
from paceline.wire.events.nodes import RestartAllEvent
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob

SCRIPT = Path(__file__).with_name("jobs") / "alternating.py"
EVERY = {"turns": 1, "some": 3}
"""On each n-th batch the second optimizer steps, too."""


def found(out: Path) -> list[list[float]]:
    lines = [path.read_text().split() for path in sorted(out.glob("*.end"))]
    return [[int(one[0]), *map(float.fromhex, one[1:])] for one in lines]


def alone(tmp_path: Path, every: int, *flags: str) -> list[float]:
    """What one process finds."""
    out = tmp_path / "alone"
    out.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--every", str(every), *flags]
    subprocess.run(command, env=env, check=True, timeout=100)
    (values,) = found(out)
    assert values[0] == 24
    return values


@contextlib.contextmanager
def job_of(out: Path, *flags: str, **spec: Any) -> Iterator[RunningJob]:
    """Three workers with all-reduce, or what the spec says."""
    out.mkdir()
    fields: dict[str, Any] = {
        "script": str(SCRIPT),
        "args": ("--out", str(out), "--step-s", "0.05", *flags),
        "name": "alternating",
        "strategy": "allreduce",
        "workers": NodeSpec(count=3),
        "checkpoint": CheckpointSpec(every_s=0.3, share=0.5),
        "restart": RestartSpec(backoff_s=0.1),
        "solution": "none",
        "preflight": False,
    }
    with contextlib.closing(RunningJob(launch(JobSpec(**(fields | spec))), out)) as job:
        yield job


def check(job: RunningJob, expected: list[float], *, lives: int) -> None:
    """A good end, of what one process finds."""
    outcome = job.end()
    assert outcome.state == "finished", outcome
    assert not job.events("diverged")
    ends = found(job.out)
    assert len(ends) == lives
    for values in ends:
        assert values == pytest.approx(expected, rel=1e-9)


@pytest.mark.soak
@pytest.mark.proves(form="{form}", strategy="allreduce", death=("worker", "{dies}"))
@pytest.mark.parametrize(
    ("form", "at", "dies"),
    [
        *(("turns", at, "worker") for at in (1, 2, 6, 24)),
        *(("some", at, "worker") for at in (1, 5, 23, 24)),
        *((form, 6, dies) for form in EVERY for dies in ("master", "all")),
    ],
)
def test_a_step_that_breaks_between_two_optimizers_is_done_once(
    form: str, at: int, dies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    every = EVERY[form]
    expected = alone(tmp_path, every)
    with job_of(tmp_path / "job", "--every", str(every), "--die", f"1:{at}") as job:
        if dies == "all":
            job.until_committed(32 * 10)
            job.kill_nodes()
        elif dies == "master":
            job.until_committed(32 * (at + 1))
            job.kill_master()
        check(job, expected, lives=3)
        assert len(job.events("relaunch")) == 1 + 3 * (dies == "all")
        assert len(job.events("master_started")) == 1 + (dies == "master")


@pytest.mark.soak
@pytest.mark.proves(form="turns", strategy="allreduce", death="worker")
def test_gradients_that_one_loss_leaves_in_the_other_model_go_with_a_broken_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The judge's are cleared only after the maker's backward has added to them.
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    expected = alone(tmp_path, 1, "--maker-first")
    with job_of(tmp_path / "job", "--maker-first", "--die", "1:6") as job:
        check(job, expected, lives=3)
        assert len(job.events("relaunch")) == 1


@pytest.mark.soak
@pytest.mark.proves(form="turns", strategy="fsdp", death=("worker", "master"))
def test_shards_of_two_models_train_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    expected = alone(tmp_path, 1)
    flags = ("--sharded", "--die", "1:12")
    with job_of(tmp_path / "job", *flags, strategy="fsdp", workers=NodeSpec(count=2)) as job:
        job.until_committed(32 * 4)
        job.kill_master()
        check(job, expected, lives=2)
        assert [event.node for event in job.told(RestartAllEvent)] == ["worker-1"]
        assert len(job.events("master_started")) == 2
