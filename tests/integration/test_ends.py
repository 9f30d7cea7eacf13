"""How real jobs end: what they leave, what they say, with which exit code."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from paceline.cli.launch import launch
from paceline.runtime.checkpoint.export import export
from paceline.wire.cut import read_manifest
from paceline.wire.outcome import End, Outcome
from paceline.wire.spec import JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob

LEAVING = Path(__file__).with_name("jobs") / "leaving.py"
BATCH = 8


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@contextlib.contextmanager
def job_of(script: Path, out: Path, *args: str, **spec: Any) -> Iterator[RunningJob]:
    """A job of two workers."""
    fields: dict[str, Any] = {
        "script": str(script),
        "args": args,
        "name": "ends",
        "workers": NodeSpec(count=2),
        "restart": RestartSpec(backoff_s=0.1),
        "solution": "none",
        "preflight": False,
    }
    with contextlib.closing(RunningJob(launch(JobSpec(**(fields | spec))), out)) as job:
        yield job


def check_left_early(job: RunningJob, steps: int, tmp_path: Path) -> Outcome:
    """The last cut holds all that was trained, and the model can be had from it."""
    outcome = job.end()
    assert (outcome.end, outcome.exit_code) == (End.STOPPED_EARLY, 3)
    assert outcome.committed == outcome.kept == steps * BATCH
    newest = job.cuts()[-1]
    assert sum(map(len, read_manifest(newest).committed)) == steps * BATCH
    export(tmp_path / "model.safetensors", newest, file_format="safetensors")
    return outcome


def test_members_that_leave_their_loop_early_leave_a_cut_of_what_they_hold(tmp_path: Path) -> None:
    # The first leaves alone, in a step of the second, which goes on without it.
    with job_of(LEAVING, tmp_path, "--steps", "5", "9", strategy="allreduce") as job:
        check_left_early(job, 8, tmp_path)
        (line,) = (job.job.logs / "worker-1.log").read_text().splitlines()[-1:]
        model = load_file(tmp_path / "model.safetensors")
        total = sum(float(one.sum(dtype="float64")) for one in model.values())
        assert line == f"LEFT rank 1 sum {total:.9f}"


def test_members_that_hold_shards_leave_a_cut_together(tmp_path: Path) -> None:
    args = ("--shard", "--steps", "6", "--how", "exit")
    with job_of(LEAVING, tmp_path, *args, strategy="fsdp") as job:
        check_left_early(job, 6, tmp_path)


@pytest.mark.parametrize("mode", ["asp", pytest.param("bsp", marks=pytest.mark.soak)])
def test_servers_keep_what_a_worker_that_leaves_early_has_handed_in(
    tmp_path: Path, mode: str
) -> None:
    args, nodes = ("--steps", "6", "--how", "exit"), NodeSpec(count=1)
    with job_of(LEAVING, tmp_path, *args, mode=mode, servers=nodes, workers=nodes) as job:
        check_left_early(job, 6, tmp_path)
