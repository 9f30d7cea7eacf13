"""What a receipt says of a job in which processes were killed is what its model holds."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.features.formats.receipts import (
    DeathsSurvived,
    EpochsTrained,
    Statement,
    read_receipt,
    receipt_of,
)
from tests.integration.running import RunningJob, running, until
from tests.integration.test_checkpoint import grouped

N, EPOCHS = 512, 3


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


def exported(job: RunningJob, out: Path) -> tuple[Statement, dict[str, Any]]:
    """What the receipt says, and the tensors; the command finds that they belong together."""
    done = CliRunner().invoke(app, ["checkpoint", "export", job.job.job_id, str(out)])
    assert done.exit_code == 0, done.output
    checked = CliRunner().invoke(app, ["verify", str(out)])
    assert (checked.exit_code, len(checked.stdout.splitlines())) == (0, 3), checked.output
    return read_receipt(receipt_of(out))[1], load_file(out)


def test_the_receipt_of_a_job_with_a_killed_worker_counts_what_is_in_the_model(
    tmp_path: Path,
) -> None:
    flags = ("--epochs", str(EPOCHS), "--slow-until-told")
    job = grouped(tmp_path, *flags, deterministic=False)
    try:
        job.until_committed(64)
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        until(lambda: job.events("relaunch"), "another life")
        (tmp_path / "hurry").touch()
        assert job.end().state == "finished"
        out = tmp_path / "model.safetensors"
        said, model = exported(job, out)
    finally:
        job.close()
    # The model counts by itself how often it has seen each sample.
    np.testing.assert_allclose(model["seen"], EPOCHS, atol=1e-9)
    whole = EpochsTrained(feed=0, first=1, last=EPOCHS, trained=N, size=N)
    assert said.origin.ledger.epochs == (whole,)
    assert (said.origin.ledger.samples, said.origin.ledger.promise) == (N * EPOCHS, "exactly-once")
    assert said.origin.deaths == DeathsSurvived(workers=1, servers=0, masters=0, restores=0)
    assert said.num_tensors == len(model)

    model["seen"][0] = 2.0
    save_file(model, out)
    changed = CliRunner().invoke(app, ["verify", str(out)])
    assert changed.exit_code == 1
    assert "tensor 'seen' was changed" in changed.stdout


@pytest.mark.soak
def test_the_receipt_of_a_cut_within_an_epoch_counts_that_part(tmp_path: Path) -> None:
    """A server, a worker and the master die, and the job is killed as a whole."""
    num_samples = 16_384
    with running(tmp_path, "--num-samples", str(num_samples), mode="bsp") as job:
        job.until_committed(num_samples // 8, cuts=1)
        os.kill(job.pid_of("server-1"), signal.SIGKILL)
        until(lambda: len(job.events("epoch")) == 2, "the restore")
        job.until_committed(num_samples // 6)
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        until(lambda: len(job.events("relaunch")) == 2, "another life")
        job.kill_master()
        until(lambda: len(job.events("master_started")) == 2, "another master")
        newest = int(job.cuts()[-1].name)
        until(lambda: int(job.cuts()[-1].name) > newest + 1, "a cut after all that")
        job.kill_everything()
        said, model = exported(job, tmp_path / "model.safetensors")
    counts = np.rint(model["seen.weight"])  # one for each time that a sample was trained
    trained = int(counts.sum())
    assert 0 < trained < num_samples
    assert counts.max() == 1
    (part,) = said.origin.ledger.epochs
    assert (part.first, part.last, part.trained, part.size) == (1, 1, trained, num_samples)
    assert said.origin.ledger.samples == trained
    assert said.origin.deaths == DeathsSurvived(workers=1, servers=1, masters=1, restores=1)
