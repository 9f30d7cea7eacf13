"""What every backend promises the master, with real agents that find no master and wait for one.

A backend joins the suite as one more `Platform`.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from paceline.backends.local.backend import LocalBackend
from paceline.base.jobdir import JobDir
from paceline.master.ports import Backend
from tests.integration.test_local_backend import agent_of, job, next_end, nothing_left, until_gone

__all__ = ["job"]

NODE, OTHER = "server-0", "server-1"
HELD_S = 0.3


class Platform(Protocol):
    """Where the nodes of a job run, seen by a test."""

    killed: str
    """What its backend says of an agent that was killed."""

    def open(self, pending_s: float = 0.0) -> Backend: ...
    async def agent(self, node: str) -> int: ...
    def kill(self, agent_pid: int) -> None: ...
    async def gone(self) -> None: ...
    def clean(self) -> AbstractAsyncContextManager[None]: ...


class Local:
    """Processes of this machine."""

    killed = "exit code -9"

    def __init__(self, job: JobDir) -> None:
        self.job = job

    def open(self, pending_s: float = 0.0) -> Backend:
        return LocalBackend(self.job, lambda: pending_s)

    async def agent(self, node: str) -> int:
        return await agent_of(self.job, node)

    def kill(self, agent_pid: int) -> None:
        os.kill(agent_pid, signal.SIGKILL)

    async def gone(self) -> None:
        await until_gone(self.job)

    def clean(self) -> AbstractAsyncContextManager[None]:
        return nothing_left(self.job)


@pytest.fixture(params=[Local])
def platform(request: pytest.FixtureRequest, job: JobDir) -> Platform:
    return request.param(job)


def play(platform: Platform, scenario: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        async with platform.clean():
            await scenario()

    asyncio.run(body())


def test_a_killed_agent_is_reported_and_a_stopped_one_is_not(platform: Platform) -> None:
    async def scenario() -> None:
        backend = platform.open()
        backend.launch(NODE)
        backend.launch(OTHER)
        pid = await platform.agent(NODE)
        await platform.agent(OTHER)
        backend.stop(OTHER)
        platform.kill(pid)
        ended = await next_end(backend)
        assert (ended.node, ended.agent_pid, ended.reason) == (NODE, pid, platform.killed)
        await platform.gone()

    play(platform, scenario)


def test_the_next_masters_backend_adopts_an_agent_once(platform: Platform) -> None:
    async def scenario() -> None:
        platform.open().launch(NODE)
        pid = await platform.agent(NODE)
        backend = platform.open()
        backend.adopt(NODE, pid)
        backend.adopt(NODE, pid)
        platform.kill(pid)
        ended = await next_end(backend)
        assert (ended.node, ended.agent_pid) == (NODE, pid)

    play(platform, scenario)


def test_an_agent_that_died_unwatched_is_reported_when_it_is_adopted(platform: Platform) -> None:
    async def scenario() -> None:
        backend = platform.open()
        backend.adopt(NODE, 1 << 22)
        assert (await next_end(backend)).agent_pid == 1 << 22

    play(platform, scenario)


def test_a_launch_waits_for_its_place_and_can_be_withdrawn(platform: Platform) -> None:
    async def scenario() -> None:
        backend = platform.open(pending_s=HELD_S)
        asked_s = asyncio.get_running_loop().time()
        backend.launch(NODE)
        backend.launch(OTHER)
        backend.stop(OTHER)
        await platform.agent(NODE)
        assert asyncio.get_running_loop().time() - asked_s >= HELD_S
        assert backend.waited_s(NODE) >= HELD_S
        assert backend.waited_s(OTHER) == 0.0
        assert backend.pending_s() in (None, HELD_S)
        backend.stop(NODE)
        await platform.gone()

    play(platform, scenario)
