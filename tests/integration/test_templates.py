"""Zygotes are forks of the job's templates; nodes do without where a template fails them."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from paceline.agent import zygote
from paceline.agent.process import ProcessHost
from paceline.base.cgroups import find_node_group
from paceline.base.jobdir import JobDir
from paceline.base.processes import JOB_DIR, find_job_process, find_job_processes
from paceline.jobs.zygotes import MODULE, template_socket
from paceline.wire.messages.agent import StartProcess
from paceline.wire.messages.node import ProcessUp
from paceline.wire.spec import JobSpec
from paceline.wire.zygote import FromZygote, Warm
from tests.chaos.faults import supervisor_pid
from tests.integration.running import RunningJob, running, until

NODES = {"worker-0", "worker-1", "server-0", "server-1"}
PATIENCE_S = 60.0
SERVED = JobSpec(script="/train.py")
IGNORED = (lambda *_: None, lambda *_: None)
"""Ends of zygotes, and errors."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@pytest.fixture
def job() -> Iterator[JobDir]:
    job = JobDir.create("alone")
    yield job
    # What a supervisor would remove at the end.
    shutil.rmtree(job.run_dir)


def warm_processes(job: RunningJob) -> dict[str, list[psutil.Process]]:
    """All forks and fork makers by node; those of no node are templates."""
    found: dict[str, list[psutil.Process]] = {}
    for process in find_job_processes(job.job.path):
        if process.runs(MODULE):
            found.setdefault(process.node, []).append(psutil.Process(process.pid))
    return found


@pytest.mark.soak  # CI has single nodes that start from zygotes
def test_zygotes_are_forks_of_templates_that_end_with_their_supervisor(tmp_path: Path) -> None:
    with running(tmp_path, "--num-samples", "8192", "--slow-until-told") as job:
        job.until_committed(256)
        warm = warm_processes(job)
        templates = {process.pid for process in warm.pop("")}
        assert len(templates) == 2, "one for workers, one for servers"
        assert warm.keys() == NODES
        for node, processes in warm.items():
            life = job.pid_of(node)
            (own,) = (process for process in processes if process.pid != life)
            assert own.ppid() in templates
            assert psutil.Process(life).ppid() == own.pid
            for path in find_node_group(job.job.job_id, node).join_files:
                assert {str(own.pid), str(life)} <= set(Path(path).read_text().split())
        supervisor = supervisor_pid(job.job)
        assert supervisor
        os.kill(supervisor, signal.SIGKILL)
        until(lambda: not templates & set(psutil.pids()), "the end of the templates")
        agent = job.living("worker-1").agent_pid
        for process in (agent, *(process.pid for process in warm["worker-1"])):
            os.kill(process, signal.SIGKILL)
        until(lambda: job.living("worker-1").agent_pid != agent, "another agent")
        (tmp_path / "hurry").touch()
        job.check_finished()


def hangs(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()
    return listener


def dies(path: Path) -> socket.socket:
    listener = hangs(path)
    asyncio.get_running_loop().call_later(0.1, listener.close)
    return listener


def is_gone(path: Path) -> socket.socket:
    hangs(path).close()
    return socket.socket()


@pytest.mark.parametrize("template", [hangs, dies, is_gone])
def test_a_node_does_without_a_template_that_does_not_answer(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, template: Callable[[Path], socket.socket]
) -> None:
    monkeypatch.setattr(zygote, "LOOK_S", 0.3)

    async def scenario() -> None:
        seen: asyncio.Queue[FromZygote] = asyncio.Queue()
        link = zygote.ZygoteLink(job, "server-0", SERVED, (), seen.put_nowait, *IGNORED)
        with template(template_socket(job, "server")):
            link.start()
            assert (link.pid == 0) == (template is not is_gone)
            async with asyncio.timeout(PATIENCE_S):
                warm = await seen.get()
            assert isinstance(warm, Warm)
            assert psutil.Process(warm.pid).ppid() == os.getpid()
            assert warm.shared_bytes == 0
        await link.close()
        assert find_job_process(warm.pid, job.path) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("template", [dies, is_gone])
def test_a_node_that_can_start_no_zygote_fails_unless_a_process_runs(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, template: Callable[[Path], socket.socket]
) -> None:
    tried = asyncio.Event()

    def refuse(*_: object, **__: object) -> None:
        tried.set()
        raise BlockingIOError("there are too many processes")

    group = find_node_group(job.job_id, "server-0")

    async def scenario(pid: int) -> None:
        host = ProcessHost(job, "server-0", SERVED, group, lambda *_: None, lambda *_: None)
        with template(template_socket(job, "server")):
            host.adopt(ProcessUp(node="server-0", inc=1, pid=pid, role="server"))
            host.start_zygote()
            await asyncio.wait_for(tried.wait(), PATIENCE_S)
            assert not host.failed.done()
        host.run(StartProcess(inc=2, role="server", rank=0, num_workers=1))
        with pytest.raises(BlockingIOError, match="too many processes"):
            await asyncio.wait_for(host.failed, PATIENCE_S)
        await host.close()

    with subprocess.Popen(["sleep", "600"]) as running_one:
        monkeypatch.setattr(subprocess, "Popen", refuse)
        try:
            asyncio.run(scenario(running_one.pid))
        finally:
            running_one.kill()


def test_a_template_that_works_is_waited_for_but_not_forever(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote, "LOOK_S", 0.2)
    monkeypatch.setattr(zygote, "TEMPLATE_S", 1.0)

    async def scenario() -> None:
        warm = asyncio.Event()
        link = zygote.ZygoteLink(job, "server-0", SERVED, (), lambda _: warm.set(), *IGNORED)
        with hangs(template_socket(job, "server")):
            link.start()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.sleep(0.7)
                assert link.pid == 0, "it waits"
                await warm.wait()
        await link.close()

    works = [sys.executable, "-c", "while True: pass", "-m", MODULE]
    with subprocess.Popen(works, env={**os.environ, JOB_DIR: str(job.path)}) as template:
        asyncio.run(scenario())
        template.kill()
