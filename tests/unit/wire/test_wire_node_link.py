"""The link between a training process and its agent."""

import asyncio
import os
import random
import socket
import stat
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.wire.messages.node import Finished, NodeDown, NodeUp, ProcessUp, ScriptError, Stop
from paceline.wire.node_link import NodeLink, NodeLinkServer, _frames

HELLO = ProcessUp(node="worker-0", inc=7, pid=os.getpid(), role="worker")
LIMIT_S = 10.0


class Agent:
    def __init__(self, path: Path) -> None:
        self.seen: list[NodeUp] = []
        self.lost: list[int] = []
        self.changed = asyncio.Event()
        self.server = NodeLinkServer(path, self.on_message, self.on_lost)

    def on_message(self, message: NodeUp) -> None:
        self.seen.append(message)
        self.changed.set()

    def on_lost(self, inc: int) -> None:
        self.lost.append(inc)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


async def arrived(link: NodeLink, count: int) -> list[NodeDown]:
    """Poll as a training process does, but leave the loop to the agent in between."""
    found: list[NodeDown] = []
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    descriptor = link.fileno()
    loop.add_reader(descriptor, ready.set)
    while len(found) < count and link.connected:
        await ready.wait()
        ready.clear()
        found += link.receive()
    loop.remove_reader(descriptor)
    return found


def with_agent(path: Path, body: Callable[[Agent, NodeLink], Awaitable[None]]) -> None:
    async def main() -> None:
        agent = Agent(path)
        await agent.server.start()
        link = NodeLink(path, HELLO)
        try:
            async with asyncio.timeout(LIMIT_S):
                await body(agent, link)
        finally:
            link.close()
            await agent.server.close()

    asyncio.run(main())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-0.sock"


def test_a_process_that_has_nothing_to_say_says_hello_again(path: Path) -> None:
    async def body(agent: Agent, link: NodeLink) -> None:
        assert link.send_hello()
        await agent.until(lambda: len(agent.seen) == 2)
        assert agent.seen == [HELLO, HELLO]
        link.close()
        assert not link.send_hello()

    with_agent(path, body)


def test_hello_comes_first_and_messages_travel_both_ways(path: Path) -> None:
    async def body(agent: Agent, link: NodeLink) -> None:
        assert link.send(Finished(inc=7))
        await agent.until(lambda: len(agent.seen) == 2)
        assert agent.seen == [HELLO, Finished(inc=7)]
        assert agent.server.send(7, Stop(inc=7))
        assert not agent.server.send(8, Stop(inc=8))
        assert await arrived(link, 1) == [Stop(inc=7)]

    with_agent(path, body)


def test_the_socket_is_for_its_owner_only(path: Path) -> None:
    async def body(_: Agent, __: NodeLink) -> None:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600

    with_agent(path, body)


def test_sends_never_block_and_partial_writes_arrive_whole(path: Path) -> None:
    error = ScriptError(inc=7, kind="E", traceback="x" * 3_000_000, in_user_code=True, step=1)

    async def body(agent: Agent, link: NodeLink) -> None:
        start_s = time.monotonic()
        for _ in range(5):
            assert link.send(error)
        assert time.monotonic() - start_s < 1.0
        flushed = asyncio.get_running_loop().run_in_executor(None, link.flush, LIMIT_S)
        await agent.until(lambda: len(agent.seen) == 6)
        assert await flushed
        assert agent.seen[1:] == [error] * 5

    with_agent(path, body)


def test_flush_gives_up_after_its_timeout(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
        deaf.listen()
        link = NodeLink(path, HELLO)
        link.send(
            ScriptError(inc=7, kind="E", traceback="x" * 9_000_000, in_user_code=True, step=1)
        )
        assert not link.flush(0.05)
        link.close()


def test_without_an_agent_nothing_blocks_and_the_time_is_counted(path: Path) -> None:
    link = NodeLink(path, HELLO)
    assert not link.connected
    assert link.fileno() == -1
    assert link.receive() == []
    assert not link.send(Finished(inc=7))
    assert link.num_dropped == 1
    assert not link.reconnect()
    now_s = time.monotonic()
    assert link.lost_for_s(now_s + 5.0) == pytest.approx(5.0, abs=1.0)


def test_the_process_finds_the_successor_of_its_agent(path: Path) -> None:
    async def body(agent: Agent, link: NodeLink) -> None:
        await agent.until(lambda: len(agent.seen) == 1)
        await agent.server.close()
        assert await arrived(link, 1) == []
        assert link.lost_for_s(time.monotonic()) >= 0.0
        assert not link.reconnect()
        successor = Agent(path)
        await successor.server.start()
        assert link.reconnect()
        assert link.lost_for_s(time.monotonic()) == 0.0
        assert link.send(Finished(inc=7))
        await successor.until(lambda: len(successor.seen) == 2)
        assert successor.seen == [HELLO, Finished(inc=7)]
        assert successor.server.send(7, Stop(inc=7))
        assert await arrived(link, 1) == [Stop(inc=7)]
        await successor.server.close()

    with_agent(path, body)


def test_a_late_predecessor_leaves_its_successors_socket_alone(path: Path) -> None:
    async def body(agent: Agent, _: NodeLink) -> None:
        successor = Agent(path)
        await successor.server.start()
        await agent.server.close()
        with closing(NodeLink(path, HELLO)) as fresh:
            assert fresh.connected
        await successor.server.close()
        assert os.listdir(path.parent) == []

    with_agent(path, body)


def test_the_agent_learns_that_a_process_is_gone(path: Path) -> None:
    async def body(agent: Agent, link: NodeLink) -> None:
        await agent.until(lambda: len(agent.seen) == 1)
        link.close()
        await agent.until(lambda: agent.lost == [7])
        assert not agent.server.send(7, Stop(inc=7))

    with_agent(path, body)


def test_a_second_connection_of_an_incarnation_replaces_the_first(path: Path) -> None:
    async def body(agent: Agent, link: NodeLink) -> None:
        second = NodeLink(path, HELLO)
        await agent.until(lambda: len(agent.seen) == 2)
        link.close()
        second.send(Finished(inc=7))
        await agent.until(lambda: len(agent.seen) == 3)
        assert agent.lost == []
        assert agent.server.send(7, Stop(inc=7))
        assert await arrived(second, 1) == [Stop(inc=7)]
        second.close()

    with_agent(path, body)


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 64, struct.pack("!I", 3) + b"\xc1\xc1\xc1", struct.pack("!I", 1) + b"\x01"],
    ids=["length", "undecodable", "not a message"],
)
def test_garbage_on_the_socket_ends_only_its_connection(path: Path, garbage: bytes) -> None:
    async def body(agent: Agent, link: NodeLink) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as raw:
            raw.setblocking(False)
            await loop.sock_connect(raw, str(path))
            await loop.sock_sendall(raw, garbage)
            assert await loop.sock_recv(raw, 1) == b""
        link.send(Finished(inc=7))
        await agent.until(lambda: Finished(inc=7) in agent.seen)

    with_agent(path, body)


@pytest.mark.parametrize("garbage", [b"\xff" * 8, struct.pack("!I", 1) + b"\xc1"])
def test_garbage_from_the_agent_costs_the_link_but_not_what_came_before(
    path: Path, garbage: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as fake:
        fake.bind(str(path))
        fake.listen()
        link = NodeLink(path, HELLO)
        peer, _ = fake.accept()
        good = msgspec.msgpack.encode(Stop(inc=7))
        peer.sendall(struct.pack("!I", len(good)) + good + garbage)
        assert link.receive() == [Stop(inc=7)]
        assert not link.connected
        assert link.reconnect()
        link.close()
        peer.close()


@given(st.lists(st.integers(1, 40), max_size=200), st.binary(max_size=20))
def test_frames_survive_any_division_into_reads(sizes: list[int], tail: bytes) -> None:
    rng = random.Random(1)
    bodies = [rng.randbytes(n) for n in (0, 1, 5, 300, 2)]
    stream = b"".join(struct.pack("!I", len(b)) + b for b in bodies) + struct.pack("!I", 21) + tail
    buffer, found, at = bytearray(), [], 0
    for size in [*sizes, len(stream)]:
        buffer += stream[at : at + size]
        at += size
        found += _frames(buffer)
    assert found == bodies
    assert buffer == struct.pack("!I", 21) + tail


def test_nobody_speaks_for_another_incarnation(path: Path) -> None:
    async def body(agent: Agent, link: NodeLink) -> None:
        stranger = NodeLink(path, msgspec.structs.replace(HELLO, inc=8))
        stranger.send(Finished(inc=7))
        stranger.send(Finished(inc=8))
        await agent.until(lambda: Finished(inc=8) in agent.seen)
        assert Finished(inc=7) not in agent.seen
        stranger.close()

    with_agent(path, body)


def test_a_hello_in_the_name_of_another_process_is_refused(path: Path) -> None:
    async def body(agent: Agent, link: NodeLink) -> None:
        await agent.until(lambda: len(agent.seen) == 1)
        stranger = NodeLink(path, msgspec.structs.replace(HELLO, pid=1))
        assert await arrived(stranger, 1) == []
        assert agent.server.send(7, Stop(inc=7)), "the real one is still there"
        assert await arrived(link, 1) == [Stop(inc=7)]
        assert agent.seen == [HELLO]

    with_agent(path, body)


def test_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(agent: Agent, link: NodeLink) -> None:
        await agent.until(lambda: len(agent.seen) == 1)
        real = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: real + 1)
        stranger = NodeLink(path, HELLO)
        assert await arrived(stranger, 1) == []
        assert not stranger.connected
        assert agent.seen == [HELLO]

    with_agent(path, body)
