"""The data plane: `Data` messages with tensors beside them, between workers and servers.

One message is a header (msgpack of a `Data`), where its big frames lie (on one host: shared memory,
`paceline.wire.shm`), and the other frames as they are. Callers see none of this: they hand over and
get buffers. ZMQ ROUTER at the server, one DEALER per server at the client; neither ever blocks in
`send`: what a peer does not take is dropped and counted, and the protocol repeats it.

    server = DataServer("shm:///run/dir/server-0-3.data", secret)   # or bind_address(spec, …)
    server.address                                                  # what clients connect to
    for peer, message, frames in server.poll(0.5, extra=link.fileno()):     # -1: nothing extra
        out = server.allocate(peer, num_bytes)   # optional: write the answer where it is sent from
        server.send(peer, Pulled(...), [out])

    client = DataClient({3: server.address}, secret, ident="worker-0-17")   # ident: unique
    client.send(3, Pull(...), [ids])
    for key, message, frames in client.poll(0.5, extra=link.fileno()): ...
    client.connect(4, other_address); client.disconnect(3); client.keys(); client.close()

The scheme of an address says how to talk there: ``shm`` (a unix socket, big frames through shared
memory), ``ipc`` (a unix socket), ``tcp`` (PLAIN: in clear) and ``curve`` (tcp, encrypted).

Ownership. A buffer given to `send` must not be changed afterwards (it is sent from where it lies),
unless it is smaller than COPY_BYTES; one from `allocate` can be sent once. A received frame is a
writable memoryview, aligned to 8 bytes, which belongs to the receiver; arrays made from it
(``numpy.frombuffer(frame, dtype)``) keep it. There is nothing to release: its memory is given back
when the last reference goes, so drop frames and arrays when they are used up.

Not for use by several threads; to be created after a fork, not before.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

from paceline.base.errors import PermanentError
from paceline.wire.data_auth import Doorkeeper, secure_client
from paceline.wire.data_packing import COPY_BYTES, NOBLOCK, Buffer, Frame, Packer, file_of
from paceline.wire.messages.data import Data
from paceline.wire.shm import DEFAULT_ARENA_BYTES
from paceline.wire.spec import DataPlaneSpec

POLLIN, POLLIN_OUT = int(zmq.POLLIN), int(zmq.POLLIN | zmq.POLLOUT)
MAX_FRAME_BYTES = 1 << 31
QUEUE_LENGTH = 64
"""Messages that may wait for one peer, at either end."""
BATCH = 64
"""Most messages that one poll takes from one socket."""
LINGER_MS = 200
LOOPBACK_BYTES = 448 << 10
"""The kernel's buffers of a tcp connection to this machine: the larger ones that it would choose
on its own outgrow the processor's caches. Between machines the kernel chooses."""
HEARTBEAT_MS = 2_000
DEAD_AFTER_MS = 10_000
RECONNECT_MS, RECONNECT_MAX_MS = 20, 1_000


def bind_address(plane: DataPlaneSpec, listen: str, run_dir: Path, name: str) -> str:
    """Where the server ``name`` of a job is to listen; ``listen``: the host's address, for tcp."""
    if plane.transport == "tcp":
        return f"{'curve' if plane.encryption == 'curve' else 'tcp'}://{listen}:*"
    scheme = "ipc" if plane.transport == "ipc" else "shm"
    return f"{scheme}://{run_dir / name}.data"


class DataServer:
    """The end that listens.

    Args:
        bind: ``shm://<file in the run directory>``, ``ipc://<file>``, ``tcp://<ip>:<port or *>`` or
            ``curve://<ip>:<port or *>``.
        secret: the job's; clients without it are refused.
        arena_bytes: shm only: memory to send from; when it is full, frames go through the socket.

    Raises:
        PermanentError: the address cannot be bound.
    """

    def __init__(self, bind: str, secret: bytes, *, arena_bytes: int = DEFAULT_ARENA_BYTES) -> None:
        self._context = zmq.Context()
        self._door = Doorkeeper(self._context, secret, encrypted=_encrypted(bind))
        self._socket = self._context.socket(zmq.ROUTER)
        _configure(self._socket, bind)
        # Without it a send to a peer that is gone would be lost silently instead of counted.
        self._socket.router_mandatory = True
        # A client that reconnects before its old connection is known dead keeps its name.
        self._socket.router_handover = True
        self._door.secure(self._socket)
        self._packer = Packer(bind, arena_bytes)
        self._poller = _Poller()
        try:
            self._socket.bind(_endpoint(bind))
        except zmq.ZMQError as error:
            self.close()
            raise PermanentError(f"cannot listen on {bind}: {error}; is it in use?") from error
        scheme = bind.partition("://")[0]
        bound = self._socket.get_string(zmq.LAST_ENDPOINT)
        self.address = f"{scheme}://{bound.partition('://')[2]}"
        """Address to which clients connect."""
        if scheme in ("shm", "ipc"):
            file_of(bind).chmod(0o600)
        self._door.bound(self.address)
        self._poller.add(self._socket)
        self._poller.add(self._door.socket)
        self._poller.add(self._door.monitor)
        self._arena_of: dict[bytes, str] = {}

    @property
    def num_dropped(self) -> int:
        """Messages that could not be sent."""
        return self._packer.num_dropped

    @property
    def num_garbage(self) -> int:
        """Messages that could not be understood."""
        return self._packer.num_garbage

    @property
    def num_refused(self) -> int:
        """Connections without the secret."""
        return self._door.num_refused

    def poll(self, timeout_s: float, extra: int = -1) -> list[tuple[bytes, Data, list[Frame]]]:
        """Return what has arrived; wait at most ``timeout_s``, or until ``extra`` can be read.

        May return nothing before the time is up.
        """
        ready = self._poller.poll(timeout_s, extra)
        if self._door.socket in ready:
            self._door.answer()
        if self._door.monitor in ready:
            self._door.look()
        found: list[tuple[bytes, Data, list[Frame]]] = []
        for peer, *parts in _arrived(self._socket) if self._socket in ready else ():
            opened = self._packer.open(parts)
            if opened is not None:
                message, frames, arena = opened
                if arena:
                    self._arena_of[peer.bytes] = arena
                found.append((peer.bytes, message, frames))
        return found

    def allocate(self, peer: bytes, num_bytes: int) -> memoryview:
        """Memory to write a frame for ``peer`` into, from where it is sent without a copy."""
        return self._packer.allocate(num_bytes, shared=peer in self._arena_of)

    def send(self, peer: bytes, message: Data, frames: Sequence[Buffer] = ()) -> bool:
        """Send; False: dropped, the peer is gone or does not read."""
        return self._packer.send(self._socket, message, frames, self._arena_of.get(peer), (peer,))

    def close(self) -> None:
        """Close; what is queued gets LINGER_MS."""
        self._socket.close(linger=LINGER_MS)
        self._door.close()
        self._context.term()
        self._packer.close()


class DataClient:
    """The end that connects: one per process, to any number of servers.

    Args:
        servers: key (of the caller's choice) -> address.
        secret: the job's.
        ident: what servers see as ``peer``; a second client with it takes over from the first.
        arena_bytes: as for the server, allocated at the first shm address; 0: no shared memory,
            for a client that sends and gets no tensors.
    """

    def __init__(
        self,
        servers: Mapping[int, str],
        secret: bytes,
        ident: str,
        *,
        arena_bytes: int = DEFAULT_ARENA_BYTES,
    ) -> None:
        self._secret = secret
        self._ident = ident
        self._arena_bytes = arena_bytes
        self._context = zmq.Context()
        self._sockets: dict[int, Any] = {}
        self._addresses: dict[int, str] = {}
        self._packers: dict[int, Packer] = {}
        self._shared: dict[Path, Packer] = {}
        self._plain = Packer("", 0)
        self._poller = _Poller()
        self._alarm = -1
        self.extra_ready = False
        """Whether the last poll found ``extra`` ready."""
        for key, address in servers.items():
            self.connect(key, address)

    @property
    def num_dropped(self) -> int:
        """Messages that could not be sent."""
        return self._plain.num_dropped + sum(p.num_dropped for p in self._shared.values())

    @property
    def num_garbage(self) -> int:
        """Messages that could not be understood."""
        return self._plain.num_garbage + sum(p.num_garbage for p in self._shared.values())

    def keys(self) -> tuple[int, ...]:
        """The servers that this client talks to."""
        return tuple(self._sockets)

    def connect(self, key: int, address: str) -> None:
        """Add a server, in place of one with this key at another address. Returns at once."""
        if self._addresses.get(key) == address:
            return
        self.disconnect(key)
        sock = self._context.socket(zmq.DEALER)
        _configure(sock, address)
        sock.set_string(zmq.ROUTING_ID, self._ident)
        secure_client(sock, self._secret, address, encrypted=_encrypted(address))
        sock.connect(_endpoint(address))
        self._sockets[key] = sock
        self._addresses[key] = address
        self._packers[key] = self._packer_for(address)
        self._poller.add(sock)

    def disconnect(self, key: int) -> None:
        """Remove a server, dead or alive; what it was sent may be overwritten from now on.

        A server that lives may still read it, but then it is of an epoch that is over, and nothing
        that it makes of it counts.
        """
        sock = self._sockets.pop(key, None)
        if sock is not None:
            del self._addresses[key]
            self._poller.remove(sock)
            sock.close(linger=0)
            self._packers.pop(key).reclaim(key)

    def watch(self, alarm: int) -> None:
        """An eventfd that ends a poll when another thread writes to it."""
        self._alarm = alarm
        self._poller.add(alarm)

    def poll(
        self, timeout_s: float, extra: int = -1, *, writing: bool = False
    ) -> list[tuple[int, Data, list[Frame]]]:
        """Return what has arrived; wait at most ``timeout_s``, or until ``extra`` can be read.

        ``writing``: or written.
        """
        ready = self._poller.poll(timeout_s, extra, writing=writing)
        if self._alarm in ready:
            os.eventfd_read(self._alarm)
        self.extra_ready = extra in ready
        found: list[tuple[int, Data, list[Frame]]] = []
        for key, sock in self._sockets.items():
            for parts in _arrived(sock) if sock in ready else ():
                opened = self._packers[key].open(parts)
                if opened is not None:
                    found.append((key, opened[0], opened[1]))
        return found

    def send(self, key: int, message: Data, frames: Sequence[Buffer] = ()) -> bool:
        """Send; False: dropped, the server is not connected or does not read."""
        sock = self._sockets.get(key)
        if sock is None:
            self._plain.num_dropped += 1
            return False
        return self._packers[key].send(sock, message, frames, key)

    def close(self) -> None:
        """Close; what is queued gets LINGER_MS."""
        for sock in self._sockets.values():
            sock.close(linger=LINGER_MS)
        self._sockets.clear()
        self._context.term()
        for packer in self._shared.values():
            packer.close()

    def _packer_for(self, address: str) -> "Packer":
        """Servers in one directory share one arena of ours."""
        if not address.startswith("shm://"):
            return self._plain
        directory = file_of(address).parent
        if directory not in self._shared:
            own = f"shm://{directory / self._ident}"
            self._shared[directory] = Packer(own, self._arena_bytes)
        return self._shared[directory]


class _Poller:
    """zmq's poller, and one file descriptor that may change from poll to poll."""

    def __init__(self) -> None:
        self._zmq = zmq.Poller()
        self._extra, self._flags = -1, POLLIN

    def add(self, sock: Any) -> None:
        self._zmq.register(sock, zmq.POLLIN)

    def remove(self, sock: Any) -> None:
        self._zmq.unregister(sock)

    def poll(self, timeout_s: float, extra: int, *, writing: bool = False) -> dict[Any, int]:
        """Sockets and descriptors that are ready."""
        flags = POLLIN_OUT if writing else POLLIN
        if (extra, flags) != (self._extra, self._flags):
            if self._extra >= 0:
                self._zmq.unregister(self._extra)
            if extra >= 0:
                self._zmq.register(extra, flags)
            self._extra, self._flags = extra, flags
        return dict(self._zmq.poll(math.ceil(timeout_s * 1000)))


def _configure(sock: Any, address: str) -> None:
    if "://127." in address:
        sock.sndbuf = sock.rcvbuf = LOOPBACK_BYTES
    sock.linger = LINGER_MS
    sock.set_hwm(QUEUE_LENGTH)
    sock.maxmsgsize = MAX_FRAME_BYTES
    sock.copy_threshold = COPY_BYTES
    sock.heartbeat_ivl = HEARTBEAT_MS
    sock.heartbeat_timeout = DEAD_AFTER_MS
    sock.reconnect_ivl = RECONNECT_MS
    sock.reconnect_ivl_max = RECONNECT_MAX_MS


def _encrypted(address: str) -> bool:
    return address.startswith("curve://")


def _endpoint(address: str) -> str:
    """The address in libzmq's terms."""
    scheme, _, rest = address.partition("://")
    return f"{'ipc' if scheme in ('shm', 'ipc') else 'tcp'}://{rest}"


def _arrived(sock: Any) -> Iterator[list[Any]]:
    for _ in range(BATCH):
        try:
            parts = [sock.recv(NOBLOCK, copy=False)]
        except zmq.Again:
            return
        # The parts of a message arrive together. (``recv_multipart`` asks the socket for each.)
        while parts[-1].more:
            parts.append(sock.recv(NOBLOCK, copy=False))
        yield parts
