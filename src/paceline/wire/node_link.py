"""The link between a training process and the agent of its node: a unix socket.

It lies in the run directory. Frames are a 4-byte length and msgpack: `NodeUp` towards the agent,
`NodeDown` back. Owns framing, reconnection and the check that the peer is the same user. The
process's end never blocks and needs no thread; the agent's end is asyncio. Messages may be lost
when the link breaks: their senders repeat them until answered.

    link = NodeLink(path, ProcessUp(...))      # hello: the first frame of every connection
    link.send(message)                         # False: not connected, dropped
    for message in link.receive(): ...         # also goes on with sends that were not finished
    link.fileno()                              # for pollers; -1 while not connected
    if not link.connected: link.reconnect()    # tries once, at once
    link.lost_for_s(time.monotonic())          # 0.0 while connected
    link.flush(timeout_s=1.0)                  # before exit

    server = NodeLinkServer(path, on_message, on_lost)    # on_message(NodeUp), on_lost(inc)
    await server.start()
    server.send(inc, message)                  # False: no such process is connected
    await server.close()
"""

import asyncio
import logging
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from paceline.base.numbering import Inc
from paceline.base.processes import peer_of
from paceline.wire.codec import Garbage, decoder, encode
from paceline.wire.messages.base import Message
from paceline.wire.messages.node import NodeDown, NodeUp, ProcessUp

MAX_FRAME_BYTES = 64 << 20
"""A longer frame is taken for garbage, and the connection closed."""
MAX_QUEUED_BYTES = 256 << 20
"""Beyond this, messages for a peer that does not read are dropped."""
READ_BYTES = 1 << 18
CLOSE_GRACE_S = 1.0
MAX_REFUSALS_LOGGED = 100

_LENGTH = struct.Struct("!I")

_log = logging.getLogger(__name__)
_decode_up: Callable[[bytes], NodeUp] = decoder(NodeUp)
_decode_down: Callable[[bytes], NodeDown] = decoder(NodeDown)


def _framed(message: Message) -> bytes:
    data = encode(message)
    return _LENGTH.pack(len(data)) + data


def _frames(buffer: bytearray) -> Iterator[bytes]:
    """Take the complete frames out of ``buffer``.

    Raises:
        Garbage: a length that no peer of ours would send.
    """
    at = 0
    while len(buffer) - at >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer, at)
        if length > MAX_FRAME_BYTES:
            raise Garbage(f"frame of {length} bytes, expected at most {MAX_FRAME_BYTES}")
        if len(buffer) - at - _LENGTH.size < length:
            break
        at += _LENGTH.size + length
        yield bytes(memoryview(buffer)[at - length : at])
    del buffer[:at]


class NodeLink:
    """The training process's end. Not for use by several threads."""

    def __init__(self, path: Path, hello: ProcessUp) -> None:
        """Tries to connect once; look at ``connected``."""
        self.num_dropped = 0
        """Messages dropped since the start: not connected, or the agent does not read."""
        self._path = path
        self._hello = hello
        self._socket: socket.socket | None = None
        self._incoming = bytearray()
        self._outgoing: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._lost_at_s = time.monotonic()
        self.reconnect()

    @property
    def connected(self) -> bool:
        return self._socket is not None

    @property
    def num_queued_bytes(self) -> int:
        """Bytes that wait until the descriptor can be written; `receive` goes on with them."""
        return self._queued_bytes

    def fileno(self) -> int:
        """The descriptor to poll for reading; -1 while not connected."""
        return -1 if self._socket is None else self._socket.fileno()

    def lost_for_s(self, now_s: float) -> float:
        """Seconds without a connection, by the monotonic clock."""
        return 0.0 if self.connected else now_s - self._lost_at_s

    def reconnect(self) -> bool:
        """Connect to the listener at the path and say hello; never waits."""
        if self._socket is not None:
            return True
        fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fresh.setblocking(False)
        try:
            fresh.connect(str(self._path))
        except OSError:
            # Nobody there, or its backlog is full: the caller tries again later.
            fresh.close()
            return False
        self._socket = fresh
        self._incoming.clear()
        return self.send_hello()

    def send_hello(self) -> bool:
        """Say hello once more, as a sign of life; False: the message is lost."""
        return self.send(self._hello)

    def send(self, message: NodeUp) -> bool:
        """Send or buffer; False: the message is lost."""
        if self._socket is None or self._queued_bytes > MAX_QUEUED_BYTES:
            self.num_dropped += 1
            return False
        data = _framed(message)
        self._outgoing.append(memoryview(data))
        self._queued_bytes += len(data)
        self._write()
        return self.connected

    def receive(self) -> list[NodeDown]:
        """All messages that have arrived."""
        self._write()
        self._read()
        found: list[NodeDown] = []
        try:
            for frame in _frames(self._incoming):
                found.append(_decode_down(frame))
        except Garbage as error:
            _log.warning("garbage_from_agent error=%s", error)
            self._lose()
        return found

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is handed to the kernel; False: it was not in time."""
        until_s = time.monotonic() + timeout_s
        while self._outgoing and self._socket is not None:
            left_s = until_s - time.monotonic()
            poller = select.poll()
            poller.register(self._socket, select.POLLOUT)
            if left_s <= 0 or not poller.poll(left_s * 1000):
                return False
            self._write()
        return self.connected

    def close(self) -> None:
        """Disconnect."""
        if self._socket is not None:
            self._lose()

    def _write(self) -> None:
        while self._socket is not None and self._outgoing:
            head = self._outgoing[0]
            try:
                sent = self._socket.send(head)
            except BlockingIOError:
                return
            except OSError:
                self._lose()
                return
            self._queued_bytes -= sent
            if sent < len(head):
                self._outgoing[0] = head[sent:]
            else:
                self._outgoing.popleft()

    def _read(self) -> None:
        while self._socket is not None:
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._incoming += data
            if not data:
                self._disconnect()
            elif len(data) < READ_BYTES:
                return

    def _disconnect(self) -> None:
        """The connection is gone; complete frames that were read stay."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._lost_at_s = time.monotonic()
        self._outgoing.clear()
        self._queued_bytes = 0

    def _lose(self) -> None:
        self._disconnect()
        self._incoming.clear()


class NodeLinkServer:
    """The agent's end.

    Args:
        path: the socket (0600), in a directory of mode 0700; a predecessor's is replaced.
        on_message: called for every message, ProcessUp first; must not block.
        on_lost: called with the incarnation whose connection ended.
    """

    def __init__(
        self,
        path: Path,
        on_message: Callable[[NodeUp], None],
        on_lost: Callable[[Inc], None],
    ) -> None:
        self._path = path
        self._on_message = on_message
        self._on_lost = on_lost
        self._writers: dict[Inc, asyncio.StreamWriter] = {}
        #: Of each connected incarnation.
        self._pids: dict[int, int] = {}
        #: Processes whose refusal was logged: who is refused comes back.
        self._refused: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._inode = 0

    async def start(self) -> None:
        """Listen at the path."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        listener.bind(str(fresh))
        fresh.chmod(0o600)
        listener.listen()
        # Renamed when it is ready, so that a process finds a listener under this name or none.
        fresh.rename(self._path)
        self._inode = self._path.stat().st_ino
        self._server = await asyncio.start_unix_server(self._serve, sock=listener)

    def send(self, inc: Inc, message: NodeDown) -> bool:
        """Send to the process of incarnation ``inc``; False: dropped, it is not there."""
        writer = self._writers.get(inc)
        if writer is None or writer.is_closing():
            return False
        if writer.transport.get_write_buffer_size() > MAX_QUEUED_BYTES:
            _log.warning("process_reads_slowly inc=%d dropped=%s", inc, type(message).__name__)
            return False
        writer.write(_framed(message))
        return True

    async def close(self) -> None:
        """Stop listening, end all connections, remove the socket unless a successor has it."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_GRACE_S)
        if self._path.exists() and self._path.stat().st_ino == self._inode:
            self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._tasks.add(task)
        inc = None
        pid, uid = peer_of(writer.get_extra_info("socket"))
        try:
            hello = await _next(reader) if uid == os.getuid() else None
            if not isinstance(hello, ProcessUp) or hello.pid != pid:
                self._refuse(pid, f"{type(hello).__name__} of user {uid} is no hello of its own")
                return
            inc = hello.inc
            if self._pids.setdefault(inc, pid) == pid:
                self._writers[inc] = writer
            self._on_message(hello)
            while (message := await _next(reader)) is not None:
                if message.inc == inc and self._pids.get(inc) == pid:
                    self._on_message(message)
                else:
                    self._refuse(pid, f"it is not the process of incarnation {message.inc}")
        except Garbage as error:
            self._refuse(pid, str(error))
        except asyncio.CancelledError:
            # Only `close` cancels; asyncio's own callback would log it as an error.
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            if inc is not None and self._writers.get(inc) is writer:
                del self._writers[inc], self._pids[inc]
                self._on_lost(inc)

    def _refuse(self, pid: int, reason: str) -> None:
        if pid not in self._refused and len(self._refused) < MAX_REFUSALS_LOGGED:
            self._refused.add(pid)
            _log.warning("node_link_refused pid=%d reason=%s", pid, reason)


async def _next(reader: asyncio.StreamReader) -> NodeUp | None:
    """The next message; None: the connection ended.

    Raises:
        Garbage: what came was no message.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > MAX_FRAME_BYTES:
            raise Garbage(f"frame of {length} bytes, expected at most {MAX_FRAME_BYTES}")
        return _decode_up(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, OSError):
        return None
