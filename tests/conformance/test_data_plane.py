"""The data plane, the same over every transport."""

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import numpy as np
import pytest
import zmq

from paceline.base.errors import PermanentError
from paceline.wire import data_auth
from paceline.wire.codec import encode
from paceline.wire.data_packing import COPY_BYTES, SHARED_BYTES, Envelope
from paceline.wire.data_plane import QUEUE_LENGTH, DataClient, DataServer, bind_address
from paceline.wire.messages.data import Data, Part, Pull, Pulled
from paceline.wire.shm import SUFFIX, FramePlace
from paceline.wire.spec import DataPlaneSpec

SECRET = b"the secret of this job"
SCHEMES = ("shm", "ipc", "tcp", "curve")
LIMIT_S = 20.0
ARENA_BYTES = 3 << 20
BIG = 1_000_000

Got = tuple[object, Data, list[memoryview]]


@pytest.fixture
def open_all() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class World:
    """Servers and clients of one transport in one directory, closed at the end."""

    def __init__(self, scheme: str, directory: Path, stack: ExitStack) -> None:
        self.scheme = scheme
        self.directory = directory
        self.stack = stack
        local = scheme in ("shm", "ipc")
        self.bind = f"{scheme}://{directory / 's.data'}" if local else f"{scheme}://127.0.0.1:*"

    def server(self, bind: str | None = None) -> DataServer:
        server = DataServer(bind or self.bind, SECRET, arena_bytes=ARENA_BYTES)
        return self.stack.enter_context(closing(server))

    def client(self, address: str, ident: str = "17", secret: bytes = SECRET) -> DataClient:
        client = DataClient({1: address}, secret, ident, arena_bytes=ARENA_BYTES)
        return self.stack.enter_context(closing(client))


@pytest.fixture(params=SCHEMES)
def world(request: pytest.FixtureRequest, tmp_path: Path, open_all: ExitStack) -> World:
    return World(request.param, tmp_path, open_all)


def pull(ticket: int) -> Pull:
    return Pull(epoch_no=1, inc=17, ticket=ticket)


def pulled(ticket: int) -> Pulled:
    return Pulled(epoch_no=1, server=1, inc=17, ticket=ticket, step=0, last_seq=0)


def take(end: DataServer | DataClient, count: int, *others: DataServer | DataClient) -> list[Got]:
    """The next ``count`` messages at ``end``."""
    found: list[Got] = []
    until_s = time.monotonic() + LIMIT_S
    while len(found) < count:
        assert time.monotonic() < until_s, f"{len(found)} of {count} messages arrived"
        found += end.poll(0.005)
        for other in others:
            assert other.poll(0.0) == []
    assert len(found) == count
    return found


def tensor(num_bytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)


def test_messages_and_frames_of_all_sizes_arrive_as_they_were_sent(world: World) -> None:
    server = world.server()
    client = world.client(server.address)
    sizes = [0, 1, 7, SHARED_BYTES - 1, SHARED_BYTES, COPY_BYTES - 1, COPY_BYTES, BIG, 3]
    sent = [tensor(size, seed=i) for i, size in enumerate(sizes)]
    assert client.send(1, pull(5), sent)
    ((peer, message, frames),) = take(server, 1)
    assert (peer, message) == (b"17", pull(5))
    assert [bytes(f) for f in frames] == [s.tobytes() for s in sent]
    assert server.send(b"17", pulled(5), frames)
    ((key, answer, back),) = take(client, 1)
    assert (key, answer) == (1, pulled(5))
    assert [bytes(f) for f in back] == [s.tobytes() for s in sent]


def test_received_frames_are_aligned_and_belong_to_the_receiver(world: World) -> None:
    server = world.server()
    client = world.client(server.address)
    sizes = [8, 24, 4000, 8192, 40_000, 70_000, BIG // 8 * 8]
    client.send(1, pull(1), [tensor(size) for size in sizes])
    ((_, _, frames),) = take(server, 1)
    assert len(frames) == len(sizes)
    for frame in frames:
        array = np.frombuffer(frame, np.float64)
        assert array.ctypes.data % 8 == 0
        array[0] = 1.0


def test_an_array_made_from_a_frame_keeps_it(world: World) -> None:
    server = world.server()
    client = world.client(server.address)
    first = tensor(BIG, seed=1)
    client.send(1, pull(0), [first])
    kept = [np.frombuffer(frames[0], np.uint8)[10:] for _, _, frames in take(server, 1)]
    for ticket in range(1, 6):
        client.send(1, pull(ticket), [tensor(BIG, seed=ticket + 1)])
        assert bytes(take(server, 1)[0][2][0]) == tensor(BIG, seed=ticket + 1).tobytes()
    assert (kept[0] == first[10:]).all()


def test_an_allocated_buffer_is_sent_as_it_was_filled(world: World) -> None:
    server = world.server()
    client = world.client(server.address)
    for ticket in range(4):
        client.send(1, pull(ticket), [tensor(BIG, seed=ticket)])
        ((_, _, frames),) = take(server, 1)
        answer = server.allocate(b"17", BIG)
        answer[:] = frames[0]
        assert server.send(b"17", pulled(ticket), [answer, answer[:100]])
        ((_, _, back),) = take(client, 1)
        assert bytes(back[0]) == tensor(BIG, seed=ticket).tobytes()


def test_more_than_the_arena_holds_still_arrives(world: World) -> None:
    server = world.server()
    client = world.client(server.address)
    held = []
    for ticket in range(2 * ARENA_BYTES // BIG + 2):
        client.send(1, pull(ticket), [tensor(BIG, seed=ticket)])
        held += take(server, 1)
    client.send(1, pull(99), [tensor(2 * ARENA_BYTES, seed=99)])
    held += take(server, 1)
    for ticket, (_, _, frames) in enumerate(held[:-1]):
        assert bytes(frames[0]) == tensor(BIG, seed=ticket).tobytes()
    assert bytes(held[-1][2][0]) == tensor(2 * ARENA_BYTES, seed=99).tobytes()


def test_a_client_without_an_arena_gets_everything_through_the_socket(world: World) -> None:
    server = world.server()
    with closing(DataClient({1: server.address}, SECRET, "17", arena_bytes=0)) as client:
        client.send(1, pull(1), [tensor(BIG)])
        ((_, _, frames),) = take(server, 1)
        server.send(b"17", pulled(1), frames)
        assert bytes(take(client, 1)[0][2][0]) == tensor(BIG).tobytes()
        assert len(list(world.directory.glob(f"*{SUFFIX}"))) == (world.scheme == "shm")


def test_many_clients_each_get_their_own_answers(world: World) -> None:
    server = world.server()
    clients = {f"worker-{i}": world.client(server.address, f"worker-{i}") for i in range(8)}
    for round_no in range(3):
        for i, client in enumerate(clients.values()):
            client.send(1, pull(10 * round_no + i), [tensor(COPY_BYTES, seed=i)])
        for peer, message, frames in take(server, len(clients)):
            assert isinstance(peer, bytes)
            assert isinstance(message, Pull)
            server.send(peer, pulled(message.ticket), frames)
        for i, client in enumerate(clients.values()):
            ((_, message, frames),) = take(client, 1)
            assert message == pulled(10 * round_no + i)
            assert bytes(frames[0]) == tensor(COPY_BYTES, seed=i).tobytes()


def test_one_client_talks_to_many_servers(world: World) -> None:
    binds = [world.bind.replace("s.data", f"s{i}.data") for i in range(3)]
    servers = [world.server(bind) for bind in binds]
    client = world.client(servers[0].address)
    client.connect(2, servers[1].address)
    client.connect(3, servers[2].address)
    assert client.keys() == (1, 2, 3)
    for key, server in zip(client.keys(), servers, strict=True):
        client.send(key, pull(key), [tensor(BIG, seed=key)])
        ((_, message, frames),) = take(server, 1)
        assert message == pull(key)
        server.send(b"17", pulled(key), frames)
    answers = {key: bytes(frames[0]) for key, _, frames in take(client, 3)}
    assert answers == {key: tensor(BIG, seed=key).tobytes() for key in (1, 2, 3)}
    client.disconnect(2)
    assert client.keys() == (1, 3)
    assert not client.send(2, pull(0))
    assert client.num_dropped == 1


def test_messages_of_one_sender_keep_their_order(world: World) -> None:
    server = world.server()
    client = world.client(server.address)
    for ticket in range(QUEUE_LENGTH):
        assert client.send(1, pull(ticket), [tensor(100 if ticket % 2 else COPY_BYTES)])
    assert [m for _, m, _ in take(server, QUEUE_LENGTH)] == [pull(t) for t in range(QUEUE_LENGTH)]


def test_a_client_finds_a_server_that_restarts_at_its_address(world: World) -> None:
    server = DataServer(world.bind, SECRET, arena_bytes=ARENA_BYTES)
    client = world.client(server.address)
    client.send(1, pull(0), [tensor(BIG)])
    take(server, 1)
    server.close()
    for ticket in range(3):
        client.send(1, pull(ticket), [tensor(BIG)])
    successor = world.server(server.address)
    assert successor.address == server.address
    seen: list[Got] = []
    until_s = time.monotonic() + LIMIT_S
    while not any(message == pull(7) for _, message, _ in seen):
        assert time.monotonic() < until_s
        client.send(1, pull(7), [tensor(BIG, seed=7)])
        seen += successor.poll(0.1)
    assert bytes(seen[-1][2][0]) == tensor(BIG, seed=7).tobytes() or len(seen) > 1
    assert successor.send(b"17", pulled(7), [tensor(BIG, seed=8)])
    assert bytes(take(client, 1)[0][2][0]) == tensor(BIG, seed=8).tobytes()


def test_a_client_that_comes_back_under_its_name_gets_the_answers(world: World) -> None:
    server = world.server()
    old = world.client(server.address)
    old.send(1, pull(1))
    take(server, 1)
    new = world.client(server.address)
    new.send(1, pull(2))
    assert [m for _, m, _ in take(server, 1)] == [pull(2)]
    assert server.send(b"17", pulled(2), [tensor(BIG)])
    assert [m for _, m, _ in take(new, 1, old)] == [pulled(2)]


def test_a_wrong_secret_is_refused(world: World, caplog: pytest.LogCaptureFixture) -> None:
    server = world.server()
    wrong = world.client(server.address, "18", b"another secret")
    wrong.send(1, pull(666))
    right = world.client(server.address)
    right.send(1, pull(1))
    assert [(peer, message) for peer, message, _ in take(server, 1)] == [(b"17", pull(1))]
    assert server.poll(0.2) == []
    assert not server.send(b"18", pulled(1))
    assert "another secret" not in caplog.text
    if world.scheme != "curve":  # there, nothing can be made of the stranger's first message
        assert server.num_refused > 0
        assert caplog.text.count("data_peer_refused") == 1


def test_the_servers_public_key_alone_lets_nobody_in(tmp_path: Path, open_all: ExitStack) -> None:
    server = World("curve", tmp_path, open_all).server()
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.curve_serverkey = data_auth._key(SECRET, "server")[0]
        stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
        stranger.connect(server.address.replace("curve", "tcp"))
        stranger.send(encode(Envelope(pull(1))))
        until_s = time.monotonic() + LIMIT_S
        while not server.num_refused:
            assert time.monotonic() < until_s
            assert server.poll(0.05) == []
        assert server.poll(0.1) == []


def test_a_client_without_any_secret_is_not_heard(world: World) -> None:
    server = world.server()
    endpoint = server.address.replace("shm://", "ipc://").replace("curve://", "tcp://")
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.connect(endpoint)
        plain.send(encode(Envelope(pull(1))))
        right = world.client(server.address)
        right.send(1, pull(2))
        assert [m for _, m, _ in take(server, 1)] == [pull(2)]
        assert server.poll(0.1) == []


def test_random_bytes_at_the_socket_harm_nobody(world: World) -> None:
    server = world.server()
    client = world.client(server.address)
    client.send(1, pull(0))
    take(server, 1)
    rng = random.Random(5)
    for length in (1, 10, 64, 1000, 100_000):
        with _raw(server.address) as raw:
            greeting = rng.choice([b"", b"\xff" + bytes(8) + b"\x7f\x03\x00PLAIN"])
            # Refused before all was sent: just as well.
            with suppress(BrokenPipeError, ConnectionResetError):
                raw.sendall(greeting + rng.randbytes(length))
            assert server.poll(0.02) == []
    client.send(1, pull(9), [tensor(BIG)])
    assert [m for _, m, _ in take(server, 1)] == [pull(9)]


def _raw(address: str) -> socket.socket:
    place = address.partition("://")[2]
    if address.startswith(("shm", "ipc")):
        raw = socket.socket(socket.AF_UNIX)
        raw.settimeout(1.0)
        raw.connect(place)
        return raw
    host, port = place.split(":")
    return socket.create_connection((host, int(port)), timeout=1.0)


def test_garbage_from_a_peer_with_the_secret_is_dropped_and_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    server = world.server()
    client = world.client(server.address)
    inner = client._sockets[1]  # the only way to send what no client of ours would
    rng = random.Random(3)
    good, somewhere = pull(1), FramePlace(0, 8, 0, 0)
    batches = [
        [b""],
        [b"\xc1", b""],
        [encode(good)],
        [encode([good])[:-1]],
        [encode(Envelope(good, "nowhere" + SUFFIX, (somewhere,)))],
        [encode(Envelope(good, "../../etc/passwd", (somewhere,)))],
        [encode(Envelope(good, "x", (None, None))), b"only one"],
        [encode([good, "x", [[0, 8, 0]]])],
        *([rng.randbytes(20), rng.randbytes(rng.randrange(40))] for _ in range(20)),
    ]
    for parts in batches:
        inner.send_multipart(parts)
    client.send(1, pull(2), [tensor(BIG)])
    assert [m for _, m, _ in take(server, 1)] == [pull(2)]
    assert server.num_garbage == len(batches)
    assert caplog.text.count("garbage_on_data_plane") == 1


def test_a_server_that_is_gone_never_blocks_a_sender(world: World) -> None:
    server = DataServer(world.bind, SECRET, arena_bytes=ARENA_BYTES)
    client = world.client(server.address)
    client.send(1, pull(0))
    take(server, 1)
    server.close()
    frame = tensor(COPY_BYTES)
    slowest_s = 0.0
    for ticket in range(3 * QUEUE_LENGTH):
        start_s = time.monotonic()
        client.send(1, pull(ticket), [frame])
        slowest_s = max(slowest_s, time.monotonic() - start_s)
    assert client.num_dropped >= QUEUE_LENGTH
    assert slowest_s < 0.5
    start_s = time.monotonic()
    client.close()
    assert time.monotonic() - start_s < 2.0


def test_a_client_that_is_gone_or_does_not_read_never_blocks_the_server(world: World) -> None:
    server = world.server()
    deaf = world.client(server.address, "deaf")
    gone = DataClient({1: server.address}, SECRET, "gone", arena_bytes=ARENA_BYTES)
    deaf.send(1, pull(0), [tensor(BIG)])
    gone.send(1, pull(0), [tensor(BIG)])
    take(server, 2)
    gone.close()
    assert not server.send(b"never seen", pulled(0))
    frame = tensor(BIG)
    slowest_s = 0.0
    for i in range(3 * QUEUE_LENGTH):
        for peer in (b"deaf", b"gone"):
            start_s = time.monotonic()
            server.send(peer, pulled(i), [frame])
            slowest_s = max(slowest_s, time.monotonic() - start_s)
    assert server.num_dropped >= QUEUE_LENGTH
    assert slowest_s < 0.5
    other = world.client(server.address)
    other.send(1, pull(1))
    assert [m for _, m, _ in take(server, 1)] == [pull(1)]


def test_poll_wakes_up_for_another_descriptor(world: World) -> None:
    server = world.server()
    client = world.client(server.address)
    left, right = socket.socketpair()
    with left, right:
        for end in (server, client):
            timer = threading.Timer(0.05, right.send, (b"x",))
            timer.start()
            start_s = time.monotonic()
            assert end.poll(LIMIT_S, extra=left.fileno()) == []
            assert time.monotonic() - start_s < LIMIT_S / 2
            timer.join()
            left.recv(1)
            assert end.poll(0.0, extra=-1) == []


def test_poll_returns_nothing_after_its_time(world: World) -> None:
    server = world.server()
    start_s = time.monotonic()
    assert server.poll(0.05) == []
    assert 0.04 < time.monotonic() - start_s < 1.0


def test_an_address_that_is_taken_or_impossible_is_named(world: World) -> None:
    local = world.scheme in ("shm", "ipc")
    bad = f"{world.scheme}:///nowhere/at/all.data" if local else world.server().address
    with pytest.raises(PermanentError, match=world.scheme):
        DataServer(bad, SECRET)


_KILLED = """
import sys
from paceline.wire.data_plane import DataClient
from paceline.wire.messages.data import (Pull)
client = DataClient({1: sys.argv[1]}, b"the secret of this job", sys.argv[2], arena_bytes=3 << 20)
client.send(1, Pull(epoch_no=1, inc=17, ticket=0), [bytes(1_000_000)])
print("sent", flush=True)
while True:
    client.poll(1.0)
"""


def test_clients_that_are_killed_leave_nothing_behind(world: World) -> None:
    """Their arenas disappear, and what the server had for them in its arena is free again."""
    server = world.server()
    for life in range(2):
        ident = f"worker-{life}"
        child = subprocess.Popen(
            [sys.executable, "-c", _KILLED, server.address, ident],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": "src"},
        )
        with child:
            take(server, 1)
            # More than fits: never read, since the process is stopped dead.
            child.kill()
            child.wait()
            for ticket in range(3):
                server.send(ident.encode(), pulled(ticket), [tensor(BIG)])
    last = world.client(server.address, "last")
    last.send(1, pull(4), [tensor(BIG)])
    take(server, 1)
    assert server.send(b"last", pulled(4), [tensor(BIG)])
    take(last, 1)
    arenas = list(world.directory.glob(f"*{SUFFIX}"))
    assert len(arenas) == (2 if world.scheme == "shm" else 0)


def test_a_contribution_travels_whole(world: World) -> None:
    """As a worker sends it: dense gradients, then ids and gradients of each table."""
    server = world.server()
    client = world.client(server.address)
    dense = np.arange(300_000, dtype=np.float32)
    ids = np.arange(5_000, dtype=np.int64)
    gradients = np.ones((5_000, 16), np.float32)
    part = Part(
        epoch_no=1,
        inc=17,
        seq=1,
        map_version=1,
        spans=(),
        weight=1,
        tables=(0,),
        dense=("float32",),
    )
    assert client.send(1, part, [dense, ids, gradients])
    ((_, message, frames),) = take(server, 1)
    assert message == part
    assert (np.frombuffer(frames[0], np.float32) == dense).all()
    assert (np.frombuffer(frames[1], np.int64) == ids).all()
    assert (np.frombuffer(frames[2], np.float32).reshape(-1, 16) == gradients).all()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (DataPlaneSpec(), "shm:///r/server-0-3.data"),
        (DataPlaneSpec(transport="ipc"), "ipc:///r/server-0-3.data"),
        (DataPlaneSpec(transport="tcp"), "curve://127.0.0.1:*"),
        (DataPlaneSpec(transport="tcp", encryption="off"), "tcp://127.0.0.1:*"),
    ],
)
def test_the_spec_says_where_a_server_listens(spec: DataPlaneSpec, expected: str) -> None:
    assert bind_address(spec, "127.0.0.1", Path("/r"), "server-0-3") == expected
