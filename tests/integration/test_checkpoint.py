"""What is exported from a finished job's last cut is what its script held at the end."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from paceline.cli.launch import launch
from paceline.cli.main import app
from paceline.wire.spec import JobSpec, NodeSpec
from tests.chaos.oracle import leftovers
from tests.integration.running import RunningJob, running, until

GROUPED = Path(__file__).with_name("jobs") / "grouped.py"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def check_export(job: RunningJob, expected: Path, num_samples: int) -> None:
    """Export by the command line, and compare with what the script wrote."""
    out = job.out / "exported.safetensors"
    name = job.job.job_id
    listed = CliRunner().invoke(app, ["checkpoint", "ls", name])
    newest = listed.stdout.splitlines()[1]
    assert f"{num_samples:,} of {num_samples:,}" in newest, listed.output
    for command in (["verify", name, "--all"], ["export", name, str(out)]):
        done = CliRunner().invoke(app, ["checkpoint", *command])
        assert done.exit_code == 0, done.output
    found, held = load_file(out), load_file(expected)
    assert found.keys() == held.keys()
    for key, values in held.items():
        np.testing.assert_array_equal(found[key], values, err_msg=key)


def test_servers_last_cut_is_the_model_that_the_script_saved(tmp_path: Path) -> None:
    flags = ("--num-samples", "512", "--step-s", "0.005", "--evaluate")
    with running(tmp_path, *flags, workers=1) as job:
        job.check_finished()
        check_export(job, tmp_path / "model.safetensors", 512)


def test_members_last_cut_is_the_model_that_the_script_saved(tmp_path: Path) -> None:
    args = ("--out", str(tmp_path), "--num-samples", "512", "--step-s", "0.005")
    spec = JobSpec(
        script=str(GROUPED),
        args=args,
        name="grouped",
        strategy="allreduce",
        workers=NodeSpec(count=2),
        solution="none",
    )
    job = RunningJob(launch(spec), tmp_path)
    try:
        assert job.end().state == "finished"
        until(lambda: not leftovers(job.job), "a clean machine")
        first, *_ = tmp_path.glob("*.final")
        check_export(job, first, 512)
    finally:
        job.close()
