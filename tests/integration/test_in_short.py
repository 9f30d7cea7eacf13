"""All that may happen to a job happens to one of each kind; `make soak` has each event alone."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.jobs.outcome import End
from paceline.wire.client import StopJob
from paceline.wire.events.state import EpochEvent
from paceline.wire.spec import CheckpointSpec
from tests.chaos.oracle import leftovers
from tests.integration import test_allreduce, test_fsdp
from tests.integration.running import RunningJob, running, until

OFTEN = CheckpointSpec(every_s=0.4, share=1.0, keep=3)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def kill(job: RunningJob, name: str) -> None:
    """SIGKILL to a node's process, and wait for its next life."""
    victim = job.living(name)
    os.kill(victim.pid, signal.SIGKILL)
    until(lambda: job.living(name).inc > victim.inc, f"another life of {name}")


def kill_master(job: RunningJob) -> None:
    """SIGKILL to the master, and wait for what follows it."""
    before = len(job.events("master_started"))
    job.kill_master()
    until(lambda: len(job.events("master_started")) > before, "another master")


def stop_and_resume(job: RunningJob) -> None:
    """Stop in order, with a cut of all that was trained; it goes on, and is quick."""
    job.tell(StopJob())
    outcome = job.end()
    assert outcome.end is End.STOPPED, outcome
    assert outcome.kept == outcome.committed
    until(lambda: not leftovers(job.job), "a clean machine")
    (job.out / "hurry").touch()
    job.resume()


def more(job: RunningJob, count: int) -> None:
    """So many samples more come into the model."""
    job.until_committed(job.status().committed + count)


@pytest.mark.parametrize("mode", [pytest.param("asp", marks=pytest.mark.soak), "bsp"])
@pytest.mark.proves(
    form="batches",
    strategy="ps {mode}",
    death=("worker", "server", "master", "stop"),
    ends="counted",
)
def test_nodes_and_the_master_die_a_server_is_replaced_and_the_job_is_stopped(
    mode: str, tmp_path: Path
) -> None:
    flags = ("--num-samples", "2048", "--slow-until-told", "--slow-s", "0.1")
    with running(tmp_path, *flags, mode=mode, checkpoint=OFTEN) as job:
        job.until_committed(32)
        kill(job, "worker-1")
        told = CliRunner().invoke(app, ["replace", job.job.job_id, "--server", "0"])
        assert told.exit_code == 0, told.output
        until(lambda: job.events("replaced"), "the replacement")
        assert len(job.events("epoch")) == 1, "neither costs more than a worker's own work"
        job.until_committed(64, cuts=1)
        kill(job, "server-1")
        until(lambda: len(job.told(EpochEvent)) == 2, "an epoch from a cut")
        assert job.told(EpochEvent)[1].cut_no > 0
        kill_master(job)
        more(job, 32)
        assert [death["node"] for death in job.deaths()] == ["worker-1", "server-1"]
        stop_and_resume(job)
        job.check_finished()


@pytest.mark.proves(
    form="batches", strategy="allreduce", death=("worker", "master", "all", "stop"), ends="counted"
)
def test_members_and_the_master_die_and_the_job_is_stopped(tmp_path: Path) -> None:
    flags = ("--num-samples", "2048", "--slow-until-told")
    with test_allreduce.group(tmp_path / "out", *flags, checkpoint=OFTEN) as job:
        job.until_committed(2 * test_allreduce.BATCH)
        kill(job, "worker-1")
        kill_master(job)
        until(lambda: len(test_allreduce.trains(job)) == 3, "all train together again")
        assert len(job.told(EpochEvent)) == 1, "no step is lost"
        job.until_committed(4 * test_allreduce.BATCH, cuts=1)
        job.kill_nodes()
        until(lambda: len(job.told(EpochEvent)) == 2, "an epoch from a cut")
        assert job.told(EpochEvent)[1].cut_no > 0
        more(job, test_allreduce.BATCH)
        stop_and_resume(job)
        test_allreduce.check_finished(job)


@pytest.mark.proves(
    form="batches", strategy="fsdp", death=("worker", "master", "stop"), ends="counted"
)
def test_members_with_shards_and_the_master_die_and_the_job_is_stopped(tmp_path: Path) -> None:
    flags = ("--slow-until-told",)
    with test_fsdp.sharded(tmp_path / "out", *flags, num_samples=1200) as job:
        job.until_committed(2 * test_fsdp.BATCH, cuts=1)
        kill(job, "worker-1")
        until(lambda: len(test_fsdp.trains(job)) == 2, "all train together again")
        assert test_fsdp.trains(job)[1].step > 0, "from a cut"
        kill_master(job)
        more(job, test_fsdp.BATCH)
        stop_and_resume(job)
        held = test_fsdp.check_finished(job)
        assert np.all(np.abs(held["seen"] - 1) < test_fsdp.TOLERANCE)
