"""What TLS costs on the control plane: to connect, for one message and its answer, for many.

    python benchmarks/control_tls.py [--quick] [--rounds 7] [--messages 5000] [--json FILE]

Two processes on one host, a master's listener and an agent, over three ways in turn: a unix socket,
a port in clear, a port with TLS. ``connect_ms``: until both ends have proven the secret.
``answer_ms``: one heartbeat and its answer. ``messages_per_s``: heartbeats that are sent at once,
until all are answered. ``cpu_us``: of both processes, per heartbeat with its answer. Medians over
the rounds. The data plane, in clear and with CURVE, is measured by ``ps_wire.py``.
"""

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from paceline_experiments import harness

from paceline.base.jobdir import UNIX, JobDir
from paceline.jobs.authority import make_authority
from paceline.wire.client import Call, Done, Reply
from paceline.wire.control import AgentStream, ControlClient, ControlServer
from paceline.wire.messages.agent import Heartbeat, StopProcess

WAYS = ("unix", "clear", "tls")
HOST = "127.0.0.1"
SECRET = b"benchmark"
WAIT_S = 30.0
NUM_ANSWERS = 200
BEAT = Heartbeat(node="worker-0")


async def serve(way: str, folder: Path) -> None:
    """Answer each heartbeat, until killed."""

    async def on_agent(stream: AgentStream) -> None:
        async for _ in stream:
            stream.send_nowait(StopProcess(inc=1, grace_s=1.0))

    async def on_call(call: Call) -> Reply:
        return Done()

    server = ControlServer(SECRET, on_agent, on_call)
    if way == "unix":
        path = folder / "master.sock"
        await server.start(path=path)
        print(f"{UNIX}{path}", flush=True)
    else:
        identity = JobDir(folder).master_identity.read_bytes() if way == "tls" else b""
        print(f"{HOST}:{await server.start(host=HOST, identity=identity)}", flush=True)
    await asyncio.Event().wait()


async def timed(act: Callable[[], Awaitable[object]]) -> float:
    start_s = time.perf_counter()
    await act()
    return time.perf_counter() - start_s


async def look(client: ControlClient, pids: tuple[int, ...], num: int) -> dict[str, float]:
    """One round over one way."""

    async def connect() -> None:
        await (await client.connect_agent()).close()

    connect_s = await timed(connect)
    stream = await client.connect_agent()

    async def ask() -> None:
        stream.send_nowait(BEAT)
        await anext(stream)

    answers_s = [await timed(ask) for _ in range(NUM_ANSWERS)]

    async def ask_all() -> None:
        for _ in range(num):
            stream.send_nowait(BEAT)
        for _ in range(num):
            await anext(stream)

    before_s = sum(map(harness.cpu_s, pids))
    all_s = await timed(ask_all)
    cpu_s = sum(map(harness.cpu_s, pids)) - before_s
    await stream.close()
    return {
        "connect_ms": 1_000 * connect_s,
        "answer_ms": 1_000 * statistics.median(answers_s),
        "messages_per_s": num / all_s,
        "cpu_us": 1e6 * cpu_s / num,
    }


def start(stack: ExitStack, way: str, folder: Path) -> tuple[ControlClient, tuple[int, ...]]:
    """Start a listener in a process; return its client, and both processes."""
    command = [sys.executable, __file__, "--serve", way, str(folder)]
    child = harness.Child(way, command, folder / f"{way}.log")
    stack.callback(child.kill)
    harness.until(lambda: child.has_ended or child.printed().endswith("\n"), WAIT_S)
    child.check()
    authority = JobDir(folder).authority_pem() if way == "tls" else b""
    return ControlClient(child.printed().strip(), SECRET, authority), (os.getpid(), child.pid)


async def measure(num_rounds: int, num: int) -> dict[str, dict[str, float]]:
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_authority(JobDir(folder), HOST)
        ends = {way: start(stack, way, folder) for way in WAYS}
        for client, pids in ends.values():
            await look(client, pids, 100)
        for _ in range(num_rounds):
            for way, (client, pids) in ends.items():
                found[way].append(await look(client, pids, num))
    return {
        way: {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        for way, rounds in found.items()
    }


def main() -> None:
    parser = harness.parser(__doc__, "2 rounds of 500 messages")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=5_000)
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.messages = 2, 500
    rows: dict[str, Any] = asyncio.run(measure(args.rounds, args.messages))
    harness.table(
        ("way", *rows["tls"]),
        [(way, *(f"{value:.3g}" for value in row.values())) for way, row in rows.items()],
    )
    harness.report("control_tls", {"rows": rows}, file=args.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(sys.argv[2], Path(sys.argv[3])))
    else:
        harness.run(main)
