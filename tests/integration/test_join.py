"""`paceline agent --join`: a machine with nothing but the address and the secret becomes a worker."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from paceline.base.jobdir import JobDir
from paceline.jobs.facts import read_facts
from paceline.jobs.in_words import paragraph
from paceline.wire.spec import DataPlaneSpec, NodeSpec, TimeoutSpec
from tests.integration.running import RunningJob, running, until

pytestmark = pytest.mark.soak

JOINED = "worker-1"


@contextmanager
def joining(job: RunningJob, home: Path) -> Iterator[JobDir]:
    """`paceline agent --join` as another machine would run it; its job directory, once it is up."""
    secret = home / "secret"
    secret.write_bytes(job.job.secret())
    address = job.job.master_address.read_text().strip()
    command = [
        sys.executable,
        "-c",
        "from paceline.cli.main import app; app()",
        "agent",
        "--join",
        address,
    ]
    agent = subprocess.Popen(
        [*command, "--secret-file", str(secret)],
        env={**os.environ, "PACELINE_HOME": str(home)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    there = JobDir(home / "joined" / socket.gethostname() / f"{job.job.job_id}.{JOINED}")
    try:
        until(lambda: agent.poll() is not None or there.logs.exists(), "the answer of the master")
        assert agent.poll() is None
        yield there
        until(lambda: agent.poll() is not None, "the end of the joined agent")
    finally:
        kill_all(there)
        agent.kill()
        agent.wait()


def kill_all(there: JobDir) -> list[int]:
    """SIGKILL to the joined agent, its zygote and its training process, as a power cut would."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PACELINE_JOB_DIR") == str(there.path):
                found.append(process.pid)
        except psutil.Error:
            continue
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in found:
            os.kill(pid, number)
    return found


@contextmanager
def one_worker(tmp_path: Path) -> Iterator[tuple[RunningJob, Path]]:
    out, home = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    home.mkdir()
    with running(
        out,
        "--step-s",
        "0.03",
        workers=1,
        servers=NodeSpec(count=1),
        data_plane=DataPlaneSpec(transport="tcp"),
        timeouts=TimeoutSpec(lost_after_s=1.5),
    ) as job:
        job.until_committed(100, cuts=1)
        yield job, home


@contextmanager
def standing_still(job: RunningJob, node: str) -> Iterator[None]:
    """Its process does nothing: the job is still there when a slow machine has joined."""
    pid = job.pid_of(node)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def num_samples_of(job: RunningJob, node: str) -> int:
    return sum(len(ids) for life, ids in job.samples().items() if life.startswith(f"{node}."))


def test_a_machine_that_joins_trains_until_the_job_ends_and_leaves_nothing(tmp_path: Path) -> None:
    with one_worker(tmp_path) as (job, home):
        with ExitStack() as stack:
            with standing_still(job, "worker-0"):
                there = stack.enter_context(joining(job, home))
                until(lambda: num_samples_of(job, JOINED) > 200, "samples at the one who joined")
                assert job.node(JOINED).state == "running"
            job.check_finished()
        assert not there.run_dir.exists()
        assert not there.secret_file.exists()
    assert [event["node"] for event in job.events("scaled")] == [JOINED]
    assert not job.events("node_lost")


def test_a_job_goes_on_when_a_machine_that_joined_vanishes(tmp_path: Path) -> None:
    with one_worker(tmp_path) as (job, home):
        with standing_still(job, "worker-0"), joining(job, home) as there:
            until(lambda: num_samples_of(job, JOINED) > 100, "samples at the one who joined")
            assert len(kill_all(there)) == 3, "agent, zygote and training process"
        job.check_finished()
    assert [event["node"] for event in job.events("node_lost")] == [JOINED]
    assert f"{JOINED}, which had joined from" in paragraph(read_facts(job.job))
    assert num_samples_of(job, "worker-0") + num_samples_of(job, JOINED) >= 4_096
