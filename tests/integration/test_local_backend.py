"""The local backend with real agents, which find no master and wait for one.

What every backend promises is in tests/conformance/test_backends.py.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from paceline.backends.local.backend import LocalBackend
from paceline.base.cgroups import remove_job
from paceline.base.jobdir import JobDir
from paceline.base.node_files import NodeFiles
from paceline.base.processes import find_job_processes, is_locked, kill_quietly, try_lock
from paceline.master.ports import Backend
from paceline.protocol.nodes.platform import AgentGone
from paceline.wire.places import AskedPlace
from paceline.wire.spec import JobSpec, save

NODE = "server-0"
PATIENCE_S = 60.0
ANYWHERE = AskedPlace()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobDir]:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    job = JobDir.create("local")
    save(JobSpec(script="train.py"), job.spec)
    yield job
    # What a supervisor would remove at the end.
    shutil.rmtree(job.run_dir)
    deadline_s = time.monotonic() + PATIENCE_S
    while not remove_job(job.job_id):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@contextlib.asynccontextmanager
async def nothing_left(job: JobDir) -> AsyncIterator[None]:
    # Agents start a supervisor, and that a master, if nobody holds this.
    lock = try_lock(job.supervisor_lock)
    assert lock is not None
    try:
        yield
        await until_gone(job)
    finally:
        for process in find_job_processes(job.path):
            kill_quietly(process.pid)
        os.close(lock)


async def until_gone(job: JobDir) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while find_job_processes(job.path):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def agent_of(job: JobDir, node: str) -> int:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for process in find_job_processes(job.path):
                if process.runs("paceline.agent") and process.argv[-1] == node:
                    return process.pid
            await asyncio.sleep(0.02)


def start_node(
    backend: Backend, node: str, place: AskedPlace = ANYWHERE, *, may_move: bool = False
) -> str:
    """Have a node launched, as a master does; the token of the launch."""
    token = secrets.token_hex(8)
    backend.launch(node, place, token, may_move=may_move)
    return token


def launch_of(pid: int) -> str:
    """The token with which an agent was launched, from its command line."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return words[words.index("--launch") + 1]


def spoil(job: JobDir, node: str) -> None:
    """Have the node's agents fail at their start: they find a folder in place of their lock."""
    NodeFiles(job, node).agent_lock.mkdir()


async def next_end(backend: Backend) -> AgentGone:
    async with asyncio.timeout(PATIENCE_S):
        async for word in backend.watch():
            if isinstance(word, AgentGone):
                return word
        raise AssertionError("it has stopped watching")


def test_an_agent_that_cannot_come_up_says_why(job: JobDir) -> None:
    job.spec.write_text("{")

    async def body() -> None:
        async with nothing_left(job):
            backend = LocalBackend(job)
            start_node(backend, NODE)
            ended = await next_end(backend)
            assert ended.node == NODE
            assert "got a file that is no job spec of this version" in ended.end.words

    asyncio.run(body())


def test_an_agent_that_speaks_while_its_successor_comes_up_ends_unnoticed(job: JobDir) -> None:
    async def scenario() -> None:
        async with nothing_left(job):
            backend = LocalBackend(job)
            start_node(backend, NODE)
            old = await agent_of(job, NODE)
            backend.adopt(NODE, launch_of(old), old)
            async with asyncio.timeout(PATIENCE_S):
                while not is_locked(NodeFiles(job, NODE).agent_lock):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            start_node(backend, NODE)  # it was silent, and is not any more
            await asyncio.sleep(0.05)  # in which it is started, but does not come up
            backend.adopt(NODE, launch_of(old), old)
            async with asyncio.timeout(PATIENCE_S):
                while psutil.pid_exists(old):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            new = await agent_of(job, NODE)
            backend.adopt(NODE, launch := launch_of(new), new)
            kill_quietly(new, signal.SIGKILL)
            end = await next_end(backend)
            assert (end.node, end.launch) == (NODE, launch)

    asyncio.run(scenario())


def test_an_agent_that_died_unwatched_is_reported_when_it_is_adopted(job: JobDir) -> None:
    async def scenario() -> None:
        async with nothing_left(job):
            backend = LocalBackend(job)
            backend.adopt(NODE, "L", 1 << 22)
            assert (await next_end(backend)).launch == "L"

    asyncio.run(scenario())


def test_a_pending_launch_is_held_back_and_can_be_withdrawn(job: JobDir) -> None:
    async def scenario() -> None:
        async with nothing_left(job):
            backend: Backend = LocalBackend(job, pending_s=lambda: 0.3)
            asked_s = asyncio.get_running_loop().time()
            start_node(backend, NODE)
            start_node(backend, "server-1")
            backend.stop("server-1")
            assert find_job_processes(job.path) == []
            await agent_of(job, NODE)
            assert asyncio.get_running_loop().time() - asked_s >= 0.3
            assert backend.room(AskedPlace()).pending_s == 0.3
            backend.stop(NODE)
            await until_gone(job)

    asyncio.run(scenario())
