"""Cuts: made when asked for, and what is exported from one is what the script held."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cuts.manifest import read_manifest
from paceline.jobs.launch import ask, launch
from paceline.jobs.resize import Resize
from paceline.wire.client import StopJob
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec
from tests.chaos.oracle import leftovers
from tests.integration.running import RunningJob, running, until

MORE_S = 1.0
"""A cut that nobody asked for would come in this time."""
SELDOM = CheckpointSpec(every_s=10_000.0)
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


@pytest.mark.soak
def test_servers_last_cut_is_the_model_that_the_script_saved(tmp_path: Path) -> None:
    flags = ("--num-samples", "512", "--step-s", "0.005", "--evaluate")
    with running(tmp_path, *flags, workers=1) as job:
        job.check_finished()
        check_export(job, tmp_path / "model.safetensors", 512)


def grouped(out: Path, *flags: str, **spec: Any) -> RunningJob:
    """A job of two workers that hold the model."""
    fields = {
        "script": str(GROUPED),
        "args": ("--out", str(out), "--num-samples", "512", *flags),
        "name": "grouped",
        "strategy": "allreduce",
        "workers": NodeSpec(count=2),
        "solution": "none",
        "preflight": False,
    }
    return RunningJob(launch(JobSpec(**(fields | spec))), out)


def test_members_last_cut_is_the_model_that_the_script_saved(tmp_path: Path) -> None:
    job = grouped(tmp_path, "--step-s", "0.005")
    try:
        assert job.end().state == "finished"
        until(lambda: not leftovers(job.job), "a clean machine")
        first, *_ = tmp_path.glob("*.final")
        check_export(job, first, 512)
    finally:
        job.close()


def steps_kept(job: RunningJob) -> list[int]:
    """The steps of the cuts so far, oldest first."""
    return [read_manifest(cut).step for cut in job.cuts()]


def check_asked_for(job: RunningJob, step: int) -> None:
    """A cut with this step comes while the job goes on; a worker may be a step ahead of the other."""
    until(lambda: len(job.cuts()) > 0 and steps_kept(job)[-1] > 0, "a cut", 20.0)
    time.sleep(MORE_S)
    first, *more = [found for found in steps_kept(job) if found]
    assert first >= step
    assert len(more) < 2
    (job.out / "hurry").touch()
    assert job.end().state == "finished"
    until(lambda: not leftovers(job.job), "a clean machine")


@pytest.mark.soak  # CI has members that ask
def test_a_worker_that_asks_for_a_cut_of_servers_gets_it(tmp_path: Path) -> None:
    flags = ("--num-samples", "2048", "--step-s", "0.005", "--slow-until-told", "--keep-at", "3")
    with running(tmp_path, *flags, mode="bsp", checkpoint=SELDOM) as job:
        check_asked_for(job, 3)


def test_members_that_ask_for_a_cut_get_one(tmp_path: Path) -> None:
    job = grouped(
        tmp_path, "--epochs", "4", "--slow-until-told", "--keep-at", "3", checkpoint=SELDOM
    )
    try:
        check_asked_for(job, 3)
    finally:
        job.close()


@pytest.mark.soak
def test_a_wish_for_a_cut_outlives_the_master(tmp_path: Path) -> None:
    flags = ("--num-samples", "2048", "--slow-until-told", "--keep-at", "3")
    with running(tmp_path, *flags, mode="bsp", checkpoint=SELDOM) as job:
        until(lambda: any(len(t) >= 3 for t in job.times().values()), "the third batch")
        psutil.Process(job.status().master_pid).kill()
        check_asked_for(job, 3)


@pytest.mark.soak
def test_cuts_come_every_so_many_steps(tmp_path: Path) -> None:
    every = CheckpointSpec(every_steps=12, share=1.0, keep=100)
    job = grouped(tmp_path, "--epochs", "4", "--slow-until-told", checkpoint=every)
    try:
        until(job.cuts, "a cut", 20.0)
        assert steps_kept(job)[0] >= 12
        (tmp_path / "hurry").touch()
        assert job.end().state == "finished"
    finally:
        job.close()


def stop_at(job: RunningJob, committed: int) -> None:
    """Stop a slow job in order once so much is in the model; let it be fast from then on."""
    until(lambda: job.status().committed >= committed, f"{committed} samples")
    ask(job.job, StopJob())
    assert job.end().state == "stopped"
    (job.out / "hurry").touch()


@pytest.mark.soak
@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (3, 3)])
def test_a_cut_of_servers_is_loaded_by_others_of_another_number(
    tmp_path: Path, workers: int, servers: int
) -> None:
    few = ("--num-samples", "2048", "--slow-until-told")
    with running(tmp_path, *few, workers=1, mode="bsp") as job:
        stop_at(job, 64)
        job.resume(Resize(workers=workers, servers=servers))
        until(lambda: job.status().step > 0, "a step")
        roles = [node.role for node in job.status().nodes]
        assert (roles.count("worker"), roles.count("server")) == (workers, servers)
        job.check_finished()
        assert not job.job.resize.exists()
        newest = read_manifest(job.cuts()[-1])
        assert len(newest.files) == servers


@pytest.mark.soak
def test_members_of_another_number_go_on_from_a_cut(tmp_path: Path) -> None:
    job = grouped(tmp_path, "--epochs", "4", "--slow-until-told")
    try:
        stop_at(job, 128)
        job.resume(Resize(workers=3))
        assert job.end().state == "finished"
        held = [load_file(path) for path in tmp_path.glob("*.final")]
        assert len(held) == 3
        for final in held:
            np.testing.assert_allclose(final["seen"], 4, atol=1e-9)
        until(lambda: not leftovers(job.job), "a clean machine")
    finally:
        job.close()
