"""A fleet of light nodes: what a master hears of a thousand members, without a thousand processes.

One process speaks for all of them. Each has a connection of its own to a real master process, and
says what an agent and its worker say with all-reduce: hello, the life that has started, joining,
stopping, progress, heartbeats. No worker computes, and no two of them talk to each other.
"""

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from paceline.base.errors import TransientError
from paceline.base.jobdir import JobDir
from paceline.base.numbering import NO_EPOCH, NO_INC, START, StepNo
from paceline.base.processes import try_lock
from paceline.base.samples import Span
from paceline.wire.client import GetStatus, JobStatus
from paceline.wire.control import ControlClient, MasterStream
from paceline.wire.messages.agent import (
    AgentDown,
    AgentHello,
    AgentUp,
    ExitEvidence,
    FileServers,
    FromProcess,
    Heartbeat,
    NodeFacts,
    ProcessExited,
    StartProcess,
    StopProcess,
    ToProcess,
)
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.group import (
    NO_STEP,
    CatchUp,
    Divide,
    GroupStopped,
    JoinGroup,
    Member,
    Progress,
    RunGroup,
    StopGroup,
)
from paceline.wire.messages.node import NodeDown, NodeUp, OpenFeed, ProcessUp, Stop
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec, TimeoutSpec, save
from paceline_experiments import harness

SAY_S = 0.5
"""Seconds between two words of a member on its progress, as in `paceline.runtime`."""
TURN_S = 0.01
"""Seconds between two looks at whose turn it is to speak."""
STEP_S = 0.1
BATCH = 64_000
"""Samples in a step."""
NEVER_S = 1e6
CONNECTING = 50
"""Agents that connect at the same time."""
START_S = 60.0
PATIENCE_S = 120.0
"""Seconds that anything may take on a machine that other work shares."""
SETTLE_S = 3.0
"""Seconds after which what a group's forming leaves behind is done."""


def spec_of(num_workers: int) -> JobSpec:
    """The job of a fleet: its backend launches nothing, since each launch waits for its place."""
    return JobSpec(
        script="/fleet",
        strategy="allreduce",
        workers=NodeSpec(count=num_workers),
        pending_s=NEVER_S,
        listen="127.0.0.1",
        sources={"listen": "--set listen"},  # other machines may come, so there is a port
        checkpoint=CheckpointSpec(every_s=NEVER_S),
        # A worker that dies stays away, and a busy machine that starves this process kills nobody.
        restart=RestartSpec(backoff_s=NEVER_S, backoff_max_s=NEVER_S),
        timeouts=TimeoutSpec(lost_after_s=START_S, hang_s=START_S),
    )


class LightMember:
    """One node: its agent's stream, and the member that trains there."""

    def __init__(self, fleet: "Fleet", number: int) -> None:
        self.fleet, self.number = fleet, number
        self.node = f"worker-{number}"
        # Each is on a machine of its own, as the master sees it.
        self.files = f"tcp://10.{1 + number // 62_500}.{number // 250 % 250}.{number % 250}:5000"
        self.stream: MasterStream | None = None
        self.inc = NO_INC
        self.alive = False
        self.epoch_no, self.group, self.ran = NO_EPOCH, 0, 0
        self.held = NO_STEP
        self.members: tuple[Member, ...] = ()
        self.running = False
        self.opened = False
        self.division = 0
        self.samples = 0
        self.waits: Progress | None = None

    # ------------------------------------------------------------------ the stream

    async def connect(self) -> None:
        """Connect, and follow the master from then on."""
        job = self.fleet.job
        address = job.master_address.read_text().strip()
        client = ControlClient(address, job.secret(), job.authority_pem())
        self.stream = await client.connect_agent(timeout_s=START_S)
        up = self._up()
        hello = AgentHello(
            node=self.node,
            agent=f"{self.node} of {os.getpid()}",
            agent_pid=os.getpid(),
            host=f"host-{self.number}",
            running=(up,) if self.alive else (),
            files=self.files,
        )
        self._send(hello)
        self.fleet.tasks.append(asyncio.create_task(self._follow(self.stream)))

    async def _follow(self, stream: MasterStream) -> None:
        with contextlib.suppress(TransientError):
            async for message in stream:
                self.fleet.num_heard += 1
                self._take(message)

    def _take(self, message: AgentDown) -> None:
        match message:
            case StartProcess():
                if message.inc > self.inc:
                    self.inc, self.alive = message.inc, True
                    self.epoch_no, self.group, self.ran = NO_EPOCH, 0, 0
                    self.held, self.running, self.opened, self.samples = NO_STEP, False, False, 0
                    self._say(self._up())
                    if self.fleet.may_join:
                        self.speak()
            case ToProcess():
                if self.alive and message.inc == self.inc:
                    self._told(message.body)
            case StopProcess():
                self.die(ExitEvidence(stopped_by_us=True))
            case FileServers():
                self.fleet.num_file_servers += len(message.nodes)
            case _:
                pass

    def _send(self, message: AgentUp) -> None:
        if self.stream is not None:
            self.fleet.num_said += 1
            self.stream.send_nowait(message)

    def _say(self, body: NodeUp) -> None:
        self._send(FromProcess(node=self.node, body=body))

    def _up(self) -> ProcessUp:
        return ProcessUp(node=self.node, inc=self.inc, pid=1_000 + self.inc, role="worker")

    # ------------------------------------------------------------------ the member

    def die(self, evidence: ExitEvidence) -> None:
        """End the life, as its agent sees it."""
        if self.alive:
            self.alive = self.running = False
            self._send(ProcessExited(node=self.node, inc=self.inc, evidence=evidence))

    def _told(self, body: NodeDown) -> None:
        match body:
            case StopGroup():
                self._stop(body)
            case CatchUp():
                self.epoch_no, self.group = body.epoch_no, body.group
                self.held = body.step
                self._stopped()
            case RunGroup():
                self._run(body)
            case Divide():
                self.division = body.division.no
            case Stop():
                self.die(ExitEvidence(exit_code=0))
            case _:
                pass

    def _stop(self, order: StopGroup) -> None:
        if (order.epoch_no, order.group) < (self.epoch_no, self.group):
            return
        if self.running:
            self.fleet.stand()
            # The death came in mid-step: half of the members had completed the step.
            ahead = self.number % 2 if order.at_once else 0
            self.held = StepNo(self.fleet.step + ahead)
        self.running = False
        self.epoch_no, self.group = order.epoch_no, order.group
        self._stopped()

    def _stopped(self) -> None:
        stopped = GroupStopped(
            epoch_no=self.epoch_no,
            inc=self.inc,
            group=self.group,
            step=self.held,
            committed=committed_at(self.held),
            ran=self.ran,
        )
        self._say(stopped)

    def _run(self, order: RunGroup) -> None:
        if order.group < self.group or (self.running and order.group == self.ran):
            return
        assert order.base in (0, self.ran), f"{order.base} is the group of others than {self.ran}"
        whole = order.over(self.members) if order.base else order
        self.epoch_no, self.group, self.ran = order.epoch_no, order.group, order.group
        self.members, self.division = whole.members, whole.division.no
        self.held, self.running = order.step, True
        self.fleet.runs(order)
        if not self.opened:
            self.opened = True
            self._say(OpenFeed(inc=self.inc, feed=FEED))

    def speak(self) -> None:
        """Say what a member says twice per second."""
        if not self.alive:
            return
        if self.running:
            step = self.fleet.step
            progress = Progress(
                epoch_no=self.epoch_no,
                inc=self.inc,
                group=self.ran,
                step=step,
                committed=committed_at(step),
                division=self.division,
            )
            self.waits = progress  # its agent sends it with the next report
        elif not self.group:
            if self.fleet.may_join:
                address = f"tcp://10.1.{self.number // 250}.{self.number % 250}:6000"
                self._say(JoinGroup(inc=self.inc, address=address, replica="light"))
        else:
            self._stopped()

    def beat(self) -> None:
        """Send the report of the agent, after what waits for it."""
        facts = None
        if self.alive:
            self.samples += 5 * BATCH // self.fleet.size
            step = max(self.fleet.step, 0) if self.running else 0
            facts = NodeFacts(
                inc=self.inc,
                step=step,
                samples=self.samples if self.running else 0,
                steps=5 if self.running else 0,
                step_samples=BATCH / self.fleet.size,
                compute_s=0.08,
                compute_max_s=0.085,
                message_s=0.005,
                data_s=0.001,
                bpt_s=STEP_S,
                waiting_s=0.01,
                cpu_s=step / 10,
                rss_bytes=512 << 20,
                memory_bytes=512 << 20,
            )
        waits, self.waits = self.waits, None
        if waits is not None and self.running:
            self._say(waits)
        self._send(Heartbeat(node=self.node, facts=facts))


FEED = Feed(
    feed=0,
    purpose="train",
    num_samples=10**12,
    epochs=1,
    batch_size=BATCH,
    shard_size=10 * BATCH,
    shuffle=True,
    seed=0,
)


def committed_at(step: int) -> tuple[Span, ...]:
    """The samples in a model of this step."""
    return (Span(0, 0, step * BATCH),) if step > 0 else ()


class Fleet:
    """All the nodes of one job."""

    def __init__(self, job: JobDir, size: int) -> None:
        self.job, self.size = job, size
        self.nodes = [LightMember(self, number) for number in range(size)]
        self.tasks: list[asyncio.Task[None]] = []
        self.may_join = False
        """Whether workers that are up say that they want to train."""
        self.num_heard = self.num_said = self.num_file_servers = 0
        self.last_run: RunGroup | None = None
        self._begun_s: float | None = None
        self._before = START

    # ------------------------------------------------------------------ steps

    @property
    def step(self) -> StepNo:
        """The step that all members hold."""
        if self._begun_s is None:
            return self._before
        return StepNo(self._before + int((time.monotonic() - self._begun_s) / STEP_S))

    def runs(self, order: RunGroup) -> None:
        """Take in that a group runs."""
        if self.last_run is None or order.group > self.last_run.group:
            self.last_run = order
            self._before, self._begun_s = order.step, time.monotonic()

    def stand(self) -> None:
        """Make no more steps until the next group runs."""
        self._before, self._begun_s = self.step, None

    # ------------------------------------------------------------------ life

    async def begin(self) -> None:
        """Connect all of them, and have each speak in its turn from then on."""
        gate = asyncio.Semaphore(CONNECTING)

        async def connect(node: LightMember) -> None:
            async with gate:
                await node.connect()

        await asyncio.gather(*map(connect, self.nodes))
        self.tasks.append(asyncio.create_task(self._speak()))
        await self.until(self.all_alive, "each node has a life", PATIENCE_S)

    async def form(self) -> None:
        """Have all workers join, until all of them train."""
        self.may_join = True
        for node in self.nodes:
            node.speak()
        await self.until(self.all_run, "all members train", PATIENCE_S)

    async def lose(self, number: int) -> None:
        """Have a worker die in mid-step, until all others train."""
        before = self.last_run
        assert before is not None
        self.stand()
        self.nodes[number].die(ExitEvidence(signal=9))
        await self.until(lambda: self.last_run is not before, "the others form a group", PATIENCE_S)
        await self.until(self.all_run, "all others train", PATIENCE_S)

    async def ask_status(self) -> None:
        """Ask for the status of the job, as `paceline status` does."""
        client = ControlClient(self.job.control_address(), self.job.secret())
        status = await client.call(GetStatus(), timeout_s=PATIENCE_S)
        assert isinstance(status, JobStatus)
        states = Counter(node.state for node in status.nodes)
        assert states == {"running": self.size}, states

    async def _speak(self) -> None:
        """Give each its turn, evenly: independent machines do not speak all at once."""
        report_s, begun_s = spec_of(self.size).report_s, time.monotonic()
        words = reports = 0
        while True:
            await asyncio.sleep(TURN_S)
            turns = (time.monotonic() - begun_s) * self.size
            for turn in range(words, int(turns / SAY_S)):
                self.nodes[turn % self.size].speak()
            for turn in range(reports, int(turns / report_s)):
                self.nodes[turn % self.size].beat()
            words, reports = int(turns / SAY_S), int(turns / report_s)

    async def until(self, holds: Callable[[], bool], what: str, limit_s: float) -> None:
        """Wait until something holds.

        Raises:
            TimeoutError: it did not; says what.
        """
        deadline_s = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not within {limit_s:.0f} s: {what}")
            await asyncio.sleep(TURN_S)

    def all_alive(self) -> bool:
        """Whether each node has a life."""
        return all(node.alive for node in self.nodes)

    def all_run(self) -> bool:
        """Whether all living members work in the newest group."""
        last = self.last_run
        return last is not None and all(
            node.running and node.ran == last.group for node in self.nodes if node.alive
        )

    async def end(self) -> None:
        """Close all connections."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        streams = [node.stream for node in self.nodes if node.stream is not None]
        await asyncio.gather(*(stream.close() for stream in streams), return_exceptions=True)


class FleetMaster:
    """The master process of a fleet's job, started as a supervisor starts it."""

    def __init__(self, job: JobDir) -> None:
        self.log = job.logs / "master.log"
        self.job = job
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "paceline.master", str(job.path)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def cpu_s(self) -> float:
        """Processor time that it has used so far, of all its threads."""
        return harness.cpu_s(self.process.pid)

    async def cpu_per_s(self, seconds: float) -> float:
        """Part of a processor that it takes, over so many seconds."""
        cpu_s, begun_s = self.cpu_s(), time.monotonic()
        await asyncio.sleep(seconds)
        return (self.cpu_s() - cpu_s) / (time.monotonic() - begun_s)

    async def cpu_beyond(self, per_s: float, act: Awaitable[None]) -> float:
        """Processor time that it takes until something has happened.

        Args:
            per_s: part of a processor that it takes anyway, which does not count.
            act: ends when it has happened.
        """
        cpu_s, begun_s = self.cpu_s(), time.monotonic()
        await act
        return self.cpu_s() - cpu_s - per_s * (time.monotonic() - begun_s)

    def listens(self) -> bool:
        """Whether agents can connect.

        Raises:
            ArmError: it has ended.
        """
        if self.process.poll() is not None:
            raise harness.failure("master", f"ended with {self.process.returncode}", [self.log])
        return self.job.master_address.exists()

    def rss_mb(self) -> float:
        """Memory that it has, without what is on disk."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6

    def descriptors(self) -> int:
        """Number of descriptors that it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def kill(self) -> None:
        """End it as SIGKILL does; there is no supervisor that would start another."""
        self.process.kill()
        self.process.wait()


class FleetCosts(NamedTuple):
    """What a fleet costs its master, in seconds of a processor; parts are of one processor."""

    nodes: int
    descriptors: int
    connecting_s: float
    """Until all agents have connected, and each has a life."""
    waiting: float
    """Part that heartbeats take before there is a group."""
    forming_s: float
    """From when all want to train until all train, beyond ``waiting``."""
    steady: float
    """Part that it takes while all train: each member's progress comes with its node's report."""
    status_s: float
    """For an answer with the status, beyond ``steady``."""
    death_s: float
    """From a death in mid-step until all others train, beyond ``steady``."""
    rss_mb: float


async def costs_of(master: FleetMaster, size: int, steady_s: float = 10.0) -> FleetCosts:
    """Drive a fleet from its first connection to the step after a death.

    Args:
        master: of a job of `spec_of`, just started.
        size: number of nodes.
        steady_s: seconds over which what runs is measured.

    Raises:
        TimeoutError: the fleet did not come so far.
    """
    fleet = Fleet(master.job, size)
    try:
        await fleet.until(master.listens, "the master listens", START_S)
        connecting_s = await master.cpu_beyond(0.0, fleet.begin())
        waiting = await master.cpu_per_s(steady_s / 2)
        forming_s = await master.cpu_beyond(waiting, fleet.form())
        await asyncio.sleep(SETTLE_S)
        steady = await master.cpu_per_s(steady_s)
        status_s = await master.cpu_beyond(steady, fleet.ask_status())
        descriptors, rss_mb = master.descriptors(), master.rss_mb()
        death_s = await master.cpu_beyond(steady, fleet.lose(size // 2))
    finally:
        await fleet.end()
    return FleetCosts(
        nodes=size,
        descriptors=descriptors,
        connecting_s=connecting_s,
        waiting=waiting,
        forming_s=forming_s,
        steady=steady,
        status_s=status_s,
        death_s=death_s,
        rss_mb=rss_mb,
    )


@contextlib.contextmanager
def fleet_master(job: JobDir, size: int) -> Iterator[FleetMaster]:
    """Start a master for a fleet of this size; it ends with its context."""
    save(spec_of(size), job.spec)
    lock = try_lock(job.supervisor_lock)  # or the master would start a supervisor at its end
    assert lock is not None
    master = FleetMaster(job)
    try:
        yield master
    finally:
        master.kill()
        os.close(lock)
