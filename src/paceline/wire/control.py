"""The control plane's channel: gRPC streams and calls that carry msgpack, with a proof on each.

Owns how agents and people reach the master: authentication, batching, limits, the detection of a
dead peer. It knows nothing of what the messages mean. asyncio throughout (`ControlClient.call_sync`
excepted); imports neither torch nor protobuf's generated code. A port has TLS (`control_tls`), a
unix socket has none.

    server = ControlServer(secret, on_agent, on_call)
    await server.start(path=job.master_socket)       # or host="10.0.0.5", which gives a port
    await server.stop()

    async def on_agent(stream: AgentStream) -> None:   # one task per connected agent
        async for up in stream:                        # ends when the agent is gone
            stream.send_nowait(down)                   # never blocks
    async def on_call(call: Call) -> Reply: ...

    client = ControlClient.to(job)
    stream = await client.connect_agent()              # send_nowait(AgentUp), async for
    reply = await client.call(GetStatus(), timeout_s=5.0)
    reply = client.call_sync(GetStatus(), timeout_s=5.0)

A client's failures are `TransientError` (not reachable, too slow, stream broken: connect again) or
`PermanentError` (secret refused, message refused). One gRPC message carries a list of messages:
all that were queued when the previous one had been written.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote

import msgspec

from paceline.base.errors import InternalError, PacelineError, PermanentError, TransientError
from paceline.base.jobdir import UNIX, JobDir
from paceline.base.own_sockets import check_listener, check_path, end_connections_of_others
from paceline.wire.client import Call, Done, Reply
from paceline.wire.codec import Garbage, decoder, encode
from paceline.wire.control_auth import NONCE_BYTES, ON_UNIX, ControlDoor, Introduction
from paceline.wire.control_tls import MASTER, client_credentials, fault, server_credentials
from paceline.wire.messages.agent import AgentDown, AgentUp
from paceline.wire.messages.base import Message
from paceline.wire.quiet_grpc import grpc

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message accepted from a peer, and sent; evaluation results are the big ones."""
BATCH_BYTES = 1 << 20
"""A batch is closed once it holds this much."""
QUEUE_WARNING = 10_000
"""Messages queued for one peer before a warning: it reads slower than we send."""
WRITE_TIMEOUT_S = 30.0
"""A peer that takes nothing for so long is given up; its messages are repeated by their senders."""
CONNECT_TIMEOUT_S = 5.0
STOP_GRACE_S = 1.0

_SERVICE = "paceline.Control"
_HELLO = f"/{_SERVICE}/Hello"
_AGENT = f"/{_SERVICE}/Agent"
_CALL = f"/{_SERVICE}/Call"
_SIZES = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES + BATCH_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + BATCH_BYTES),
]
# A peer whose machine vanished sends no FIN: pings find out within keepalive time + timeout.
_KEEPALIVE = [
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
# Small messages need no larger windows. The pings that measure how large they should be come with
# each batch, and cost as much again as the batch itself.
_WINDOWS = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 20)]
_SERVER_OPTIONS = [
    *_SIZES,
    *_KEEPALIVE,
    *_WINDOWS,
    # Two masters on one port would each get half of the agents.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
]
_CLIENT_OPTIONS = [
    *_SIZES,
    *_KEEPALIVE,
    *_WINDOWS,
    # The shared pool would make a new channel wait for an old one's backoff.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # Checked where there is TLS: the name in the master's certificate, whatever its address is.
    ("grpc.ssl_target_name_override", MASTER),
]

# What reading from and writing to a peer that goes away raises; which one depends on the moment.
_BROKEN = (grpc.RpcError, grpc.aio.InternalError, asyncio.InvalidStateError)

_log = logging.getLogger(__name__)
_decode_up: Callable[[bytes], list[AgentUp]] = decoder(list[AgentUp])
_decode_down: Callable[[bytes], list[AgentDown]] = decoder(list[AgentDown])
_decode_call: Callable[[bytes], Call] = decoder(Call)
_decode_reply: Callable[[bytes], Reply] = decoder(Reply)

_In = TypeVar("_In")
_Out = TypeVar("_Out", bound=Message)


class Stream(Generic[_In, _Out]):
    """One end of an agent's stream: iterate over what comes in, `send_nowait` what goes out."""

    def __init__(self, call: Any, decode: Callable[[bytes], list[_In]], peer: str) -> None:
        """``call``: gRPC's call (client) or context (server): both can ``read`` and ``write``."""
        self.peer = peer
        """Host and port of the other end."""
        self.garbage = ""
        """Why the other end's bytes could not be understood; the iteration has then ended."""
        self._call = call
        self._decode = decode
        self._incoming: deque[_In] = deque()
        self._outgoing: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._finishing = False
        self._ended = asyncio.get_running_loop().create_future()
        #: Who waits for the next message.
        self._reading: asyncio.Task[Any] | None = None
        #: Since when one write is under way; 0.0: none is.
        self._writing_since_s = 0.0
        self._writer = asyncio.create_task(self._write_all())

    @property
    def num_queued(self) -> int:
        """Messages that were not handed to gRPC yet."""
        return len(self._outgoing)

    def send_nowait(self, message: _Out) -> None:
        """Queue a message; after the end of the stream it is dropped.

        Raises:
            InternalError: the message is larger than MAX_MESSAGE_BYTES.
        """
        data = encode(message)
        if len(data) > MAX_MESSAGE_BYTES:
            raise InternalError(
                f"{type(message).__name__} of {len(data)} bytes for {self.peer}: "
                f"the control plane carries at most {MAX_MESSAGE_BYTES}; send it in parts"
            )
        if self._ended.done() or self._finishing:
            return
        self._outgoing.append(data)
        since_s = self._writing_since_s
        if since_s and time.monotonic() - since_s > WRITE_TIMEOUT_S:
            _log.info("stream_broken peer=%s error=it takes nothing", self.peer)
            self._writer.cancel()
            self.end()
        if len(self._outgoing) == QUEUE_WARNING:
            _log.warning("peer_reads_slowly peer=%s queued=%d", self.peer, QUEUE_WARNING)
        self._wake.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _In:
        while not self._incoming:
            data = await self._read()
            if data is None:
                raise StopAsyncIteration
            try:
                self._incoming.extend(self._decode(data))
            except Garbage as error:
                self.garbage = str(error)
                _log.warning("garbage_received peer=%s error=%s", self.peer, error)
                self.end()
                raise StopAsyncIteration from None
        return self._incoming.popleft()

    async def _read(self) -> bytes | None:
        """The next batch; None: the stream is over."""
        if self._ended.done():
            return None
        # In the reader's own task, which `end` interrupts: a task, or a timer, for each small
        # message would cost as much as gRPC's own work on it.
        self._reading = asyncio.current_task()
        try:
            data = await self._call.read()
        except asyncio.CancelledError:
            if self._reading is not None:
                raise
            return None
        except _BROKEN as error:
            self._reading = None
            self.end()
            self._broken(error)
            return None
        self._reading = None
        if data is grpc.aio.EOF:
            self.end()
            return None
        return bytes(data)

    def _broken(self, error: BaseException) -> None:
        """Told why reading failed; the master needs no more than the end of the iteration."""
        _log.info("stream_broken peer=%s error=%s", self.peer, type(error).__name__)

    async def _write_all(self) -> None:
        """Write batches until the stream ends."""
        while not self._ended.done():
            while self._outgoing:
                self._writing_since_s = time.monotonic()
                try:
                    await self._call.write(self._batch())
                except _BROKEN as error:
                    _log.info("stream_broken peer=%s error=%s", self.peer, type(error).__name__)
                    self.end()
                self._writing_since_s = 0.0
            if self._finishing:
                return
            await self._wake.wait()
            self._wake.clear()

    def _batch(self) -> bytes:
        batch: list[msgspec.Raw] = []
        size = 0
        while self._outgoing and size < BATCH_BYTES:
            batch.append(msgspec.Raw(self._outgoing.popleft()))
            size += len(batch[-1])
        return encode(batch)

    def end(self) -> None:
        """Stop the iteration and drop what is queued; may be called again."""
        if not self._ended.done():
            self._ended.set_result(None)
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            reading.uncancel()
        self._outgoing.clear()
        self._wake.set()

    async def finish(self) -> None:
        """Write what is queued, for STOP_GRACE_S at most, and end."""
        self._finishing = True
        self._wake.set()
        _, late = await asyncio.wait({self._writer}, timeout=STOP_GRACE_S)
        for task in late:
            task.cancel()
        self.end()


AgentStream = Stream[AgentUp, AgentDown]
"""The master's end."""


class MasterStream(Stream[AgentDown, AgentUp]):
    """The agent's end; a broken connection raises from the iteration, a closed one ends it."""

    def __init__(self, call: Any, channel: grpc.aio.Channel, address: str) -> None:
        super().__init__(call, _decode_down, address)
        self._channel = channel

    async def say_last_words(self, timeout_s: float) -> None:
        """Write what is queued, and wait until the master has read it; for so long at most."""
        self._finishing = True
        self._wake.set()
        with contextlib.suppress(TimeoutError, *_BROKEN):
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._writer)
                await self._call.done_writing()
                await asyncio.shield(self._ended)  # the master ends the stream after us

    def _broken(self, error: BaseException) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            raise _translated(error, self.peer) from error
        raise TransientError(f"stream to the master at {self.peer} broke: {error}") from error

    def drop(self) -> None:
        """End it at once: what is queued is not sent."""
        self._writer.cancel()
        self.end()
        self._call.cancel()

    async def close(self) -> None:
        """Send what is queued, then close the stream and its connection."""
        broken = self._ended.done()
        await self.finish()
        if not broken:
            with contextlib.suppress(TimeoutError, *_BROKEN):
                async with asyncio.timeout(STOP_GRACE_S):
                    await self._call.done_writing()
                    await self._call.code()
        self._call.cancel()
        await self._channel.close()


class CallServer:
    """A listener that answers calls of those who have its secret.

    Args:
        secret: a peer that does not prove that it has it gets UNAUTHENTICATED.
        on_call: answers a call; a PacelineError becomes ``Done(error=...)``.
        decode: from bytes to a call.
    """

    def __init__(
        self,
        secret: bytes,
        on_call: Callable[[Any], Awaitable[Message]],
        decode: Callable[[bytes], Any],
    ) -> None:
        self._door = ControlDoor(secret)
        self._on_call = on_call
        self._decode = decode
        self._refused: set[str] = set()
        self._server: grpc.aio.Server | None = None
        self._port = 0
        #: The name to which the unix socket was bound.
        self._bound = Path()

    async def start(
        self, *, path: Path | None = None, host: str = "", port: int = 0, identity: bytes = b""
    ) -> int:
        """Listen at a unix socket, at a port, or at both.

        Args:
            path: of the socket (0600), in a folder of mode 0700; a predecessor's is replaced.
            host: address of this machine; empty: no port.
            port: it is not shared with another process; 0: any free one.
            identity: private key and certificate to show at the port; empty: no TLS there.

        Returns:
            The port; 0: none.

        Raises:
            ConfigError: no socket can have this path.
            TransientError: the port is taken.
        """
        self._server = grpc.aio.server(options=_SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, self._handlers()),)
        )
        if path is not None:
            self._bound = path.with_name(f"{path.name}.{os.getpid()}")
            check_path(self._bound)
            self._bind(f"{UNIX}{quote(str(self._bound))}")
            self._bound.chmod(0o600)
        if host:
            self._port = self._bind(f"{host}:{port}", identity)
        await self._server.start()
        if path is not None:
            # Renamed when it is ready, so that a client finds a listener under this name or none.
            self._bound.rename(path)
        return self._port

    def _bind(self, address: str, identity: bytes = b"") -> int:
        assert self._server is not None
        try:
            if identity:
                bound: int = self._server.add_secure_port(address, server_credentials(identity))
            else:
                bound = self._server.add_insecure_port(address)
        except RuntimeError as error:
            text = f"cannot listen on {address}: is it in use? {error}"
            raise TransientError(text) from error
        return bound

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
            self._server = None

    def _handlers(self) -> dict[str, Any]:
        return {
            "Hello": grpc.unary_unary_rpc_method_handler(self._hello),
            "Call": grpc.unary_unary_rpc_method_handler(self._call),
        }

    async def _hello(self, nonce: bytes, context: Any) -> bytes:
        if len(nonce) != NONCE_BYTES:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no hello of this version")
        return self._door.greet(nonce, self._place_of(context))

    async def _call(self, data: bytes, context: Any) -> bytes:
        await self._authenticate(context, _CALL)
        try:
            call = self._decode(data)
        except Garbage as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        try:
            return encode(await self._on_call(call))
        except PacelineError as error:
            return encode(Done(error=str(error)))

    async def _authenticate(self, context: Any, method: str) -> None:
        """Abort the call unless its client proves that it has the secret."""
        place = self._place_of(context)
        if place == ON_UNIX:
            for user in end_connections_of_others(self._bound):
                self._refuse(f"user {user}")
        metadata = dict(context.invocation_metadata() or ())
        if self._door.admits(str(metadata.get("authorization", "")), method, place):
            return
        self._refuse(context.peer().rpartition(":")[0])
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong or missing proof of the secret")

    def _place_of(self, context: Any) -> str:
        return ON_UNIX if context.peer().startswith(UNIX) else str(self._port)

    def _refuse(self, peer: str) -> None:
        if peer not in self._refused:
            self._refused.add(peer)
            _log.warning("secret_refused peer=%s", peer)


class ControlServer(CallServer):
    """The master's listener.

    Args:
        secret: the job's; a peer that does not prove that it has it gets UNAUTHENTICATED.
        on_agent: runs while an agent's stream lives; when it returns, the stream is closed.
        on_call: answers people's calls; a PacelineError becomes ``Done(error=...)``.
    """

    def __init__(
        self,
        secret: bytes,
        on_agent: Callable[[AgentStream], Awaitable[None]],
        on_call: Callable[[Call], Awaitable[Reply]],
    ) -> None:
        super().__init__(secret, on_call, _decode_call)
        self._on_agent = on_agent
        self._streams: set[AgentStream] = set()
        self._stopping = False

    async def stop(self) -> None:
        """Stop listening and end all streams, once what is queued is written."""
        self._stopping = True
        await asyncio.gather(*(stream.finish() for stream in self._streams))
        await super().stop()

    def _handlers(self) -> dict[str, Any]:
        agent = grpc.stream_stream_rpc_method_handler(self._agent)
        return {"Agent": agent, **super()._handlers()}

    async def _agent(self, _: Any, context: Any) -> None:
        await self._authenticate(context, _AGENT)
        if self._stopping:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the master ends")
        stream: AgentStream = Stream(context, _decode_up, context.peer())
        # Before its client can know of it: `stop` ends every stream that somebody reads.
        self._streams.add(stream)
        # The client waits for these, so that a refused secret shows when it connects.
        await context.send_initial_metadata(())
        served = asyncio.ensure_future(self._on_agent(stream))
        try:
            # Not awaited directly: gRPC cancels this task when the agent is gone, and on_agent
            # shall see the end of its iteration rather than a cancellation in mid-thought.
            await asyncio.wait({served})
            await stream.finish()
        finally:
            stream.end()
            _, late = await asyncio.wait({served}, timeout=STOP_GRACE_S)
            for task in late:
                task.cancel()
            self._streams.discard(stream)
            _report(served, stream.peer)
        if stream.garbage:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, stream.garbage)


def _report(served: "asyncio.Future[None]", peer: str) -> None:
    """Log an exception of ``on_agent``: it is a bug, and must not take the others down."""
    if served.done() and not served.cancelled() and served.exception() is not None:
        _log.error("agent_stream_failed peer=%s", peer, exc_info=served.exception())


class ControlClient:
    """How an agent or a person reaches the master.

    Args:
        address: ``unix:PATH`` or ``host:port``.
        secret: the job's; it does not leave this process.
        authority: certificate of the job's authority, PEM, which must have signed that of the
            master; empty: there is no TLS. It does not matter at a unix socket.
    """

    def __init__(self, address: str, secret: bytes, authority: bytes = b"") -> None:
        self.address = address
        self._secret = secret
        self._path = Path(address.removeprefix(UNIX)) if address.startswith(UNIX) else None
        self._target = address if self._path is None else f"{UNIX}{quote(str(self._path))}"
        self._place = ON_UNIX if self._path is not None else address.rpartition(":")[2]
        self._authority = authority if self._path is None else b""

    @classmethod
    def to(cls, job: JobDir) -> Self:
        """Return the client of a job's master, as it is reached from here."""
        return cls(job.control_address(), job.secret(), job.authority_pem())

    async def connect_agent(self, timeout_s: float = CONNECT_TIMEOUT_S) -> MasterStream:
        """Open the agent's stream; returns once both ends have proven that they have the secret.

        Raises:
            TransientError: no master there within ``timeout_s``.
            PermanentError: another user or program listens there, or the secret was refused.
        """
        self._check()
        await self._look_whether_anybody_listens(timeout_s)
        channel = self._channel(grpc.aio)
        try:
            async with asyncio.timeout(timeout_s):
                me = Introduction(self._secret, self._place)
                metadata = self._prove(me, await channel.unary_unary(_HELLO)(me.nonce), _AGENT)
                call = channel.stream_stream(_AGENT)(metadata=metadata)
                await call.initial_metadata()
                if call.done():
                    await call.read()
        except TimeoutError as error:
            await channel.close()
            raise TransientError(f"no answer from {self.address} in {timeout_s} s") from error
        except grpc.aio.AioRpcError as error:
            await channel.close()
            await asyncio.to_thread(self._look_at_tls, error)
            raise _translated(error, self.address) from error
        except (asyncio.CancelledError, PermanentError):
            await channel.close()
            raise
        return MasterStream(call, channel, self.address)

    async def call(self, call: Call, timeout_s: float) -> Reply:
        """Ask the master.

        Raises:
            TransientError: not reachable, or no answer within ``timeout_s``.
            PermanentError: another user or program listens there, or it refused the call.
        """
        self._check()
        until_s = time.monotonic() + timeout_s
        async with self._channel(grpc.aio) as channel:
            me = Introduction(self._secret, self._place)
            try:
                said = await channel.unary_unary(_HELLO)(me.nonce, timeout=timeout_s)
                metadata, left_s = self._prove(me, said, _CALL), until_s - time.monotonic()
                ask = channel.unary_unary(_CALL)
                data = await ask(encode(call), timeout=left_s, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                await asyncio.to_thread(self._look_at_tls, error)
                raise _translated(error, self.address) from error
        return _decode_reply(data)

    def call_sync(self, call: Call, timeout_s: float) -> Reply:
        """`call` for callers without an event loop."""
        reply: Reply = _decode_reply(self.ask_sync(call, timeout_s))
        return reply

    def ask_sync(self, call: Message, timeout_s: float) -> bytes:
        """Ask any `CallServer`; the answer as it came.

        Raises:
            TransientError: not reachable, or no answer within ``timeout_s``.
            PermanentError: another user or program listens there, or it refused the call.
        """
        self._check()
        until_s = time.monotonic() + timeout_s
        with self._channel(grpc) as channel:
            me = Introduction(self._secret, self._place)
            try:
                said = channel.unary_unary(_HELLO)(me.nonce, timeout=timeout_s)
                metadata, left_s = self._prove(me, said, _CALL), until_s - time.monotonic()
                ask = channel.unary_unary(_CALL)
                return bytes(ask(encode(call), timeout=left_s, metadata=metadata))
            except grpc.RpcError as error:
                self._look_at_tls(error)
                raise _translated(error, self.address) from error

    def _channel(self, kind: Any) -> Any:
        """Make a channel of gRPC's, or of its part for asyncio."""
        if not self._authority:
            return kind.insecure_channel(self._target, options=_CLIENT_OPTIONS)
        believed = client_credentials(self._authority)
        return kind.secure_channel(self._target, believed, options=_CLIENT_OPTIONS)

    def _look_at_tls(self, error: Any) -> None:
        """Raise PermanentError if no connection came about because of TLS."""
        if self._path is not None or error.code() is not grpc.StatusCode.UNAVAILABLE:
            return
        if why := fault(self.address, self._authority):
            raise PermanentError(f"{self.address}: {why}") from error

    def _check(self) -> None:
        if self._path is not None:
            check_listener(self._path)

    async def _look_whether_anybody_listens(self, timeout_s: float) -> None:
        """Find out for little: agents without a master try five times a second, all at once.

        gRPC takes several milliseconds of the processor to tell that nobody listens: so many agents
        would keep the master from being started.
        """
        if self._path is not None:
            return
        host, _, port = self.address.rpartition(":")
        try:
            async with asyncio.timeout(timeout_s):
                _, writer = await asyncio.open_connection(host, int(port))
        except OSError as error:  # a TimeoutError is one
            why = error.strerror or f"no answer in {timeout_s} s"
            raise TransientError(f"nobody answers at {self.address} ({why})") from error
        writer.close()

    def _prove(self, me: Introduction, answer: bytes, method: str) -> tuple[tuple[str, str], ...]:
        """Return what proves the secret to a server that has proven it."""
        try:
            return (("authorization", me.word(answer, method)),)
        except PermanentError as error:
            raise PermanentError(f"{self.address}: {error}") from error


def _translated(error: Any, address: str) -> PacelineError:
    """The error of ours that says what to do next."""
    code: grpc.StatusCode = error.code()
    text = f"master at {address}: {code.name}: {error.details()}"
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT):
        return PermanentError(text)
    return TransientError(text)
