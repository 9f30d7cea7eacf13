"""The master's side of Ray with gateways that are scripts: what the next one hears, and the end."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from paceline.backends.ray import backend as backends
from paceline.backends.ray.backend import RayBackend
from paceline.backends.ray.messages import Begin, FreeOnMachines, Line, Said
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.protocol.nodes.platform import (
    AgentGone,
    AnyWord,
    NodeStopped,
    PlaceLost,
    PlacePending,
    PlaceTaken,
)
from paceline.wire.places import AskedPlace, Lack, Room
from paceline.wire.spec import JobSpec, NodeSize
from tests.integration.test_local_backend import start_node

NODE, OTHER = "worker-0", "worker-1"
LIMIT_S = 30.0
SCRIPT = """
import pathlib, sys
folder = pathlib.Path(sys.argv[-1])
number = len(list(folder.glob("*.begin")))
(folder / f"{number}.begin").write_text(sys.stdin.readline())
exec((folder / f"{number}.py").read_text())
"""
"""A gateway: notes its first line, and does what is written for the gateway of its number."""
WAITS = "for line in sys.stdin:\n    if 'Close' in line: break"


class Gateways:
    """What the gateways of one job do, one after the other, and what they heard at first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def then(self, code: str) -> None:
        """The next one does this."""
        (self._folder / f"{self._number}.py").write_text(code)
        self._number += 1

    def then_say(self, *lines: Line) -> None:
        """The next one says this, and ends."""
        said = "".join(f"{msgspec.json.encode(line).decode()}\n" for line in lines)
        self.then(f"sys.stdout.write({said!r})")

    async def begin(self, number: int) -> Begin:
        """The first line of a gateway."""
        path = self._folder / f"{number}.begin"
        async with asyncio.timeout(LIMIT_S):
            while not (path.exists() and path.read_text()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return msgspec.json.decode(path.read_text(), type=Begin)


@pytest.fixture
def gateways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gateways:
    monkeypatch.setattr(backends, "GATEWAY", ("-c", SCRIPT))
    monkeypatch.setattr(backends, "RETRY_S", 0.1)
    return Gateways(tmp_path)


@pytest.fixture
def open_backend(tmp_path: Path) -> Callable[[], RayBackend]:
    spec = JobSpec(script="train.py", backend="ray", ray_address="head:1")
    return lambda: RayBackend(JobDir(tmp_path), spec)


async def next_word(backend: RayBackend) -> AnyWord:
    async with asyncio.timeout(LIMIT_S):
        return await anext(backend.watch())


def test_the_next_gateway_leaves_what_has_ended_and_what_works_without_a_launcher(
    gateways: Gateways, open_backend: Callable[[], RayBackend]
) -> None:
    async def scenario() -> None:
        gateways.then(WAITS)
        gateways.then("")
        gateways.then(WAITS)
        backend = open_backend()
        start_node(backend, NODE)
        start_node(backend, OTHER)
        wants = {want.node: want for want in (await gateways.begin(0)).wants}
        gone = AgentGone(node=NODE, launch="L")
        taken, lost = PlaceTaken(node=OTHER, host="h"), PlaceLost(node=OTHER, why="raylet")
        for word in (gone, taken, lost):
            backend._on_line(Said(launch=wants[word.node].launch, word=word))
            assert await next_word(backend) == word
        assert backend._gateway is not None
        backend._gateway.kill()
        (want,) = (await gateways.begin(1)).wants
        assert (want.node, want.launch) == (OTHER, ""), "watched, and not started again"
        start_node(backend, NODE)
        assert {want.node for want in (await gateways.begin(2)).wants} == {NODE, OTHER}
        await backend.close()

    asyncio.run(scenario())


def test_a_word_that_two_gateways_say_is_heard_once(
    gateways: Gateways, open_backend: Callable[[], RayBackend]
) -> None:
    async def scenario() -> None:
        backend = open_backend()
        start_node(backend, NODE)
        (want,) = backend._wants.values()
        taken, gone = PlaceTaken(node=NODE, host="h"), AgentGone(node=NODE, launch="L")
        gateways.then_say(Said(launch=want.launch, word=taken))
        gateways.then_say(*(Said(launch=want.launch, word=word) for word in (taken, gone)))
        gateways.then_say(
            Said(launch=want.launch, word=gone),
            Said(launch="an earlier one", word=taken),
            FreeOnMachines(({"CPU": 3.5}, {"CPU": 0.5})),
        )
        gateways.then(WAITS)
        assert [await next_word(backend), await next_word(backend)] == [taken, gone]
        await gateways.begin(3)
        assert backend._words.empty()
        assert backend.room(AskedPlace()) == Room(), "it is that of a gateway which has gone"
        await backend.close()

    asyncio.run(scenario())


def test_a_hello_of_an_agent_that_is_being_stopped_does_not_withdraw_the_stop(
    gateways: Gateways, open_backend: Callable[[], RayBackend]
) -> None:
    async def scenario() -> None:
        gateways.then(WAITS)
        backend = open_backend()
        token = start_node(backend, NODE)
        backend.stop(NODE)
        backend.adopt(NODE, token, 1)
        begin = await gateways.begin(0)
        assert ([*begin.wants], [drop.node for drop in begin.drops]) == ([], [NODE])
        stopped = NodeStopped(node=NODE, launch=token)
        backend._on_line(Said(launch=token, word=stopped))
        assert await next_word(backend) == stopped
        backend.adopt(NODE, token, 1)
        assert [*backend._wants] == [NODE], "nothing is stopped any more"
        await backend.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("sys.exit('no cluster')", "no cluster"),
        ("print('no JSON', flush=True); sys.stdin.read()", "JSON is malformed"),
        ("import os; os._exit(3)", "exit code 3"),
    ],
)
def test_a_gateway_that_fails_says_why_and_another_one_is_started(
    code: str, words: str, gateways: Gateways, open_backend: Callable[[], RayBackend]
) -> None:
    async def scenario() -> None:
        gateways.then(code)
        gateways.then(WAITS)
        backend = open_backend()
        start_node(backend, NODE)
        word = await next_word(backend)
        assert isinstance(word, PlacePending)
        assert words in word.why
        assert [want.node for want in (await gateways.begin(1)).wants] == [NODE]
        await backend.close()

    asyncio.run(scenario())


def test_a_gateway_that_cannot_be_started_is_tried_again(
    gateways: Gateways, open_backend: Callable[[], RayBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        gateways.then(WAITS)
        with monkeypatch.context() as patch:
            patch.setattr(backends.sys, "executable", "/no/python")
            backend = open_backend()
            start_node(backend, NODE)
            word = await next_word(backend)
            assert isinstance(word, PlacePending)
            assert "/no/python" in word.why
        await gateways.begin(0)
        await backend.close()

    asyncio.run(scenario())


def test_a_backend_that_is_closed_between_two_gateways_has_the_next_one_give_all_back(
    gateways: Gateways, open_backend: Callable[[], RayBackend], tmp_path: Path
) -> None:
    async def scenario() -> None:
        gateways.then("sys.exit('no cluster')")
        gateways.then("(folder / 'closed').write_text(sys.stdin.readline())")
        backend = open_backend()
        start_node(backend, NODE)
        await next_word(backend)
        await backend.close()
        assert not (await gateways.begin(1)).wants
        assert "Close" in (tmp_path / "closed").read_text()

    asyncio.run(scenario())


def test_a_backend_that_no_gateway_helps_closes_in_time(
    gateways: Gateways, open_backend: Callable[[], RayBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(backends, "CLOSE_S", 0.3)
        gateways.then("import time; time.sleep(60)")
        backend = open_backend()
        await gateways.begin(0)
        gateway = backend._gateway
        assert gateway is not None
        await backend.close()
        assert await gateway.wait() == -9

    asyncio.run(scenario())


@pytest.mark.parametrize("address", ["http://head:8265", "ray://head:10001"])
def test_an_address_that_is_not_that_of_the_head_is_refused_with_its_source(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=f"^RAY_ADDRESS: got {address}, expected HOST:PORT of"):
        backends.prepare(JobSpec(script="train.py", backend="ray"))


def test_a_port_at_which_nothing_listens_is_told_at_once_and_nothing_else_is_judged() -> None:
    pytest.importorskip("ray")
    from paceline.backends.ray.cluster import knock

    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"does not answer \(.*refused"):
            knock(address)
        taken.listen()
        knock(address)
    knock("auto")


def test_room_is_counted_for_any_shape_and_says_what_lacks(
    gateways: Gateways, open_backend: Callable[[], RayBackend]
) -> None:
    async def scenario() -> None:
        gateways.then(WAITS)
        backend = open_backend()
        backend._on_line(FreeOnMachines(({"CPU": 3.5}, {"CPU": 0.5, "memory": 9.0})))
        half = AskedPlace(size=NodeSize(cpu=0.5))
        assert backend.room(half) == Room(count=8, why=Lack.NO_NODE, pending_s=0.0)
        large = AskedPlace(size=NodeSize(cpu=0.5, memory_bytes=10))
        assert backend.room(large) == Room(count=0, why=Lack.NO_NODE)
        await gateways.begin(0)
        await backend.close()

    asyncio.run(scenario())
