"""`paceline agent --join`: a machine with nothing but the job's ticket becomes a worker."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.base.jobdir import JobDir
from paceline.base.joined import remove_joined
from paceline.cli.logs import LogFilter, show_logs
from paceline.jobs.facts import read_facts
from paceline.jobs.in_words import paragraph
from paceline.jobs.log_files import NearLogs
from paceline.wire.client import StopJob
from paceline.wire.spec import DataPlaneSpec, NodeSpec, TimeoutSpec
from tests.integration.running import RunningJob, running, until

JOINED, AGAIN = "worker-1", "worker-2"
"""The first machine that joins, and another one, as long as the first is not known to be lost."""


@contextmanager
def joining(
    job: RunningJob, home: Path, node: str = JOINED, at: str | None = None
) -> Iterator[JobDir]:
    """`paceline agent --join` as another machine would run it; its job directory, once it is up."""
    ticket = home / "ticket"
    ticket.write_bytes(job.job.ticket.read_bytes())
    call = [sys.executable, "-c", "from paceline.cli.main import app; app()", "agent"]
    where = [] if at is None else ["--at", at]
    agent = subprocess.Popen(
        [*call, "--join", str(ticket), *where],
        env={**os.environ, "PACELINE_HOME": str(home)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    there = JobDir(home / "joined" / socket.gethostname() / f"{job.job.job_id}.{node}")
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
def one_worker(
    tmp_path: Path, *flags: str, lost_after_s: float = 1.5, committed: int = 100, **spec: Any
) -> Iterator[tuple[RunningJob, Path]]:
    """A job of one worker, and the home of another machine; once so many samples are committed."""
    out, home = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    home.mkdir()
    with running(
        out,
        "--step-s",
        "0.03",
        *flags,
        workers=1,
        servers=NodeSpec(count=1),
        data_plane=DataPlaneSpec(transport="tcp"),
        timeouts=TimeoutSpec(lost_after_s=lost_after_s),
        **spec,
    ) as job:
        if committed:
            job.until_committed(committed, cuts=1)
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


@pytest.mark.soak
def test_a_machine_that_joins_trains_until_the_job_ends_and_leaves_nothing(tmp_path: Path) -> None:
    """The master is known by a name, at a port of the user's choice."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    named = {"advertise": f"localhost:{port}"}
    with one_worker(tmp_path, **named) as (job, home):
        assert job.job.master_address.read_text() == f"localhost:{port}\n"
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


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_one_command_runs_several_workers_and_ends_them_all(tmp_path: Path) -> None:
    with one_worker(tmp_path, "--num-samples", "16384", lost_after_s=15.0) as (job, home):
        ticket = home / "ticket"
        ticket.write_bytes(job.job.ticket.read_bytes())
        call = [sys.executable, "-c", "from paceline.cli.main import app; app()", "agent"]
        errors = tmp_path / "errors"
        with errors.open("wb") as stderr:
            command = subprocess.Popen(
                [*call, "--join", str(ticket), "--workers", "2"],
                env={**os.environ, "PACELINE_HOME": str(home)},
                stderr=stderr,
            )
        joined = [JOINED, AGAIN]
        try:
            until(lambda: all(num_samples_of(job, one) > 50 for one in joined), "samples of both")
            shared = re.findall(r"shared_bytes=(\d+)", errors.read_text())
            assert len(shared) == 2, "both are forks of a process that has imported torch"
            assert min(map(int, shared)) > 1 << 20
            os.kill(job.node(JOINED).agent_pid, signal.SIGKILL)
            agents = lambda: [e["node"] for e in job.events("agent_joined")]  # noqa: E731
            until(lambda: agents().count(JOINED) == 2, "another agent for the first")
            had = num_samples_of(job, JOINED)
            until(lambda: num_samples_of(job, JOINED) > had + 20, "more samples of the first")
            command.send_signal(signal.SIGINT)
            assert command.wait(30) == 0
        finally:
            command.kill()
            for path in (home / "joined").glob("*/*"):
                kill_all(JobDir(path))
        lost = lambda: [(e["node"], e["reason"]) for e in job.events("node_lost")]  # noqa: E731
        left = {(one, "its machine has left") for one in joined}
        until(lambda: left <= {*lost()}, "a word of both")
        job.tell(StopJob(now=True))
        job.end()


def test_a_machine_that_comes_before_the_model_joins_as_soon_as_there_is_one(
    tmp_path: Path,
) -> None:
    with one_worker(tmp_path, "--num-samples", "16384", committed=0) as (job, home):
        ticket = home / "ticket"
        ticket.write_bytes(job.job.ticket.read_bytes())
        with standing_still(job, "worker-0"):
            command = subprocess.Popen(
                [sys.executable, "-m", "paceline", "agent", "--join", str(ticket)],
                env={**os.environ, "PACELINE_HOME": str(home)},
                stdout=subprocess.PIPE,
                text=True,
            )
            assert command.stdout is not None
            waits = "the job has no model yet: this machine joins when it trains\n"
            assert command.stdout.readline() == waits
        try:
            until(lambda: num_samples_of(job, JOINED) > 50, "samples at the one who joined")
            job.tell(StopJob(now=True))
            job.end()
            assert command.wait(30) == 0
            assert command.stdout.read().startswith("joined job ")
        finally:
            command.kill()
            command.stdout.close()
            for path in (home / "joined").glob("*/*"):
                kill_all(JobDir(path))


@pytest.mark.soak
def test_a_job_goes_on_when_a_machine_that_joined_vanishes(tmp_path: Path) -> None:
    with one_worker(tmp_path) as (job, home):
        with standing_still(job, "worker-0"), joining(job, home) as there:
            until(lambda: num_samples_of(job, JOINED) > 100, "samples at the one who joined")
            assert len(kill_all(there)) == 3, "agent, zygote and training process"
        job.check_finished()
    assert [event["node"] for event in job.events("node_lost")] == [JOINED]
    assert f"{JOINED}, which had joined from" in paragraph(read_facts(job.job))
    assert num_samples_of(job, "worker-0") + num_samples_of(job, JOINED) >= 4_096
    remove_joined(there)  # as the next command on that machine does


def log_of(job: JobDir, node: str) -> list[str]:
    """The lines that its life's script has printed, as far as they are in this directory."""
    with suppress(FileNotFoundError):
        text = (job.logs / f"{node}.log").read_text()
        return [line for line in text.splitlines(keepends=True) if line.startswith("batch ")]
    return []


def until_it_says(job: RunningJob, node: str, more: int) -> None:
    """Wait for so many more lines of a joined worker in the job's own directory."""
    count = len(log_of(job.job, node)) + more
    until(lambda: len(log_of(job.job, node)) >= count, f"{count} lines of {node}")


def shown(job: JobDir, node: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What `paceline logs` shows of what its script has printed."""
    show_logs(NearLogs(job), LogFilter(node=node))
    lines = capsys.readouterr().out.splitlines(keepends=True)
    return [line for line in lines if line.startswith("batch ")]


def test_what_a_joined_worker_prints_is_in_the_logs_of_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with one_worker(tmp_path, "--say", "--num-samples", "100000") as (job, home):
        with joining(job, home) as there:
            until_it_says(job, JOINED, 10)
            job.kill_master()
            until_it_says(job, JOINED, 20)
            job.tell(StopJob())
            job.end()
        assert shown(job.job, JOINED, capsys) == log_of(there, JOINED)
    assert len({*log_of(there, JOINED)}) == len(log_of(there, JOINED)) > 30
    show_logs(NearLogs(job.job), LogFilter(timestamps=True))
    assert re.search(rf"^{JOINED} \| 20\S+ \S+ batch ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.soak
def test_what_is_printed_around_the_death_of_a_joined_agent_is_in_the_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with one_worker(tmp_path, "--say", "--num-samples", "100000") as (job, home):
        with joining(job, home) as first:
            until_it_says(job, JOINED, 20)
            kill_all(first)
        assert first.run_dir.exists()
        os.utime(first.secret_file, (0, 0))  # a younger one might be about to start
        with joining(job, home, AGAIN) as second:
            assert not first.run_dir.exists(), "the machine is cleared of the one before"
            assert not first.secret_file.exists()
            until_it_says(job, AGAIN, 20)
            job.tell(StopJob())
            job.end()
        assert shown(job.job, AGAIN, capsys) == log_of(second, AGAIN)
    # What the first one printed in its last moment is on its machine alone.
    before = shown(job.job, JOINED, capsys)
    assert len(before) >= 20
    assert before == log_of(first, JOINED)[: len(before)]
