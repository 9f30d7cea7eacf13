"""Jobs that `paceline submit` gives to a Ray cluster, stopped by Ray, or without their driver.

`tests.ray.cluster` runs this file, with a dashboard and a head alone: raylets of one machine unpack
what is sent into one folder, again and again.
"""

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.base.jobdir import JobDir
from paceline.wire.spec import load
from tests.integration.running import RunningJob, until
from tests.integration.test_allreduce import BATCH, SCRIPT, trains
from tests.ray.cluster import DASHBOARD
from tests.ray.jobs import all_train, check
from tests.ray.platform import PATIENCE_S, ended, left, left_in_ray, processes

pytestmark = pytest.mark.timeout(300)
BIN = Path(sys.executable).parent
ADDRESS = f"--address={DASHBOARD}"
DRIVER = "-m paceline run"
KEEPER = "jobs/kept_command.py"
NUM_BUSY, HEARD_S = 50, 10.0
SPEC = (
    *("--workers=2", "--strategy=allreduce", "--deterministic", "--solution=none"),
    *("--set", "preflight=false", "--set", "checkpoint.every_s=0.5"),
)


def output(*command: str) -> str:
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def submit(home: Path, *words: str) -> str:
    """Submit it; the id that it has at Ray."""
    told = output("paceline", "submit", ADDRESS, "--home", str(home), *words)
    assert "submitted as" in told
    return told.partition("submitted as ")[2].partition(";")[0]


@contextlib.contextmanager
def submitted(home: Path) -> Iterator[tuple[str, RunningJob]]:
    """Ray's id of a job, and the job."""
    out = home / "out"
    out.mkdir()
    flags = ("--out", str(out), "--epochs", "3", "--slow-until-told", "--say")
    ray_id = submit(home, str(SCRIPT), *SPEC, "--", *flags)

    def found() -> Path | None:
        return next(iter((home / "jobs").glob("*/job.json")), None)

    path: Path = until(found, "the job's directory", PATIENCE_S)
    job = RunningJob(JobDir(path.parent), out)
    with ended(job.job), contextlib.closing(job):
        all_train(job, 2)
        job.until_committed(10 * BATCH)
        yield ray_id, job


def test_ray_lists_logs_and_stops_a_job_in_order_which_goes_on_from_shared_storage(
    tmp_path: Path,
) -> None:
    with submitted(tmp_path) as (ray_id, job):
        assert ray_id in output("ray", "job", "list", ADDRESS)
        said = output("ray", "job", "logs", ADDRESS, ray_id)
        assert job.job.job_id in said
        assert "worker-0 | batch " in said
        output("ray", "job", "stop", ADDRESS, ray_id)
        assert job.end().state == "stopped"
        assert not job.deaths()
        until(lambda: not left(job.job) + left_in_ray(), "a clean cluster", PATIENCE_S)
        submit(tmp_path, "--resume", job.job.job_id)
        until(lambda: len(trains(job)) == 2, "training", PATIENCE_S)
        assert job.events("epoch")[-1]["cut_no"] > 0, "from a cut"
        assert Path(load(job.job.spec).script).is_relative_to(job.job.sent)
        check(job, epochs=3, lives=2)


def test_workers_outlive_the_driver_the_master_and_the_gateway_and_the_next_submit_finds_them(
    tmp_path: Path,
) -> None:
    with submitted(tmp_path) as (_, job):
        for one in (*processes(KEEPER), *processes(DRIVER)):
            one.kill()
        job.kill_everything()
        submit(tmp_path, "--resume", job.job.job_id)
        until(lambda: len(job.events("master_started")) == 2, "another master", PATIENCE_S)
        job.until_committed(job.status().committed + 10 * BATCH)
        assert len(trains(job)) == 1
        assert not job.deaths()
        check(job, epochs=3, lives=2)


def test_ray_says_that_a_job_runs_whose_command_was_killed_and_then_how_it_ended(
    tmp_path: Path,
) -> None:
    with submitted(tmp_path) as (ray_id, job):
        for one in processes(DRIVER):
            one.kill()
        until(lambda: processes("-m paceline attach"), "another command", PATIENCE_S)
        job.until_committed(job.status().committed + 10 * BATCH)
        assert "RUNNING" in output("ray", "job", "status", ADDRESS, ray_id)
        for one in processes("-m paceline attach"):
            one.kill()
        job.until_committed(job.status().committed + 10 * BATCH)
        assert not job.deaths()
        check(job, epochs=3, lives=2)
        until(
            lambda: "succeeded" in output("ray", "job", "status", ADDRESS, ray_id),
            "Ray's record of the end",
            PATIENCE_S,
        )
        assert "the job goes on, and another one watches it" in output(
            "ray", "job", "logs", ADDRESS, ray_id
        )


def test_a_job_trains_on_of_which_ray_says_that_it_failed_since_its_own_process_died(
    tmp_path: Path,
) -> None:
    """No call of Ray's public API would change that record."""
    with submitted(tmp_path) as (ray_id, job):
        own = processes("JobSupervisor")
        assert own
        for one in own:
            one.kill()
        until(
            lambda: "FAILED" in output("ray", "job", "status", ADDRESS, ray_id).upper(),
            "Ray's record",
            PATIENCE_S,
        )
        job.until_committed(job.status().committed + 10 * BATCH)
        assert not job.deaths()
        check(job, epochs=3, lives=2)


@pytest.mark.timeout(600)
def test_a_stop_is_heard_within_ten_seconds_on_a_busy_machine(tmp_path: Path) -> None:
    with submitted(tmp_path) as (ray_id, job), contextlib.ExitStack() as stack:
        for _ in range(NUM_BUSY):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(busy.kill)
        until(lambda: os.getloadavg()[0] > NUM_BUSY / 2, "a busy machine", PATIENCE_S)
        asked = urllib.request.Request(f"{DASHBOARD}/api/jobs/{ray_id}/stop", method="POST")
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        until(lambda: job.events("stopped"), "the stop", HEARD_S)
        assert job.end().state == "stopped"
