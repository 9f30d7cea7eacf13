"""The control channel: agents and people reach the master, and nobody else does."""

import asyncio
import logging
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from paceline.base.errors import ConfigError, InternalError, PermanentError, TransientError
from paceline.wire import control
from paceline.wire.client import Call, Done, GetStatus, Kill, Reply
from paceline.wire.control import (
    MAX_MESSAGE_BYTES,
    AgentStream,
    ControlClient,
    ControlServer,
    MasterStream,
)
from paceline.wire.control_auth import Introduction
from paceline.wire.messages.agent import AgentHello, FromProcess, Heartbeat, Leave, StopProcess
from paceline.wire.messages.node import ScriptError

SECRET = b"0123456789abcdef"
LIMIT_S = 10.0
HOST = "127.0.0.1"


class Master:
    """Answers each heartbeat with a StopProcess; remembers what came."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.ended = asyncio.Event()
        self.server = ControlServer(SECRET, self.on_agent, self.on_call)

    async def on_agent(self, stream: AgentStream) -> None:
        async for up in stream:
            self.seen.append(up)
            if isinstance(up, Heartbeat):
                stream.send_nowait(StopProcess(inc=len(self.seen), grace_s=1.0))
        self.ended.set()

    async def on_call(self, call: Call) -> Reply:
        if isinstance(call, Kill):
            raise TransientError(f"no node {call.node}")
        return Done()


class Liar(ControlClient):
    """Goes on although nothing is proven."""

    def _prove(self, me: Introduction, answer: bytes, method: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", self._secret.decode()),)


@pytest.fixture
def own() -> Iterator[Path]:
    """A private folder with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def with_master(body: Callable[[Master, ControlClient], Awaitable[None]]) -> None:
    async def main() -> None:
        master = Master()
        port = await master.server.start(host=HOST)
        try:
            async with asyncio.timeout(LIMIT_S):
                await body(master, ControlClient(f"{HOST}:{port}", SECRET))
        finally:
            await master.server.stop()

    asyncio.run(main())


async def take(stream: MasterStream, count: int) -> list[object]:
    found: list[object] = []
    async for down in stream:
        found.append(down)
        if len(found) == count:
            break
    return found


def test_messages_travel_both_ways_in_order() -> None:
    async def body(master: Master, client: ControlClient) -> None:
        stream = await client.connect_agent()
        stream.send_nowait(AgentHello(node="worker-0", agent="a", agent_pid=1, host="h"))
        for _ in range(3000):
            stream.send_nowait(Heartbeat(node="worker-0"))
        answers = await take(stream, 3000)
        assert answers == [StopProcess(inc=i + 2, grace_s=1.0) for i in range(3000)]
        assert isinstance(master.seen[0], AgentHello)
        await stream.close()

    with_master(body)


def test_the_master_sees_the_end_when_an_agent_leaves() -> None:
    async def body(master: Master, client: ControlClient) -> None:
        stream = await client.connect_agent()
        stream.send_nowait(Heartbeat(node="worker-0"))
        await take(stream, 1)
        await stream.close()
        await master.ended.wait()

    with_master(body)


def test_an_agent_is_told_when_the_master_is_gone() -> None:
    async def body(master: Master, client: ControlClient) -> None:
        stream = await client.connect_agent()
        stream.send_nowait(Heartbeat(node="worker-0"))
        await take(stream, 1)
        await master.server.stop()
        assert await take(stream, 1) == []
        await stream.close()

    with_master(body)


def test_a_stream_ends_when_the_master_returns_from_it() -> None:
    async def main() -> None:
        async def on_agent(stream: AgentStream) -> None:
            stream.send_nowait(Leave())
            async for _ in stream:
                return

        async def on_call(call: Call) -> Reply:
            return Done()

        server = ControlServer(SECRET, on_agent, on_call)
        client = ControlClient(f"{HOST}:{await server.start(host=HOST)}", SECRET)
        async with asyncio.timeout(LIMIT_S):
            stream = await client.connect_agent()
            assert await take(stream, 1) == [Leave()]
            stream.send_nowait(Heartbeat(node="worker-0"))
            assert await take(stream, 1) == []
            await stream.close()
        await server.stop()

    asyncio.run(main())


def test_what_is_queued_when_an_end_leaves_still_arrives() -> None:
    async def main() -> None:
        seen: list[object] = []
        begun, gone = asyncio.Event(), asyncio.Event()

        async def on_agent(stream: AgentStream) -> None:
            for _ in range(500):
                stream.send_nowait(Leave())
            begun.set()
            async for up in stream:
                seen.append(up)
            gone.set()

        async def on_call(call: Call) -> Reply:
            return Done()

        server = ControlServer(SECRET, on_agent, on_call)
        client = ControlClient(f"{HOST}:{await server.start(host=HOST)}", SECRET)
        async with asyncio.timeout(LIMIT_S):
            first = await client.connect_agent()
            for _ in range(500):
                first.send_nowait(Heartbeat(node="worker-0"))
            await first.close()
            await gone.wait()
            assert len(seen) == 500
            begun.clear()
            second = await client.connect_agent()
            await begun.wait()
            stopping = asyncio.create_task(server.stop())
            assert len(await take(second, 500)) == 500
            assert await take(second, 1) == []
            await second.close()
            await stopping

    asyncio.run(main())


def test_a_stream_that_opens_as_the_master_ends_is_closed() -> None:
    async def body(master: Master, client: ControlClient) -> None:
        stream = await client.connect_agent()
        # The master's side of the stream may not have begun yet.
        stopping = asyncio.create_task(master.server.stop())
        assert await take(stream, 1) == []
        await stream.close()
        await stopping

    with_master(body)


def test_a_call_is_answered_with_and_without_an_event_loop() -> None:
    async def body(_: Master, client: ControlClient) -> None:
        assert await client.call(GetStatus(), LIMIT_S) == Done()
        assert await asyncio.to_thread(client.call_sync, GetStatus(), LIMIT_S) == Done()

    with_master(body)


def test_an_error_of_the_master_is_the_answer() -> None:
    async def body(_: Master, client: ControlClient) -> None:
        assert await client.call(Kill(node="worker-9"), LIMIT_S) == Done(error="no node worker-9")

    with_master(body)


def test_a_wrong_secret_is_refused_and_logged_once_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(master: Master, client: ControlClient) -> None:
        for wrong in (Liar(client.address, SECRET), Liar(client.address, b"not-the-secret")):
            with pytest.raises(PermanentError, match="UNAUTHENTICATED"):
                await wrong.connect_agent()
            with pytest.raises(PermanentError, match="UNAUTHENTICATED"):
                await wrong.call(GetStatus(), LIMIT_S)
            with pytest.raises(PermanentError, match="UNAUTHENTICATED"):
                await asyncio.to_thread(wrong.call_sync, GetStatus(), LIMIT_S)
        assert master.seen == []

    with caplog.at_level(logging.INFO, logger="paceline"):
        with_master(body)
    refused = [r for r in caplog.records if "secret_refused" in r.getMessage()]
    assert len(refused) == 1
    assert "not-the-secret" not in caplog.text
    assert SECRET.decode() not in caplog.text


def test_a_server_that_does_not_have_the_secret_gets_nothing() -> None:
    async def body(_: Master, client: ControlClient) -> None:
        other = ControlClient(client.address, b"of another job")
        with pytest.raises(PermanentError, match="does not have this job's secret"):
            await other.connect_agent()
        with pytest.raises(PermanentError, match="does not have this job's secret"):
            await other.call(GetStatus(), LIMIT_S)
        with pytest.raises(PermanentError, match="does not have this job's secret"):
            await asyncio.to_thread(other.call_sync, GetStatus(), LIMIT_S)

    with_master(body)


def test_at_a_unix_socket_all_is_as_at_a_port(own: Path) -> None:
    async def main() -> None:
        master = Master()
        path = own / "master é %.sock"
        assert await master.server.start(path=path) == 0
        assert path.stat().st_mode & 0o777 == 0o600
        client = ControlClient(f"unix:{path}", SECRET)
        async with asyncio.timeout(LIMIT_S):
            assert await client.call(GetStatus(), LIMIT_S) == Done()
            assert await asyncio.to_thread(client.call_sync, GetStatus(), LIMIT_S) == Done()
            stream = await client.connect_agent()
            stream.send_nowait(Heartbeat(node="worker-0"))
            assert await take(stream, 1) == [StopProcess(inc=1, grace_s=1.0)]
            await stream.close()
            successor = Master()
            await successor.server.start(path=path)
            await master.server.stop()
            assert await client.call(GetStatus(), LIMIT_S) == Done(), "its socket went with another"
            await successor.server.stop()
        with pytest.raises(TransientError, match="nobody answers"):
            client.call_sync(GetStatus(), 1.0)

    asyncio.run(main())


def test_a_path_that_is_too_long_for_a_socket_is_refused_with_the_remedy(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="expected 107 at most; set TMPDIR"):
            await Master().server.start(path=tmp_path / ("x" * 100))

    asyncio.run(main())


async def word_for(client: ControlClient, channel: grpc.aio.Channel, method: str) -> str:
    """What proves to the master that a stranger to it has the secret."""
    me = Introduction(SECRET, client.address.rpartition(":")[2])
    return me.word(await channel.unary_unary("/paceline.Control/Hello")(me.nonce), method)


def test_garbage_closes_its_stream_only() -> None:
    async def body(master: Master, client: ControlClient) -> None:
        good = await client.connect_agent()
        agent, plain = "/paceline.Control/Agent", "/paceline.Control/Call"
        async with grpc.aio.insecure_channel(client.address) as channel:
            word = await word_for(client, channel, agent)
            call = channel.stream_stream(agent)(metadata=(("authorization", word),))
            await call.write(b"\x93\xff\x00garbage")
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            ask, word = channel.unary_unary(plain), await word_for(client, channel, plain)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(b"\xc1", metadata=(("authorization", word),))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        good.send_nowait(Heartbeat(node="worker-0"))
        assert len(await take(good, 1)) == 1
        await good.close()

    with_master(body)


def test_random_bytes_on_the_port_harm_nobody() -> None:
    async def body(_: Master, client: ControlClient) -> None:
        host, port = client.address.split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(bytes(range(256)) * 100)
        assert await client.call(GetStatus(), LIMIT_S) == Done()

    with_master(body)


def test_nobody_at_the_address_is_a_transient_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    client = ControlClient(address, SECRET)
    with pytest.raises(TransientError, match=address):
        client.call_sync(GetStatus(), 1.0)
    with pytest.raises(TransientError, match=address):
        asyncio.run(client.connect_agent(timeout_s=1.0))


def test_a_listener_that_never_answers_is_a_transient_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ControlClient(f"127.0.0.1:{silent.getsockname()[1]}", SECRET)
        with pytest.raises(TransientError):
            asyncio.run(client.connect_agent(timeout_s=0.2))


def test_two_masters_cannot_share_a_port() -> None:
    async def body(_: Master, client: ControlClient) -> None:
        other = Master()
        with pytest.raises(TransientError, match="in use"):
            await other.server.start(host=HOST, port=int(client.address.split(":")[1]))
        await other.server.stop()

    with_master(body)


def test_big_messages_travel_and_too_big_ones_are_refused_at_once() -> None:
    async def body(master: Master, client: ControlClient) -> None:
        stream = await client.connect_agent()

        def script_error(size: int) -> FromProcess:
            body = ScriptError(inc=1, kind="E", traceback="x" * size, in_user_code=True, step=1)
            return FromProcess(node="worker-0", body=body)

        with pytest.raises(InternalError, match="FromProcess"):
            stream.send_nowait(script_error(MAX_MESSAGE_BYTES + 1))
        for _ in range(3):
            stream.send_nowait(script_error(5 << 20))
        stream.send_nowait(Heartbeat(node="worker-0"))
        assert await take(stream, 1) == [StopProcess(inc=4, grace_s=1.0)]
        await stream.close()

    with_master(body)


def test_a_peer_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf:
        async def read(self) -> bytes:
            await asyncio.Event().wait()
            return b""

        async def write(self, _: bytes) -> None:
            await asyncio.Event().wait()

    async def main() -> None:
        stream: AgentStream = AgentStream(Deaf(), control._decode_up, "deaf")
        stream.send_nowait(Leave())
        await asyncio.sleep(0)
        monkeypatch.setattr(control, "WRITE_TIMEOUT_S", -1.0)
        waiting = asyncio.ensure_future(anext(aiter(stream), None))
        await asyncio.sleep(0)
        stream.send_nowait(Leave())
        async with asyncio.timeout(LIMIT_S):
            assert await waiting is None
        assert stream.num_queued == 0

    asyncio.run(main())


def test_a_failing_handler_ends_its_stream_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def on_agent(stream: AgentStream) -> None:
            async for up in stream:
                if isinstance(up, AgentHello):
                    raise RuntimeError("bug")  # noqa: TRY004
                stream.send_nowait(Leave())

        async def on_call(call: Call) -> Reply:
            return Done()

        server = ControlServer(SECRET, on_agent, on_call)
        client = ControlClient(f"{HOST}:{await server.start(host=HOST)}", SECRET)
        async with asyncio.timeout(LIMIT_S):
            bad, good = await client.connect_agent(), await client.connect_agent()
            bad.send_nowait(AgentHello(node="n", agent="a", agent_pid=1, host="h"))
            assert await take(bad, 1) == []
            good.send_nowait(Heartbeat(node="n"))
            assert await take(good, 1) == [Leave()]
            await bad.close()
            await good.close()
        await server.stop()

    asyncio.run(main())
    assert "agent_stream_failed" in caplog.text
