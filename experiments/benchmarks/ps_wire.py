"""Push and pull of 16 MB between a worker and a server on one host, over every transport.

    python benchmarks/ps_wire.py [--quick] [--megabytes 16] [--rounds 9] [--calls 6] [--json FILE]

Two processes. One call: the client sends the tensor, the server has it in memory, copies it into
its state and answers with the state, the client has it in memory. The floor is the same in a loop
over plain TCP sockets, which sends from where the state lies: one copy less than ours makes, who
must leave the state free to change while it is sent. All transports are measured in turn in every
round, so that whatever else the machine does hits them alike; a round's figure is the mean of its
calls. The table shows medians over the rounds; a ratio is the median of the rounds' ratios.

Goals: tcp >= 0.9 x raw tcp, shm >= 3 x tcp (GB/s, pushed and pulled bytes together).
"""

import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from paceline_experiments import harness

from paceline.base.copying import copy
from paceline.wire.data_plane import DataClient, DataServer
from paceline.wire.messages.data import Part, Pulled
from paceline.wire.shm import FramePlace

SCHEMES = ("tcp", "ipc", "shm", "curve")
RAW = "raw tcp"
SECRET = b"benchmark"
WAIT_S = 30.0
PART = Part(epoch_no=1, inc=1, seq=1, map_version=1, spans=(), weight=1, dense=("float32",))
PULLED = Pulled(epoch_no=1, server=1, inc=1, ticket=1, step=1, last_seq=1, dense=("float32",))

Call = Callable[[np.ndarray], memoryview]


class Figures:
    """Figures of one transport."""

    def __init__(self) -> None:
        self.gb_per_s: list[float] = []
        self.cpu_s = 0.0
        self.gigabytes = 0.0


def serve_raw(num_bytes: int) -> None:
    """`serve` over a plain socket."""
    received, state = np.zeros(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with peer:
            while receive_into(peer, received.data):
                copy(state, received)
                peer.sendall(state.data)


def receive_into(peer: socket.socket, buffer: memoryview) -> bool:
    """Fill the buffer; False: the peer is gone."""
    at = 0
    while at < len(buffer):
        num_bytes = peer.recv_into(buffer[at:])
        if not num_bytes:
            return False
        at += num_bytes
    return True


def serve(scheme: str, directory: str, num_bytes: int) -> None:
    """Copy every push into the state and answer with the state, until killed."""
    local = scheme in ("shm", "ipc")
    bind = f"{scheme}://{directory}/{scheme}.data" if local else f"{scheme}://127.0.0.1:*"
    state = np.zeros(num_bytes, np.uint8)
    with closing(DataServer(bind, SECRET)) as server:
        print(server.address, flush=True)
        while True:
            answer(server, state)


def answer(server: DataServer, state: np.ndarray) -> None:
    """Serve what has arrived; frames are dropped when they are used up."""
    for peer, _, frames in server.poll(WAIT_S):
        copy(state, np.frombuffer(frames.pop(), np.uint8))
        out = server.allocate(peer, state.nbytes)
        copy(np.frombuffer(out, np.uint8), state)
        server.send(peer, PULLED, [out])


class Raw:
    """The client of `serve_raw`."""

    def __init__(self, address: str, num_bytes: int) -> None:
        host, port = address.split(":")
        self.peer = socket.create_connection((host, int(port)))
        self.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answer = memoryview(bytearray(num_bytes))
        self.close = self.peer.close

    def call(self, tensor: np.ndarray) -> memoryview:
        self.peer.sendall(tensor.data)
        receive_into(self.peer, self.answer)
        return self.answer


class Ours:
    """The client of `serve`."""

    def __init__(self, address: str) -> None:
        self.client = DataClient({1: address}, SECRET, "1")
        self.close = self.client.close

    def call(self, tensor: np.ndarray) -> memoryview:
        self.client.send(1, PART, [tensor])
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            for _, _, frames in self.client.poll(WAIT_S):
                return frames[0]
        raise TimeoutError(f"no answer in {WAIT_S} s")


def start(stack: ExitStack, name: str, directory: str, num_bytes: int) -> tuple[str, int]:
    """Start a server process; its address and process number."""
    command = [sys.executable, __file__, "--serve", name, directory, str(num_bytes)]
    child = harness.Child(name, command, Path(directory) / f"{name}.log")
    stack.callback(child.kill)
    harness.until(lambda: child.has_ended or child.printed().endswith("\n"), WAIT_S)
    child.check()
    return child.printed().strip(), child.pid


def cpu_s(pids: tuple[int, ...]) -> float:
    """CPU time of these processes so far."""
    return sum(map(harness.cpu_s, pids))


def measure(call: Call, tensor: np.ndarray, num_calls: int) -> float:
    """GB/s, pushed and pulled."""
    start_s = time.perf_counter()
    for _ in range(num_calls):
        call(tensor)
    return 2 * tensor.nbytes * num_calls / (time.perf_counter() - start_s) / 1e9


def run(num_bytes: int, num_rounds: int, num_calls: int) -> dict[str, Figures]:
    """Figures by transport."""
    tensor = np.random.default_rng(1).integers(0, 256, num_bytes, dtype=np.uint8)
    found = {name: Figures() for name in (RAW, *SCHEMES)}
    with ExitStack() as stack:
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=base))
        ends: dict[str, tuple[Call, tuple[int, ...]]] = {}
        for name in found:
            address, pid = start(stack, name, directory, num_bytes)
            end = Raw(address, num_bytes) if name == RAW else Ours(address)
            stack.callback(end.close)
            ends[name] = (end.call, (os.getpid(), pid))
        for call, _ in ends.values():
            assert bytes(call(tensor)) == tensor.tobytes()  # measure no wrong answers
            measure(call, tensor, 2)
        for _ in range(num_rounds):
            for name, (call, pids) in ends.items():
                before_s = cpu_s(pids)
                found[name].gb_per_s.append(measure(call, tensor, num_calls))
                found[name].cpu_s += cpu_s(pids) - before_s
                found[name].gigabytes += 2 * num_bytes * num_calls / 1e9
    return found


def extra_bytes(scheme: str, num_bytes: int) -> int:
    """Bytes of one call beside the tensors: headers, places and ZMTP's framing (9 per frame)."""
    if scheme == RAW:
        return 0
    place = FramePlace(1 << 24, num_bytes, 1000, 1 << 20)
    name = f"worker-0-17.{'0' * 8}.arena"
    where = len(msgspec.msgpack.encode((name, (place,)))) if scheme == "shm" else 0
    frames = 2 if scheme == "shm" else 3
    return sum(len(msgspec.msgpack.encode(m)) + where + 9 * frames for m in (PART, PULLED))


def ratio(one: Figures, other: Figures) -> float:
    """Return how much faster ``one`` is, in the median round."""
    rounds = zip(one.gb_per_s, other.gb_per_s, strict=True)
    return statistics.median(a / b for a, b in rounds)


def figures_of(found: dict[str, Figures], num_bytes: int) -> dict[str, Any]:
    """Return what was found, as it goes into the JSON."""
    medians = {name: statistics.median(f.gb_per_s) for name, f in found.items()}
    return {
        "what": f"push and pull of {num_bytes} bytes, two processes on one host",
        "gb_per_s": {name: f.gb_per_s for name, f in found.items()},
        "median_gb_per_s": medians,
        "cpu_s_per_gb": {name: f.cpu_s / f.gigabytes for name, f in found.items()},
        "extra_bytes_per_call": {name: extra_bytes(name, num_bytes) for name in found},
        "minimum_bytes_per_call": 2 * num_bytes,
        "tcp_to_raw": ratio(found["tcp"], found[RAW]),
        "shm_to_tcp": ratio(found["shm"], found["tcp"]),
    }


def main() -> int:
    """Print the table; 1: a goal was missed."""
    parser = harness.parser(__doc__, "2 rounds of 2 calls of 1 MB")
    parser.add_argument("--megabytes", type=float, default=16.0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=6, help="per round and transport")
    args = parser.parse_args()
    if args.quick:
        args.megabytes, args.rounds, args.calls = 1.0, 2, 2
    num_bytes = int(args.megabytes * (1 << 20))
    found = run(num_bytes, args.rounds, args.calls)
    told = figures_of(found, num_bytes)
    print(told["what"])
    print("transport   GB/s median   lowest  highest   CPU s/GB   extra bytes")
    for name, f in found.items():
        print(
            f"{name:10s} {statistics.median(f.gb_per_s):12.2f} {min(f.gb_per_s):8.2f} "
            f"{max(f.gb_per_s):8.2f} {f.cpu_s / f.gigabytes:10.3f} "
            f"{extra_bytes(name, num_bytes):10d}"
        )
    goals = {"tcp_to_raw": 0.9, "shm_to_tcp": 3.0}
    for name, goal in goals.items():
        print(f"{name}: {told[name]:.2f} (goal {goal})")
    harness.report("ps_wire", told, file=args.json)
    return int(not args.quick and any(told[name] < goal for name, goal in goals.items()))


if __name__ == "__main__":
    if sys.argv[1:2] != ["--serve"]:
        harness.run(main)
    if sys.argv[2] == RAW:
        serve_raw(int(sys.argv[4]))
    else:
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
