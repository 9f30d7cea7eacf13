"""How fast the master deals out samples: get+complete pairs per second through real sockets.

    python benchmarks/dispatch.py [--quick] [--seconds 5] [--batch 64] [--dlrover PYTHON]

One master process (the production `Master`, journal on disk in WAL mode, grants journalled before
they leave), four client processes over gRPC on loopback. A *pair* is one grant received plus its
completion taken by the ledger. Unbatched: a client sends one request, which completes the grant
before it, and waits for the answer. Batched: ``--batch`` such requests travel in one message.
The second part measures a ledger of 10^12 samples. With ``--dlrover`` (optional: the Python of a
virtual environment with dlrover 0.6.1) its local master serves the same number of clients in the
same run. Prints JSON.
"""

import asyncio
import json
import os
import random
import resource
import statistics
import sys
import time
from array import array
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.base.samples import Span
from paceline.cuts.manifest import checksum, write_file
from paceline.master.service import Master
from paceline.protocol.nodes.platform import AnyWord
from paceline.protocol.samples.ledger import Ledger
from paceline.wire.control import ControlClient, MasterStream
from paceline.wire.messages.agent import AgentHello, FromProcess, StartProcess, ToProcess
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import (
    Grant,
    InitialWritten,
    LeaseRequest,
    NewEpoch,
    NodeUp,
    OpenFeed,
    Prepared,
    ProcessUp,
    Restore,
    Restored,
    WriteInitial,
)
from paceline.wire.places import AskedPlace, Resized, Resizing, Room
from paceline.wire.schema import ModelSchema
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec

NUM_CLIENTS = 4
WARM_UP_S = 0.5
PATIENCE_S = 60.0
FILE, NO_MODEL = "model", b"none"
FEED = Feed(
    feed=0,
    purpose="train",
    num_samples=10**12,
    epochs=1,
    batch_size=64,
    shard_size=10_000,
    shuffle=True,
    seed=0,
)


class NoBackend:
    """Nodes come by themselves."""

    def launch(self, node: str, place: AskedPlace, token: str, *, may_move: bool = False) -> None:
        pass

    def adopt(self, node: str, launch: str, pid: int) -> None:
        pass

    def stop(self, node: str, grace_s: float = 0.0) -> None:
        pass

    async def watch(self) -> AsyncIterator[AnyWord]:
        await asyncio.Event().wait()
        yield  # type: ignore[misc]

    async def picture(self, nodes: Iterable[str]) -> set[str]:
        return set()

    def resize(self, node: str, place: AskedPlace) -> Resizing:
        return Resized()

    def room(self, place: AskedPlace) -> Room:
        return Room(pending_s=0.0)

    async def close(self) -> None:
        pass


class Client:
    """One node: its agent's stream, and the messages of its process."""

    def __init__(self, job: JobDir, stream: MasterStream, node: str) -> None:
        self.job, self.stream, self.node, self.inc = job, stream, node, 0

    @classmethod
    async def connect(cls, job: JobDir, node: str) -> "Client":
        while not job.master_socket.exists():
            await asyncio.sleep(0.02)
        address = job.control_address()
        client = cls(job, await ControlClient(address, job.secret()).connect_agent(), node)
        client.stream.send_nowait(
            AgentHello(node=node, agent="a", agent_pid=os.getpid(), host="bench")
        )
        start = await client.wait(StartProcess)
        client.inc = start.inc
        role = node.partition("-")[0]
        client.say(ProcessUp(node=node, inc=start.inc, pid=1, role=role, address="ipc://none"))
        return client

    def say(self, body: NodeUp) -> None:
        self.stream.send_nowait(FromProcess(node=self.node, body=body))

    async def wait(self, kind: type) -> object:  # type: ignore[type-arg]
        async for message in self.stream:
            body = message.body if isinstance(message, ToProcess) else message
            if isinstance(body, kind):
                return body
        raise SystemExit(f"{self.node}: the master closed the stream before {kind.__name__}")

    async def join(self) -> int:
        """Prepare, open the feed, wait for the epoch; its number."""
        self.say(Prepared(inc=self.inc, schema=ModelSchema()))
        async for message in self.stream:
            match message.body if isinstance(message, ToProcess) else message:
                case WriteInitial():
                    write_file(self.job.cuts / "000000", FILE, NO_MODEL)
                    digest, size = checksum(NO_MODEL), len(NO_MODEL)
                    written = InitialWritten(
                        inc=self.inc, file=FILE, checksum=digest, num_bytes=size
                    )
                    self.say(written)
                case NewEpoch(epoch_no=epoch_no):
                    self.say(OpenFeed(inc=self.inc, feed=FEED))
                    return epoch_no
        raise SystemExit(f"{self.node}: no epoch")


async def run_master(job: JobDir, seconds: float) -> None:
    spec = JobSpec(
        script="/bench",
        mode="asp",
        solution="none",
        samples="at-least-once",
        workers=NodeSpec(count=NUM_CLIENTS),
        checkpoint=CheckpointSpec(every_s=10_000),
    )
    master = Master(job, spec, NoBackend())
    running = asyncio.create_task(master.run())
    await asyncio.wait({running}, timeout=seconds)
    if running.done():
        running.result()
    os._exit(0)


async def run_server(job: JobDir) -> None:
    client = await Client.connect(job, "server-0")
    restore = await client.wait(Restore)
    assert isinstance(restore, Restore)
    client.say(Restored(epoch_no=restore.epoch_no, inc=client.inc))
    async for _ in client.stream:
        pass


async def run_worker(job: JobDir, index: int, batch: int, seconds: float) -> None:
    """Ask and complete as fast as the answers come."""
    client = await Client.connect(job, f"worker-{index}")
    epoch_no = await client.join()
    n, num_pairs = 0, 0
    handled: list[tuple[Span, ...]] = [()] * batch
    waits_s: list[float] = []
    begin_s = time.monotonic() + WARM_UP_S
    while (start_s := time.monotonic()) < begin_s + seconds:
        for k in range(batch):
            request = LeaseRequest(
                epoch_no=epoch_no, inc=client.inc, n=n + k + 1, feed=0, handled=handled[k]
            )
            client.say(request)
        for k in range(batch):
            grant = await client.wait(Grant)
            assert isinstance(grant, Grant)
            assert grant.n == n + k + 1
            handled[k] = grant.spans
        n += batch
        if start_s >= begin_s:
            num_pairs += batch
            waits_s.append(time.monotonic() - start_s)
    print(json.dumps({"pairs": num_pairs, "seconds": seconds, "waits_s": waits_s[-20_000:]}))


def measure(batch: int, seconds: float) -> dict[str, object]:
    """Measure one master with four clients: pairs per second and the time to an answer."""
    with harness.bare_job(f"dispatch-{batch}") as job:

        def start(name: str, role: str, *args: str) -> harness.Child:
            command = [sys.executable, __file__, "--role", role, "--job", str(job.path), *args]
            log = job.logs / f"{name}.log"
            return harness.Child(f"{batch} requests per message, {name}", command, log)

        limit_s = str(seconds + WARM_UP_S + PATIENCE_S)
        others = [
            start("master", "master", "--seconds", limit_s),
            start("server", "server"),
        ]
        asked = ["--batch", str(batch), "--seconds", str(seconds)]
        workers = [
            start(f"worker-{i}", "worker", "--index", str(i), *asked) for i in range(NUM_CLIENTS)
        ]
        try:
            patience_s = seconds + PATIENCE_S
            results = [json.loads(worker.output(patience_s, others)) for worker in workers]
            cpu_s = harness.cpu_s(others[0].pid)
        finally:
            for process in (*workers, *others):
                process.kill()
        journal_bytes = sum(path.stat().st_size for path in job.path.glob("journal*"))
    waits = sorted(wait for result in results for wait in result["waits_s"])
    return {
        "requests_per_message": batch,
        "pairs_per_s": round(sum(r["pairs"] for r in results) / seconds),
        "answer_p50_ms": round(1e3 * statistics.median(waits), 3),
        "answer_p99_ms": round(1e3 * waits[int(0.99 * len(waits))], 3),
        "master_cpu_s": round(cpu_s, 2),
        "journal_bytes": journal_bytes,
    }


def measure_dlrover(python: str, seconds: float) -> dict[str, object]:
    """The peer, in its own environment."""
    script = str(Path(__file__).with_name("peers") / "dispatch_dlrover.py")
    told = harness.output_of("dlrover", [python, script, "--seconds", str(seconds)])
    measured: dict[str, object] = json.loads(told.splitlines()[-1])
    return measured


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def measure_ledger(num_grants: int) -> dict[str, object]:
    """A ledger of 10^12 samples: creation, then grants that are completed in random order."""
    before_mb = _rss_mb()
    start_s = time.perf_counter()
    ledger = Ledger()
    ledger.open(FEED)
    created_ms = 1e3 * (time.perf_counter() - start_s)
    created_mb = _rss_mb() - before_mb
    rng = random.Random(0)
    start_s = time.perf_counter()
    starts = array("q")
    peak_mb = 0.0
    for n in range(num_grants):
        (span,) = ledger.pick(0, 1_000)
        ledger.grant(n % NUM_CLIENTS, [span])
        starts.append(span.start)
    rng.shuffle(starts)
    for n, at in enumerate(starts):
        ledger.commit([Span(0, at, at + 1_000)])
        if n % (num_grants // 64) == 0:
            peak_mb = max(peak_mb, _rss_mb())
    return {
        "samples": FEED.num_samples,
        "created_ms": round(created_ms, 4),
        "created_rss_growth_mb": round(created_mb, 2),
        "grants": num_grants,
        "grants_and_completions_s": round(time.perf_counter() - start_s, 1),
        "rss_growth_after_mb": round(_rss_mb() - before_mb, 1),
        "rss_growth_peak_mb": round(peak_mb - before_mb, 1),
        "intervals_left": len(ledger.done.lines[0].edges) // 2,
    }


def main() -> None:
    parser = harness.parser(__doc__, "half a second each, 20,000 grants")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--grants", type=int, default=1_000_000)
    parser.add_argument("--dlrover", default="")
    parser.add_argument("--only", choices=["sockets", "ledger"])
    parser.add_argument("--role")
    parser.add_argument("--job", type=Path)
    parser.add_argument("--index", type=int, default=0)
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.grants = 0.5, 20_000
    match options.role:
        case "master":
            asyncio.run(run_master(JobDir(options.job), options.seconds))
        case "server":
            asyncio.run(run_server(JobDir(options.job)))
        case "worker":
            work = run_worker(JobDir(options.job), options.index, options.batch, options.seconds)
            asyncio.run(work)
        case _:
            report: dict[str, object] = {"clients": NUM_CLIENTS}
            if options.only != "ledger":
                report["unbatched"] = measure(1, options.seconds)
                report["batched"] = measure(options.batch, options.seconds)
            if not options.dlrover:
                harness.skipped("dlrover", "no --dlrover")
            else:
                report["dlrover"] = measure_dlrover(options.dlrover, options.seconds)
            if options.only != "sockets":
                report["ledger"] = measure_ledger(options.grants)
            harness.report("dispatch", report, file=options.json)


if __name__ == "__main__":
    harness.run(main)
