"""The master process's inside, whole: real gRPC, journal and files; agents and processes are played.

The played servers keep one set of samples as "the model", so each test ends by asking whether
every sample went into it exactly once.
"""

import asyncio
import contextlib
import json
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import msgspec
import pytest

from paceline.base.errors import TransientError
from paceline.base.jobdir import JobDir
from paceline.base.samples import SampleSet, Span
from paceline.cuts.manifest import checksum, write_file
from paceline.features.exporter.exporter import address_of, token_of
from paceline.jobs.outcome import End, Outcome, read_outcome
from paceline.jobs.tickets import read_ticket
from paceline.master.service import Master, Tick
from paceline.protocol.nodes import leaving
from paceline.protocol.nodes.ends import AgentEnd
from paceline.protocol.nodes.platform import (
    AgentGone,
    AnyWord,
    NodeStopped,
    PlaceDraining,
    PlacePending,
)
from paceline.wire.client import (
    Done,
    GetStatus,
    JobStatus,
    Join,
    Kill,
    ResizeNodes,
    Scale,
    StopJob,
)
from paceline.wire.control import ControlClient, MasterStream
from paceline.wire.messages.agent import (
    AgentDown,
    AgentHello,
    AgentUp,
    ExitEvidence,
    FromProcess,
    Heartbeat,
    Leave,
    NodeFacts,
    ProcessExited,
    StartProcess,
    StopProcess,
    ToProcess,
)
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import (
    Committed,
    Copied,
    FeedOpened,
    Fence,
    FenceAnswer,
    Finished,
    Grant,
    InitialWritten,
    LeaseRequest,
    NewEpoch,
    NodeDown,
    NodeUp,
    OpenFeed,
    Prepared,
    ProcessUp,
    Restore,
    Restored,
    ScriptError,
    Stop,
    TakeCut,
    WriteInitial,
)
from paceline.wire.places import AskedPlace, CannotResize, Resized, Resizing, Room
from paceline.wire.schema import ModelSchema
from paceline.wire.spec import (
    CheckpointSpec,
    DataSpec,
    JobSpec,
    NodeSize,
    NodeSpec,
    ResourcesSpec,
    RestartSpec,
    TimeoutSpec,
    load,
    save,
)

LIMIT_S = 30.0
BEAT_S = 0.03
"""Fakes repeat what is unanswered so often."""
SCHEMA = ModelSchema()


class World:
    """What all fakes share: the model, as the set of samples in it, and its cuts."""

    def __init__(self, job: JobDir, num_samples: int = 2_000) -> None:
        self.job = job
        self.feed = Feed(
            feed=0,
            purpose="train",
            num_samples=num_samples,
            epochs=1,
            batch_size=10,
            shard_size=100,
            shuffle=True,
            seed=0,
        )
        self.epoch_no = 0
        self.servers: tuple[int, ...] = ()
        self.model = SampleSet()
        self.applied: list[Span] = []
        """Of this epoch, in order: an overlap would be a sample counted twice."""
        self.fenced: set[int] = set()
        self.notes: dict[str, str] = {}
        """What the agent of a node says of its limits."""
        self.work_s = 0.001
        self.hold = asyncio.Event()
        """Cleared: workers do not go on."""
        self.hold.set()
        self.script_error: ScriptError | None = None
        self.batch_sizes: list[int] = []
        """What workers get to know of their batches, in order."""

    def apply(self, epoch_no: int, inc: int, spans: tuple[Span, ...]) -> bool:
        if epoch_no != self.epoch_no or inc in self.fenced:
            return False
        for span in spans:
            assert not self.model.overlap(span), f"{span} is in the model twice"
            self.model.add(span)
        return True

    def restore(self, message: Restore) -> None:
        self.servers = message.map.sharers
        if message.epoch_no > self.epoch_no:
            text = (self.folder(message.cut.cut_no) / "model.json").read_bytes()
            self.model = SampleSet(msgspec.json.decode(text, type=list[Span]))
            self.epoch_no, self.fenced = message.epoch_no, set()

    def folder(self, cut_no: int) -> Path:
        return self.job.cuts / f"{cut_no:06d}"

    def write(self, directory: Path) -> str:
        image = msgspec.json.encode(list(self.model))
        write_file(directory, "model.json", image)
        return checksum(image)


class FakeProcess:
    """A training process: answers messages, and `beat` repeats what is open."""

    def __init__(self, world: World, up: ProcessUp, say: Callable[[NodeUp], None]) -> None:
        self.world, self.up, self.say = world, up, say
        self.exit: ExitEvidence | None = None

    def on(self, message: NodeDown) -> None:
        raise NotImplementedError

    def beat(self) -> None:
        raise NotImplementedError


class FakeServer(FakeProcess):
    def on(self, message: NodeDown) -> None:
        world, inc = self.world, self.up.inc
        match message:
            case Restore():
                assert message.inc == inc
                world.restore(message)
                self.say(Restored(epoch_no=message.epoch_no, inc=inc))
            case Fence():
                world.fenced.add(message.fenced)
                self.say(
                    FenceAnswer(
                        epoch_no=message.epoch_no,
                        inc=inc,
                        fenced=message.fenced,
                        committed=world.model.spans(),
                    )
                )
            case TakeCut():
                directory = world.folder(message.cut_no)
                self.say(
                    Copied(
                        epoch_no=message.epoch_no,
                        inc=inc,
                        cut_no=message.cut_no,
                        position=1,
                        step=len(world.model),
                        committed=world.model.spans(),
                        sharers=world.servers,
                        file="model.json",
                        checksum=world.write(directory),
                        num_bytes=1,
                        stored=True,
                    )
                )

    def beat(self) -> None:
        world = self.world
        if world.epoch_no:
            committed = world.model.spans()
            self.say(
                Committed(epoch_no=world.epoch_no, inc=self.up.inc, step=1, committed=committed)
            )


class FakeWorker(FakeProcess):
    """Prepares, opens the feed, takes leases, applies them."""

    def __init__(self, world: World, up: ProcessUp, say: Callable[[NodeUp], None]) -> None:
        super().__init__(world, up, say)
        self.epoch_no, self.n = 0, 0
        self.opened = False
        self.samples = 0
        self.busy: asyncio.Task[None] | None = None

    def on(self, message: NodeDown) -> None:
        inc = self.up.inc
        match message:
            case WriteInitial():
                digest = self.world.write(self.world.folder(0))
                self.say(InitialWritten(inc=inc, file="model.json", checksum=digest, num_bytes=1))
            case FeedOpened():
                self.opened = True
            case NewEpoch() if message.epoch_no > self.epoch_no:
                self.epoch_no, self.n = message.epoch_no, 0
            case Grant() if message.epoch_no == self.epoch_no and message.n == self.n + 1:
                self.n = message.n
                self.world.batch_sizes.append(message.batch_size)
                if message.end:
                    self.say(Finished(inc=inc))
                    self.exit = ExitEvidence(exit_code=0)
                else:
                    self.busy = asyncio.get_running_loop().create_task(self._work(message))
            case Stop():
                self.exit = ExitEvidence(exit_code=0)

    async def _work(self, grant: Grant) -> None:
        await self.world.hold.wait()
        await asyncio.sleep(self.world.work_s)
        if self.exit is None and self.world.apply(grant.epoch_no, self.up.inc, grant.spans):
            self.samples += sum(len(span) for span in grant.spans)
        self.busy = None
        self.beat()

    def beat(self) -> None:
        inc = self.up.inc
        if self.world.script_error is not None and self.exit is None:
            self.say(msgspec.structs.replace(self.world.script_error, inc=inc))
            self.exit = ExitEvidence(exit_code=3)
        elif not self.epoch_no:
            self.say(Prepared(inc=inc, schema=SCHEMA))
        elif not self.opened:
            self.say(OpenFeed(inc=inc, feed=self.world.feed))
        elif self.busy is None and self.exit is None:
            self.say(LeaseRequest(epoch_no=self.epoch_no, inc=inc, n=self.n + 1, feed=0))


class FakeAgent:
    """One node's agent; survives the master, and can be killed."""

    def __init__(self, world: World, node: str, pid: int, size: NodeSize) -> None:
        self.world, self.node, self.pid, self.size = world, node, pid, size
        self.process: FakeProcess | None = None
        self.ended: ProcessExited | None = None
        self.stream: MasterStream | None = None
        self.left = False
        self.task = asyncio.get_running_loop().create_task(self._run())

    def kill(self) -> None:
        """End as by SIGKILL, even if the cancellation meets an error that is handled."""
        self.left = True
        self.task.cancel()

    async def _run(self) -> None:
        beat = asyncio.get_running_loop().create_task(self._beat())
        try:
            while not self.left:
                with contextlib.suppress(TransientError):
                    await self._follow()
                await asyncio.sleep(BEAT_S)
        finally:
            beat.cancel()

    async def _follow(self) -> None:
        address = self.world.job.control_address()
        stream = await ControlClient(address, self.world.job.secret()).connect_agent()
        self.stream = stream
        running = (self.process.up,) if self.process else ()
        note = self.world.notes.get(self.node, "")
        self._send(
            AgentHello(
                node=self.node,
                agent=str(self.pid),
                launch=str(self.pid),
                agent_pid=self.pid,
                host="h",
                running=running,
                note=note,
                size=self.size,
            )
        )
        if self.ended:
            self._send(self.ended)
        try:
            async for message in stream:
                self._on(message)
                if self.left:
                    return
        finally:
            self.stream = None
            await stream.close()

    def _send(self, message: AgentUp) -> None:
        if self.stream:
            self.stream.send_nowait(message)

    def _say(self, body: NodeUp) -> None:
        self._send(FromProcess(node=self.node, body=body))

    def _on(self, message: AgentDown) -> None:
        process = self.process
        match message:
            case StartProcess() if process is None or process.up.inc < message.inc:
                self._start(message)
            case StopProcess() if process is not None and process.up.inc == message.inc:
                self.end_process(ExitEvidence(stopped_by_us=True))
            case ToProcess() if process is not None and process.up.inc == message.inc:
                process.on(message.body)
                self._collect()
            case Leave():
                self.left = True

    def _start(self, start: StartProcess) -> None:
        pid = 1000 + start.inc
        if start.role == "server":
            up = ProcessUp(
                node=self.node, inc=start.inc, pid=pid, role="server", address=f"ipc://{start.inc}"
            )
            self.process = FakeServer(self.world, up, self._say)
        else:
            up = ProcessUp(node=self.node, inc=start.inc, pid=pid, role="worker")
            self.process = FakeWorker(self.world, up, self._say)
        self.ended = None
        self._say(up)
        self.process.beat()

    def end_process(self, evidence: ExitEvidence) -> None:
        assert self.process is not None
        inc, self.process.exit, self.process = self.process.up.inc, evidence, None
        self.ended = ProcessExited(node=self.node, inc=inc, evidence=evidence)
        self._send(self.ended)

    def _collect(self) -> None:
        if self.process is not None and self.process.exit is not None:
            self.end_process(self.process.exit)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            facts = None
            if self.process is not None:
                self.process.beat()
                samples = self.process.samples if isinstance(self.process, FakeWorker) else 0
                facts = NodeFacts(inc=self.process.up.inc, samples=samples, bpt_s=0.01)
            self._collect()
            self._send(Heartbeat(node=self.node, facts=facts))


class FakeBackend:
    """Launches `FakeAgent`; shared by a master and its successor, as the machine is."""

    def __init__(self, world: World, spec: JobSpec) -> None:
        self.world, self.spec = world, spec
        self.resizes_live = True
        self.most_cores = 8.0
        """A node that asks for more waits for its place."""
        self.most_nodes = 99
        """Nodes beyond these wait for their places."""
        self.agents: dict[str, FakeAgent] = {}
        self.exits: asyncio.Queue[AnyWord] = asyncio.Queue()
        self.next_pid = 100

    def launch(self, node: str, place: AskedPlace, token: str, *, may_move: bool = False) -> None:
        before = self.agents.get(node)
        if before:
            before.kill()
        size = place.size
        if before and not (self.resizes_live or may_move):
            size = before.size
        if before is None and len(self.agents) >= self.most_nodes:
            self.exits.put_nowait(PlacePending(node=node, why="no machine is free"))
            return
        if (size.cpu or 0.0) > self.most_cores:
            self.exits.put_nowait(PlacePending(node=node, why="no machine is so large"))
            return
        self.next_pid += 1
        agent = self.agents[node] = FakeAgent(self.world, node, self.next_pid, size)
        # The process outlives its agent, and the successor takes it over.
        if before and before.process:
            agent.process = before.process
            agent.process.say = agent._say

    def adopt(self, node: str, launch: str, pid: int) -> None:
        pass

    def stop(self, node: str, grace_s: float = 0.0) -> None:
        if node in self.agents:
            self.agents[node].kill()
        self.exits.put_nowait(NodeStopped(node=node))

    async def watch(self) -> AsyncIterator[AnyWord]:
        while True:
            yield await self.exits.get()

    async def picture(self, nodes: Iterable[str]) -> set[str]:
        return set()

    def resize(self, node: str, place: AskedPlace) -> Resizing:
        return Resized() if self.resizes_live else CannotResize("a place keeps its size")

    def room(self, place: AskedPlace) -> Room:
        return Room(pending_s=0.0)

    async def close(self) -> None: ...

    def kill_agent(self, node: str) -> None:
        agent = self.agents[node]
        agent.kill()
        self.exits.put_nowait(AgentGone(node=node, launch=str(agent.pid), end=AgentEnd(signal=9)))


class Bench:
    """A job directory, its fakes, and masters one after the other."""

    def __init__(self, path: Path, spec: JobSpec) -> None:
        self.job = JobDir(path)
        self.job.fill()
        self.spec = spec
        self.world = World(self.job)
        self.paused_s = 0.0
        """By how much the master's clock has jumped."""
        self.backend = FakeBackend(self.world, spec)
        self.start_master()

    def start_master(self) -> None:
        self.master = Master(
            self.job, self.spec, self.backend, clock=lambda: time.monotonic() + self.paused_s
        )
        self.running = asyncio.get_running_loop().create_task(self.master.run())

    async def kill_master(self) -> None:
        """As SIGKILL would, as far as its state is concerned: nothing is written any more."""
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.master.rooms.sources.close()
        self.master.parts.outbox.journal.close()

    async def call(
        self, call: GetStatus | Scale | Kill | StopJob | ResizeNodes
    ) -> JobStatus | Done:
        address = self.job.control_address()
        return await ControlClient(address, self.job.secret()).call(call, timeout_s=5.0)

    async def status(self) -> JobStatus:
        reply = await self.call(GetStatus())
        assert isinstance(reply, JobStatus)
        return reply

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            assert not self.running.done(), self.running.result()
            await asyncio.sleep(0.01)

    async def done(self) -> Outcome:
        outcome = await self.running
        assert read_outcome(self.job.outcome) == outcome
        return outcome

    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.job.events.read_text().splitlines()]

    def event_names(self) -> list[object]:
        return [event["event"] for event in self.events()]

    def make_longer(self) -> None:
        """Before the first worker is there: have fifty times as many samples."""
        self.world.feed = msgspec.structs.replace(self.world.feed, num_samples=100_000)

    @property
    def progress(self) -> int:
        return len(self.world.model)

    def has_cut_of(self, num_samples: int) -> bool:
        cuts = self.master.rooms.training.state.cuts.valid
        return bool(cuts) and len(SampleSet(cuts[-1].committed)) > num_samples

    def assert_each_sample_once(self) -> None:
        assert self.world.model.spans() == (Span(0, 0, self.world.feed.num_samples or 0),)

    async def close(self) -> None:
        for agent in self.backend.agents.values():
            agent.kill()
        tasks = [agent.task for agent in self.backend.agents.values()]
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self.running.done():
            await self.kill_master()
        for path in sorted(self.job.run_dir.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        self.job.run_dir.rmdir()


def make_spec(**changes: object) -> JobSpec:
    fields: dict[str, object] = {
        "script": "/nowhere/train.py",
        "mode": "asp",
        "workers": NodeSpec(count=2),
        "servers": NodeSpec(count=1),
        "checkpoint": CheckpointSpec(every_s=0.2),
        "restart": RestartSpec(backoff_s=0.05),
        "timeouts": TimeoutSpec(heartbeat_s=0.05, lost_after_s=1.0, stop_s=1.0),
    }
    return JobSpec(**{**fields, **changes})  # type: ignore[arg-type]


AT_A_PORT = {"sources": {"listen": "--set listen"}}
"""Of a spec whose master other machines can reach."""


def play(
    tmp_path: Path, body: Callable[[Bench], Awaitable[None]], spec: JobSpec | None = None
) -> None:
    async def main() -> None:
        bench = Bench(tmp_path / f"job-{id(body)}", spec or make_spec())
        try:
            async with asyncio.timeout(LIMIT_S):
                await body(bench)
        finally:
            await bench.close()

    asyncio.run(main())


def test_a_job_runs_from_nothing_to_its_outcome(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        outcome = await bench.done()
        bench.assert_each_sample_once()
        assert (outcome.state, outcome.exit_code) == ("finished", 0)
        assert outcome.committed == outcome.total == 2_000
        names = bench.event_names()
        for name in ("master_started", "node_started", "process_up", "epoch", "restored"):
            assert name in names
        assert names[-1] == "finished"
        assert "feed_complete" in names

    play(tmp_path, body)


def test_a_killed_worker_gives_back_what_it_had(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.progress > 100)
        bench.backend.agents["worker-1"].end_process(ExitEvidence(signal=9))
        outcome = await bench.done()
        bench.assert_each_sample_once()
        assert outcome.state == "finished"
        assert "relaunch" in bench.event_names()

    play(tmp_path, body)


def test_after_a_lost_server_the_job_goes_on_from_the_last_cut(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.world.work_s = 0.03
        await bench.until(lambda: bench.has_cut_of(300))
        bench.backend.agents["server-0"].end_process(ExitEvidence(signal=9))
        outcome = await bench.done()
        bench.assert_each_sample_once()
        assert outcome.state == "finished"
        assert bench.world.epoch_no == 2

    play(tmp_path, body)


def test_a_master_killed_in_mid_job_goes_on_from_its_journal(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.progress > 300)
        address = bench.job.master_address.read_text()
        ticket = bench.job.ticket.read_text()
        shown = bench.job.master_identity.read_bytes()
        await bench.kill_master()
        bench.start_master()
        outcome = await bench.done()
        bench.assert_each_sample_once()
        assert outcome.state == "finished"
        assert bench.job.master_address.read_text() == address
        assert bench.job.ticket.read_text() == ticket, "machines that join later know it, too"
        assert bench.job.master_identity.read_bytes() == shown
        assert bench.world.epoch_no == 1
        assert bench.event_names().count("node_started") == 3

    play(tmp_path, body, make_spec(**AT_A_PORT))


def test_everything_killed_goes_on_from_the_newest_cut(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.world.work_s = 0.03
        await bench.until(lambda: bench.has_cut_of(300))
        await bench.kill_master()
        for agent in bench.backend.agents.values():
            agent.kill()
        bench.backend.agents.clear()
        bench.start_master()
        outcome = await bench.done()
        bench.assert_each_sample_once()
        assert outcome.state == "finished"

    play(tmp_path, body)


def test_a_damaged_cut_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.world.work_s = 0.03
        await bench.until(lambda: bench.has_cut_of(300))
        await bench.kill_master()
        for agent in bench.backend.agents.values():
            agent.kill()
        bench.backend.agents.clear()
        newest = max(path for path in bench.job.cuts.iterdir() if (path / "manifest.json").exists())
        (newest / "model.json").write_bytes(b"[]")
        bench.start_master()
        outcome = await bench.done()
        bench.assert_each_sample_once()
        assert outcome.state == "finished"
        assert "cut_damaged" in bench.event_names()

    play(tmp_path, body)


def test_a_killed_agent_is_replaced_and_its_process_goes_on(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.progress > 100)
        bench.backend.kill_agent("worker-0")
        outcome = await bench.done()
        bench.assert_each_sample_once()
        assert outcome.state == "finished"
        names = bench.event_names()
        assert "agent_lost" in names
        assert names.count("node_started") == 3

    play(tmp_path, body)


def test_a_silent_agent_is_replaced_and_its_process_goes_on(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.world.hold.clear()
        await bench.until(lambda: len(bench.backend.agents) == 3)
        await bench.until(lambda: bench.backend.agents["worker-0"].process is not None)
        bench.backend.agents["worker-0"].kill()
        await bench.until(lambda: bench.backend.agents["worker-0"].pid > 103)
        bench.world.hold.set()
        await bench.done()
        bench.assert_each_sample_once()
        assert bench.event_names().count("node_started") == 3

    play(tmp_path, body)


def test_an_error_in_the_script_ends_the_job_with_its_traceback(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.world.script_error = ScriptError(
            inc=0, kind="ValueError", traceback="Traceback: no", in_user_code=True, step=0
        )
        outcome = await bench.done()
        assert (outcome.state, outcome.exit_code) == ("failed", 3)
        assert outcome.traceback == "Traceback: no"
        assert "ValueError in the script" in outcome.error

    play(tmp_path, body)


def cores_of_workers(bench: Bench) -> list[float | None]:
    agents = {name: one for name, one in bench.backend.agents.items() if not one.left}
    return [agents[name].size.cpu for name in sorted(agents) if name.startswith("worker")]


async def let_workers_move(bench: Bench, cores: float) -> None:
    """Order another size, where a place keeps its own, of workers that train."""
    save(bench.spec, bench.job.spec)
    bench.backend.resizes_live, bench.world.work_s = False, 0.02
    await bench.until(lambda: bench.progress > 50)
    assert await bench.call(ResizeNodes(role="worker", cpu=(cores,))) == Done()


LONG = DataSpec(shard_size=100)
"""Fixed, so that no lease is for a second of work."""


def test_where_a_place_keeps_its_size_workers_move_also_by_the_next_master(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.make_longer()
        await let_workers_move(bench, cores=2.0)
        await bench.until(lambda: "kill_restart" in bench.event_names())
        assert bench.master.parts.members.roster.num_workers == 3, "one stands in"
        await bench.kill_master()
        bench.spec = load(bench.job.spec)
        bench.start_master()
        await bench.until(lambda: bench.event_names().count("kill_restart") == 2)
        sizes = bench.master.rooms.sizes
        await bench.until(lambda: sizes.change is None)
        bench.world.work_s = 0.001
        await bench.until(lambda: cores_of_workers(bench) == [2.0, 2.0])
        assert bench.master.parts.members.roster.num_workers == 2
        await bench.done()
        bench.assert_each_sample_once()
        assert "not_resized" not in bench.event_names()

    play(tmp_path, body, make_spec(data=LONG))


def test_a_worker_that_finds_no_place_is_back_at_its_own_before_the_spare_leaves(
    tmp_path: Path,
) -> None:
    async def body(bench: Bench) -> None:
        bench.make_longer()
        await let_workers_move(bench, cores=2.0)
        await bench.until(lambda: "worker-2" in bench.backend.agents)
        bench.backend.most_cores = 1.0  # somebody else takes what was free
        await bench.until(lambda: "not_resized" in bench.event_names())
        assert "worker-2" in bench.master.parts.members.roster.nodes, "it stands in"
        sizes = bench.master.rooms.sizes
        await bench.until(lambda: sizes.change is None)
        await bench.until(lambda: cores_of_workers(bench) == [None, None])
        bench.world.work_s = 0.001
        await bench.done()
        bench.assert_each_sample_once()
        assert bench.event_names().count("kill_restart") == 1

    play(tmp_path, body, make_spec(data=LONG, resources=ResourcesSpec(patience_s=1.0)))


def test_the_end_of_a_job_does_not_wait_for_a_worker_that_would_stand_in(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await let_workers_move(bench, cores=9.0)
        await bench.done()
        (event,) = [event for event in bench.events() if event["event"] == "not_resized"]
        assert event["reason"] == "the job is about to end"

    play(tmp_path, body, make_spec(data=LONG))


def test_a_size_that_has_no_place_is_given_up_and_stays_so(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.make_longer()
        await let_workers_move(bench, cores=9.0)
        await bench.until(lambda: "not_resized" in bench.event_names())
        assert cores_of_workers(bench) == [None, None]
        assert load(bench.job.spec) == bench.spec
        assert "worker-2" not in bench.master.parts.members.roster.nodes
        bench.world.work_s = 0.001
        await bench.kill_master()
        bench.start_master()
        await bench.done()
        bench.assert_each_sample_once()
        names = bench.event_names()
        assert names.count("not_resized") == 1 and "kill_restart" not in names

    play(tmp_path, body, make_spec(data=LONG, resources=ResourcesSpec(patience_s=1.0)))


def test_scaling_up_and_down_changes_who_works_and_nothing_else(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.world.work_s = 0.02
        await bench.until(lambda: bench.progress > 50)
        assert await bench.call(Scale(workers=4)) == Done()
        await bench.until(lambda: len(bench.master.rooms.training.state.workers) == 4)
        await bench.until(lambda: 2 in bench.world.batch_sizes)
        assert await bench.call(Scale(workers=1)) == Done()
        await bench.until(lambda: len(bench.master.rooms.training.state.workers) == 1)
        await bench.done()
        bench.assert_each_sample_once()
        # As many as there are divide the script's batch of 10.
        assert set(bench.world.batch_sizes) == {5, 2, 10}
        assert (bench.world.batch_sizes[0], bench.world.batch_sizes[-1]) == (5, 10)

    play(tmp_path, body)


def test_there_are_no_more_workers_than_the_spec_allows(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.progress > 50)
        assert await bench.call(Scale(workers=3)) == Done()
        for call in (Scale(workers=4), Scale(workers=0), Join(host="there")):
            reply = await bench.call(call)
            assert isinstance(reply, Done)
            assert "workers, expected 1 to 3" in reply.error
        await bench.done()
        assert len(list(bench.master.parts.members.roster.wanted_workers())) <= 3

    play(tmp_path, body, make_spec(max_workers=3))


def test_a_node_killed_by_order_costs_no_budget(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.progress > 100)
        assert await bench.call(Kill(node="worker-0")) == Done()
        reply = await bench.call(Kill(node="worker-9"))
        assert isinstance(reply, Done)
        assert "no live node 'worker-9'" in reply.error
        outcome = await bench.done()
        assert outcome.state == "finished"
        bench.assert_each_sample_once()

    spec = make_spec(restart=RestartSpec(budget=0))
    play(tmp_path, body, spec)


def test_a_stop_ends_in_a_cut_and_the_job_can_be_resumed(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.world.work_s = 0.02
        await bench.until(lambda: bench.progress > 100)
        assert await bench.call(StopJob()) == Done()
        outcome = await bench.done()
        assert (outcome.state, outcome.end, outcome.exit_code) == ("stopped", End.STOPPED, 4)
        assert outcome.kept == outcome.committed
        held = SampleSet(bench.master.rooms.training.state.cuts.valid[-1].committed)
        assert held == bench.world.model
        assert len(held) == outcome.committed > 0
        bench.job.outcome.unlink()
        bench.backend.agents.clear()
        bench.start_master()
        again = await bench.done()
        assert (again.end, again.exit_code) == (End.FINISHED, 0)
        bench.assert_each_sample_once()

    play(tmp_path, body)


@pytest.mark.parametrize(
    ("asked", "end", "code"),
    [(signal.SIGTERM, End.TERMINATED, 143), (StopJob(signal=signal.SIGINT), End.INTERRUPTED, 130)],
)
def test_a_signal_that_asks_for_the_end_is_told_by_the_exit_code(
    tmp_path: Path, asked: StopJob | int, end: End, code: int
) -> None:
    async def body(bench: Bench) -> None:
        bench.world.work_s = 0.02
        await bench.until(lambda: bench.progress > 100)
        if isinstance(asked, StopJob):
            assert await bench.call(asked) == Done()
        else:
            bench.master.stop_nowait(asked)
        outcome = await bench.done()
        assert (outcome.end, outcome.exit_code) == (end, code)

    play(tmp_path, body)


@pytest.mark.parametrize("at_once", [False, True])
def test_what_no_cut_holds_is_told_when_the_last_one_cannot_come_any_more(
    tmp_path: Path, at_once: bool
) -> None:
    async def body(bench: Bench) -> None:
        bench.world.work_s = 0.02
        await bench.until(lambda: bench.progress > 100)
        assert await bench.call(StopJob()) == Done()
        if at_once:
            assert await bench.call(StopJob(now=True)) == Done()
        outcome = await bench.done()
        assert outcome.kept is not None
        missing = outcome.committed - outcome.kept
        told = [one["samples"] for one in bench.events() if one["event"] == "not_kept"]
        assert told == ([missing] if missing else [])

    play(tmp_path, body)


def test_the_status_is_filled(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.world.work_s = 0.01
        await bench.until(lambda: bench.progress > 300)
        status = await bench.status()
        assert (status.state, status.total) == ("training", 2_000)
        assert status.num_events == len(bench.events())
        nodes = {node.node: node for node in status.nodes}
        assert set(nodes) == {"server-0", "worker-0", "worker-1"}
        assert all(node.state == "running" and node.pid and node.agent_pid for node in status.nodes)
        assert nodes["worker-0"].bpt_s == 0.01
        await bench.done()

    play(tmp_path, body)


def test_messages_of_strangers_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.progress > 100)
        address = bench.job.control_address()
        stream = await ControlClient(address, bench.job.secret()).connect_agent()
        stale = Committed(epoch_no=1, inc=77, step=9, committed=(Span(0, 0, 2_000),))
        for _ in range(5):
            stream.send_nowait(FromProcess(node="worker-0", body=stale))
        stream.send_nowait(AgentHello(node="worker-9", agent="a", agent_pid=1, host="h"))
        stream.send_nowait(FromProcess(node="worker-9", body=stale))
        async for message in stream:
            assert message == Leave()
            break
        await stream.close()
        await bench.done()
        bench.assert_each_sample_once()

    play(tmp_path, body)
    refused = [r.getMessage() for r in caplog.records if "message_refused" in r.getMessage()]
    assert len(refused) == len(set(refused)) >= 2


def test_limits_that_an_agent_cannot_set_are_told_each_time_it_joins(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.world.notes["worker-1"] = "worker-1 runs without limits"
        await bench.until(lambda: bench.progress > 100)
        await bench.kill_master()
        bench.start_master()
        await bench.done()
        told = [event for event in bench.events() if event["event"] == "no_limits"]
        assert [event["node"] for event in told] == ["worker-1"] * 2
        assert {event["reason"] for event in told} == {"worker-1 runs without limits"}

    play(tmp_path, body)


def test_a_master_whose_port_was_taken_meanwhile_takes_another(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.progress > 300)
        before = bench.job.master_address.read_text()
        port = int(before.strip().rpartition(":")[2])
        await bench.kill_master()
        with socket.create_server(("127.0.0.1", port)):
            bench.start_master()
            outcome = await bench.done()
        bench.assert_each_sample_once()
        assert outcome.state == "finished"
        assert bench.job.master_address.read_text() != before
        ticket = read_ticket(bench.job.ticket)
        assert ticket.address == bench.job.master_address.read_text().strip()
        assert bench.event_names().count("node_started") == 3

    play(tmp_path, body, make_spec(**AT_A_PORT))


def test_a_master_that_was_paused_blames_nobody(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.world.work_s = 0.02
        await bench.until(lambda: bench.progress > 100)
        for _ in range(3):
            # The master, and with it its clock, stands still for three times `lost_after_s`.
            bench.paused_s += 3.0
            bench.master.rooms.inbox.put(Tick())
            before = bench.progress
            await bench.until(lambda: bench.progress > before + 50)  # noqa: B023
        await bench.done()
        bench.assert_each_sample_once()
        assert "agent_lost" not in bench.event_names()

    play(tmp_path, body)


def test_what_starts_cost_is_known_to_the_next_master(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.progress > 300)
        bench.world.hold.clear()
        await bench.until(lambda: bench.event_names().count("works") == 3)
        costs = [bench.master.parts.monitor.restarts.cost(role) for role in ("worker", "server")]
        assert all(0.0 < cost.total_s < LIMIT_S for cost in costs)
        await bench.kill_master()
        bench.start_master()
        await bench.until(lambda: bench.master.parts.monitor.restarts.cost("worker").total_s > 0)
        again = [bench.master.parts.monitor.restarts.cost(role) for role in ("worker", "server")]
        assert again == costs
        bench.world.hold.set()
        await bench.done()

    play(tmp_path, body)


def test_an_unknown_solution_ends_the_job_with_the_names_there_are(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        outcome = await bench.done()
        assert outcome.state == "failed"
        assert "no solution 'best'; there are" in outcome.error

    play(tmp_path, body, make_spec(solution="best"))


def test_metrics_are_served_while_the_job_runs_and_to_nobody_without_the_token(
    tmp_path: Path,
) -> None:
    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.progress > 300)
        bench.world.hold.clear()
        await asyncio.sleep(1.1)  # a measurement
        address = address_of(bench.job).read_text().strip()
        token = token_of(bench.job).read_text().strip()
        text = await asyncio.to_thread(fetch, address, token)
        assert 'paceline_node_samples_total{node="worker-0",role="worker"}' in text
        (committed,) = [
            float(line.split()[1])
            for line in text.splitlines()
            if line.startswith("paceline_job_committed_samples ")
        ]
        assert 0 < committed <= bench.progress
        for wrong in ("guess", bench.job.secret().decode()):
            with pytest.raises(urllib.error.HTTPError) as refused:
                await asyncio.to_thread(fetch, address, wrong)
            refused.value.close()
            assert refused.value.code == 401
        bench.world.hold.set()
        await bench.done()
        with pytest.raises(urllib.error.URLError):
            await asyncio.to_thread(fetch, address, token)

    play(tmp_path, body, make_spec(metrics_port=0))


def fetch(address: str, token: str) -> str:
    request = urllib.request.Request(
        f"http://{address}/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        return str(answer.read().decode())


async def drain(bench: Bench, node: str, within_s: float) -> None:
    """Have the platform say of a worker that trains that its place goes away."""
    bench.make_longer()
    bench.world.work_s = 0.02
    await bench.until(lambda: bench.progress > 50)
    bench.backend.exits.put_nowait(PlaceDraining(node=node, why="spot", within_s=within_s))


def test_a_worker_whose_place_drains_leaves_when_another_one_does_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "QUIET_S", 0.5)

    async def body(bench: Bench) -> None:
        await drain(bench, "worker-1", within_s=60.0)
        await bench.until(lambda: "kill_restart" in bench.event_names())
        names = bench.event_names()
        assert names.index("stand_in") < names.index("kill_restart")
        assert bench.backend.agents["worker-2"].process is not None, "it is at work"
        await bench.until(lambda: "worker-2" not in bench.master.parts.members.roster.nodes)
        assert bench.master.rooms.sizes.change is None
        lives = [event["node"] for event in bench.events() if event["event"] == "node_started"]
        assert lives.count("worker-1") == 2
        bench.world.work_s = 0.001
        await bench.done()
        bench.assert_each_sample_once()
        assert "agent_lost" not in bench.event_names()

    play(tmp_path, body, make_spec(data=LONG))


def test_a_worker_without_a_stand_in_leaves_while_there_is_time(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.backend.most_nodes = 3
        await drain(bench, "worker-1", within_s=leaving.LEAVE_MARGIN_S + 1.0)
        await bench.until(lambda: "kill_restart" in bench.event_names())
        times = {str(event["event"]): event["t"] for event in bench.events()}
        waited_s = float(str(times["kill_restart"])) - float(str(times["place_draining"]))
        assert waited_s >= 1.0 and "stand_in" in times

    play(tmp_path, body, make_spec(data=LONG))
