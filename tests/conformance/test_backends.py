"""What every backend promises the master, with real agents that find no master and wait for one.

A backend joins the suite as one more `Platform`. That of Ray needs a cluster in a network of its
own, in which `tests/ray/test_ray.py` runs this file again.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import pytest

from paceline.backends.local.backend import LocalBackend
from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes
from paceline.master.ports import Backend
from paceline.protocol.nodes.ends import AgentEnd
from paceline.protocol.nodes.platform import AgentGone, AnyWord, NodeStopped, PlaceTaken
from paceline.wire.places import AskedPlace, CannotResize, Deferred, Resized, Room
from paceline.wire.spec import NodeSize
from tests.integration.exiting import CAN_END, exit_with
from tests.integration.test_local_backend import (
    agent_of,
    job,
    launch_of,
    next_end,
    nothing_left,
    spoil,
    start_node,
)

__all__ = ["job"]

NODE, OTHER = "server-0", "server-1"
slow_on_ray = pytest.mark.skipif(
    os.environ.get("PACELINE_TEST_RAY_ALL") == "0", reason="`make soak` runs it on Ray"
)
"""There an agent takes seconds to start; of a promise's several forms one runs in every `make test`."""
PATIENCE_S = 60.0
QUIET_S = 1.0


class Platform(Protocol):
    """Where the nodes of a job run, seen by a test."""

    def open(self, *, crowded: bool = False) -> Backend: ...
    async def agent(self, node: str) -> int: ...
    def kill(self, agent_pid: int) -> None: ...
    def kill_launcher(self, node: str) -> None: ...
    def spoil(self, node: str) -> None: ...
    def cut_off(self) -> None: ...
    def is_clean(self) -> bool: ...
    def clean(self) -> AbstractAsyncContextManager[None]: ...


class Local:
    """Processes of this machine."""

    def __init__(self, job: JobDir) -> None:
        self.job = job

    def open(self, *, crowded: bool = False) -> Backend:
        return LocalBackend(self.job, lambda: 30.0 if crowded else 0.0)

    async def agent(self, node: str) -> int:
        return await agent_of(self.job, node)

    def kill(self, agent_pid: int) -> None:
        os.kill(agent_pid, signal.SIGKILL)

    def kill_launcher(self, node: str) -> None:
        """There is none: the backend itself starts agents."""

    def spoil(self, node: str) -> None:
        spoil(self.job, node)

    def cut_off(self) -> None:
        """Nothing is between a backend and its own machine."""

    def is_clean(self) -> bool:
        return not find_job_processes(self.job.path)

    def clean(self) -> AbstractAsyncContextManager[None]:
        return nothing_left(self.job)


def platforms() -> list[Callable[[JobDir], Platform]]:
    if "PACELINE_TEST_RAY" not in os.environ:
        return [Local]
    from tests.ray.platform import Ray

    return [Ray]


@pytest.fixture(params=platforms())
def platform(request: pytest.FixtureRequest, job: JobDir) -> Platform:
    return request.param(job)


def play(platform: Platform, scenario: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        async with platform.clean():
            await scenario()

    asyncio.run(body())


def obeys_signals(pid: int) -> bool:
    """Whether a process has come as far as to handle SIGTERM; until then that ends any."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


async def until_clean(platform: Platform) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not platform.is_clean():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_a_killed_agent_is_reported_and_a_stopped_one_is_not(platform: Platform) -> None:
    async def scenario() -> None:
        backend = platform.open()
        start_node(backend, NODE)
        start_node(backend, OTHER)
        pid = await platform.agent(NODE)
        await platform.agent(OTHER)
        backend.stop(OTHER)
        launch = launch_of(pid)
        platform.kill(pid)
        ended = await next_end(backend)
        assert (ended.node, ended.launch) == (NODE, launch)
        assert ended.end.signal == signal.SIGKILL and ended.end.words.endswith("signal SIGKILL")
        await until_clean(platform)

    play(platform, scenario)


async def next_stop(backend: Backend) -> NodeStopped:
    async with asyncio.timeout(PATIENCE_S):
        async for word in backend.watch():
            if isinstance(word, NodeStopped):
                return word
    raise AssertionError("it has stopped watching")


@pytest.mark.parametrize("grace_s", [0.0, 20.0])
def test_a_stop_is_confirmed_when_nothing_runs_any_more(platform: Platform, grace_s: float) -> None:
    async def scenario() -> None:
        backend = platform.open()
        start_node(backend, NODE)
        pid = await platform.agent(NODE)
        async with asyncio.timeout(PATIENCE_S):
            while not obeys_signals(pid):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        launch = launch_of(pid)
        backend.stop(NODE, grace_s)
        assert await next_stop(backend) == NodeStopped(node=NODE, launch=launch)
        assert platform.is_clean()
        backend.stop(OTHER, grace_s)  # which never was
        assert (await next_stop(backend)).node == OTHER

    play(platform, scenario)


@slow_on_ray
def test_an_agent_that_is_terminated_ends_well(platform: Platform) -> None:
    async def scenario() -> None:
        backend = platform.open()
        start_node(backend, NODE)
        pid = await platform.agent(NODE)
        async with asyncio.timeout(PATIENCE_S):
            while not obeys_signals(pid):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        launch = launch_of(pid)
        os.kill(pid, signal.SIGTERM)
        ended = await next_end(backend)
        assert (ended.launch, ended.end) == (launch, AgentEnd(code=0))

    play(platform, scenario)


@slow_on_ray
@pytest.mark.skipif(not CAN_END, reason="the registers of this processor are not known")
def test_an_agent_that_exits_is_reported_with_its_code(platform: Platform) -> None:
    async def scenario() -> None:
        backend = platform.open()
        start_node(backend, NODE)
        pid = await platform.agent(NODE)
        launch = launch_of(pid)
        exit_with(pid, 3)
        ended = await next_end(backend)
        assert (ended.node, ended.launch) == (NODE, launch)
        assert ended.end == AgentEnd(code=3)
        backend.stop(NODE)
        await until_clean(platform)

    play(platform, scenario)


@slow_on_ray
def test_an_agent_that_fails_is_reported_in_its_own_words(platform: Platform) -> None:
    async def scenario() -> None:
        platform.spoil(NODE)
        backend = platform.open()
        start_node(backend, NODE)
        ended = await next_end(backend)
        assert ended.node == NODE
        assert f"{NODE}.agent cannot be written" in ended.end.words
        backend.stop(NODE)
        await until_clean(platform)

    play(platform, scenario)


def test_what_a_dead_launcher_has_started_runs_on_until_the_next_launch(
    platform: Platform,
) -> None:
    async def scenario() -> None:
        backend = platform.open()
        start_node(backend, NODE)
        first = await platform.agent(NODE)
        platform.kill_launcher(NODE)
        await asyncio.sleep(QUIET_S)
        assert await platform.agent(NODE) == first
        start_node(backend, NODE)
        async with asyncio.timeout(PATIENCE_S):
            while (second := await platform.agent(NODE)) == first:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        launch = launch_of(second)
        platform.kill(second)
        ended = await next_end(backend)
        assert (ended.node, ended.launch) == (NODE, launch)
        await until_clean(platform)

    play(platform, scenario)


def test_a_node_that_is_launched_twice_runs_once(platform: Platform) -> None:
    async def scenario() -> None:
        backend = platform.open()
        start_node(backend, NODE)
        first = await platform.agent(NODE)
        start_node(backend, NODE)
        async with asyncio.timeout(PATIENCE_S):
            while (second := await platform.agent(NODE)) == first:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        launch = launch_of(second)
        platform.kill(second)
        ended = await next_end(backend)
        assert (ended.node, ended.launch) == (NODE, launch), "the end of the first is no news"
        await until_clean(platform)

    play(platform, scenario)


def test_the_next_masters_backend_adopts_an_agent_once(platform: Platform) -> None:
    async def scenario() -> None:
        start_node(platform.open(), NODE)
        pid = await platform.agent(NODE)
        backend = platform.open()
        launch = launch_of(pid)
        backend.adopt(NODE, launch, pid)
        backend.adopt(NODE, launch, pid)
        await asyncio.sleep(QUIET_S)
        platform.kill(pid)
        ended = await next_end(backend)
        assert (ended.node, ended.launch) == (NODE, launch)

    play(platform, scenario)


@slow_on_ray
def test_an_agent_repeats_the_token_of_its_launch_and_has_its_place(platform: Platform) -> None:
    async def scenario() -> None:
        backend = platform.open()
        token = start_node(backend, NODE)
        assert launch_of(await platform.agent(NODE)) == token
        async with asyncio.timeout(PATIENCE_S):
            async for word in backend.watch():
                if isinstance(word, PlaceTaken) and word.node == NODE:
                    break
        backend.stop(NODE)
        await until_clean(platform)

    play(platform, scenario)


@slow_on_ray
def test_a_platform_answers_what_it_is_asked_for_at_once(platform: Platform) -> None:
    async def scenario() -> None:
        backend = platform.open()
        assert await backend.picture([]) == set()
        token = start_node(backend, NODE)
        assert launch_of(await platform.agent(NODE)) == token
        assert NODE in await platform.open().picture([NODE]), "the next master awaits it"
        assert isinstance(backend.room(AskedPlace()), Room)
        assert isinstance(backend.resize(NODE, AskedPlace()), Resized | Deferred | CannotResize)
        backend.stop(NODE)
        await until_clean(platform)

    play(platform, scenario)


@slow_on_ray
def test_a_launch_without_a_place_can_be_withdrawn(platform: Platform) -> None:
    async def scenario() -> None:
        backend = platform.open(crowded=True)
        start_node(backend, NODE, AskedPlace(size=NodeSize(cpu=1_000.0)))
        await asyncio.sleep(QUIET_S)
        assert platform.is_clean()
        backend.stop(NODE)
        backend.stop(OTHER)  # which never was
        await asyncio.sleep(QUIET_S)
        assert platform.is_clean()

    play(platform, scenario)


def test_a_platform_that_was_out_of_reach_has_lost_and_doubled_nothing(platform: Platform) -> None:
    async def scenario() -> None:
        backend = platform.open()
        start_node(backend, NODE)
        start_node(backend, OTHER)
        pid, other = await platform.agent(NODE), await platform.agent(OTHER)
        heard: list[AnyWord] = []

        async def listen() -> None:
            async for word in backend.watch():
                heard.append(word)

        def ends() -> list[AgentGone]:
            return [word for word in heard if isinstance(word, AgentGone)]

        listening = asyncio.get_running_loop().create_task(listen())
        await asyncio.sleep(QUIET_S)
        launches = {(NODE, launch_of(pid)), (OTHER, launch_of(other))}
        platform.cut_off()
        platform.kill(pid)
        async with asyncio.timeout(PATIENCE_S):
            while not ends():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        platform.cut_off()
        platform.kill(other)
        async with asyncio.timeout(PATIENCE_S):
            while len(ends()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await asyncio.sleep(QUIET_S)
        assert {(end.node, end.launch) for end in ends()} == launches
        assert len(ends()) == 2
        listening.cancel()

    play(platform, scenario)
