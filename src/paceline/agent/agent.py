"""The agent of one node: between the master and the node's training process.

Carries out what `paceline.protocol.nodes.agent` decides; owns the connection to the master, the
link to the process, the heartbeat, and the watch over the job's supervisor. It outlives the master
and is outlived by its process; it exits when told to leave, when it is terminated, or when the job
directory is gone.
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, assert_never

import msgspec

from paceline.agent.cuts import CutsKept
from paceline.agent.facts import FactsReader
from paceline.agent.feature_parts import AgentParts
from paceline.agent.keeping import JournalKept
from paceline.agent.limits import change_limits, limit_node
from paceline.agent.log_sending import LogSender
from paceline.agent.master_link import MasterLink
from paceline.agent.process import ProcessHost, read_left_process
from paceline.agent.supervision import SupervisorWatch
from paceline.base.interfaces import free_port
from paceline.base.jobdir import JobDir, number_of, role_of
from paceline.base.joined import LEFT_ALONE, LEFT_OUT
from paceline.base.log_cap import LogCap
from paceline.base.machine_probe import answers
from paceline.base.node_files import NodeFiles
from paceline.cuts.reach import keep_servers, serve_files
from paceline.protocol.nodes.agent import (
    Act,
    Deliver,
    EndHung,
    ForkLife,
    KnowServers,
    MasterOrder,
    NodeState,
    Quit,
    Refuse,
    Report,
    Signal,
)
from paceline.wire.messages.agent import (
    AgentDown,
    AgentHello,
    AgentUp,
    ExitEvidence,
    FindMeeting,
    FromProcess,
    Heartbeat,
    LimitNode,
    MachineProbed,
    MeetingFound,
    NodeLimited,
    ProbeMachine,
    SendLog,
)
from paceline.wire.messages.features import AgentFeatureTold
from paceline.wire.messages.keeping import KeepingDown
from paceline.wire.messages.node import (
    Finished,
    GivenUp,
    KeepCut,
    NodeDown,
    NodeUp,
    ProcessUp,
    ScriptError,
    Stop,
)
from paceline.wire.node_link import NodeLinkServer
from paceline.wire.spec import JobSpec

GUARD_S = 1.0
"""Seconds between looks at the supervisor."""
TICK_S, SLOW_TICK_S = 0.1, 0.5
"""Seconds by which a time for an orderly end may be missed, and between two looks while none is
set: most agents wait most of the time."""
LAST_WORDS_S = 0.5
"""Seconds for which the report of a dead process waits for its messages in the socket."""
UNLINKED_S = 0.05
"""Seconds for which it waits if the process died before its connection was accepted."""
JOINED_WAIT_S = 60.0
"""Seconds for which an agent that joined on its own looks for the master before it leaves."""

_log = logging.getLogger(__name__)


class AgentEnding(NamedTuple):
    """How an agent on another machine has ended, for the command that runs it."""

    code: int = 0
    words: str = ""


class Agent:
    """One node's agent; create and `serve` it in a running event loop.

    Args:
        job: the job, or the directory of one node of it.
        node: the node's name.
        spec: of the job.
        launch: token of the launch; empty: nobody launched it.
    """

    def __init__(self, job: JobDir, node: str, spec: JobSpec, launch: str = "") -> None:
        self._job = job
        self._identity, self._launch = secrets.token_hex(8), launch
        #: True: another machine runs the job, so only the node has to be kept up.
        self._joined = job.is_joined
        self._node = node
        self._spec = spec
        self._files = NodeFiles(job, node)
        self._limits = limit_node(job, node, spec)
        self._features = AgentParts(job, node, spec, self._send)
        self._size = spec.of_role(role_of(node)).size_of(number_of(node))
        self._host = ProcessHost(
            job, node, spec, self._limits.group, self._on_forked, self._on_process_exit
        )
        adopted = read_left_process(job, node)
        self._stop_s = spec.timeouts.derived(None).stop_s or 0.0
        self._state = NodeState(node, adopted, stop_s=self._stop_s)
        self._link = NodeLinkServer(self._files.socket, self._on_process, self._on_link_lost)
        self._linked: dict[int, bool] = {}
        """Whether each incarnation that has ever connected is connected now."""
        self._ended: dict[int, ExitEvidence] = {}
        self._refused: set[int] = set()
        self._stacks = ""
        """Stacks of the threads of a process that hangs."""
        self._ending_hung: asyncio.Task[None] | None = None
        self._probes: set[asyncio.Task[None]] = set()
        self._facts = FactsReader(
            self._files.ledger, self._limits.group, counts_samples=spec.traits.trains
        )
        self._cuts = CutsKept(
            job,
            node,
            spec,
            answer=lambda kept: self._link.send(kept.inc, kept),
            report=lambda delayed: self._send(FromProcess(node=node, body=delayed)),
        )
        num_nodes = spec.workers.count + spec.num_servers
        self._files_served = serve_files(job, node, spec) if self._joined else None
        self._log_cap = LogCap(self._files.log, spec.log_bytes, num_nodes)
        self._master = MasterLink(job, node, self._on_connected, self._on_master)
        self._kept = JournalKept(job, node, self._identity, spec, self._master)
        self._log_sender = LogSender(self._files.log, node, self._log_cap, self._master)
        self._quit = asyncio.Event()
        self._terminated = self._is_left_alone = False
        self._supervisor = SupervisorWatch(job, node)
        if adopted:
            self._host.adopt(adopted)
            self._facts.skip_past()
        else:
            self._host.kill_strays()

    async def serve(self) -> AgentEnding:
        """Return when the node must be no more."""
        self._host.start_zygote()
        await self._link.start()
        self._look_for_room()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT) if self._joined else (signal.SIGTERM,):
            loop.add_signal_handler(number, self._on_terminate)
        loops = (
            self._master.follow(),
            self._beat(),
            self._guard(),
            self._tick(),
            *((self._kept.watch(),) if self._joined else ()),
        )
        tasks = [asyncio.create_task(each) for each in loops]
        quitting = asyncio.create_task(self._quit.wait())
        ends: set[asyncio.Future[Any]] = {*tasks, quitting, self._host.failed}
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            # Raises if it was not the end but a bug: then all stays as it is for a successor.
            task.result()
        self._log_sender.send_last(time.monotonic())
        self._kept.leave()
        await self._master.flush(LAST_WORDS_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._close()
        if self._is_left_alone:
            words = (
                f"no master of the job has answered for {JOINED_WAIT_S:.0f} s, so {self._node} has "
                "left; it is not known how the job ended, or whether it goes on"
            )
            return AgentEnding(LEFT_ALONE, words)
        if why := self._state.left_out:
            return AgentEnding(LEFT_OUT, f"the job goes on without {self._node}: {why}")
        return AgentEnding()

    async def _close(self) -> None:
        if self._files_served is not None:
            self._files_served.close()
        await self._kept.close()
        await self._link.close()
        await self._host.close()
        self._limits.group.remove()
        self._features.close()
        self._files.remove()

    # ------------------------------------------------------------------ acts

    def _do(self, acts: Iterable[Act]) -> None:
        for act in acts:
            match act:
                case ForkLife(start=start):
                    self._host.run(start)
                case Signal(number=number):
                    self._features.must_end()
                    self._host.signal(number)
                case EndHung():
                    self._ending_hung = asyncio.create_task(self._end_hung())
                case Refuse(up=up):
                    self._refuse(up)
                case Report(message=message):
                    self._send(message)
                case Deliver(body=body):
                    self._deliver(body)
                case KnowServers(servers=servers):
                    keep_servers(self._job, servers)
                case Quit():
                    self._quit.set()
                case _:
                    self._follow(act)

    def _follow(self, order: MasterOrder) -> None:
        match order:
            case AgentFeatureTold():
                self._features.told(order)
            case SendLog():
                self._log_sender.told(order)
            case ProbeMachine(machine=machine):
                self._probes.add(probe := asyncio.create_task(self._probe(machine)))
                probe.add_done_callback(self._probes.discard)
            case LimitNode(cpu=cpu, memory_bytes=memory_bytes):
                self._limit(cpu, memory_bytes)
            case FindMeeting(number=number):
                self._find_meeting(number)
            case _:
                assert_never(order)

    async def _probe(self, machine: str) -> None:
        answered = await answers(machine)
        self._send(MachineProbed(node=self._node, machine=machine, answered=answered))

    async def _end_hung(self) -> None:
        running = self._state.running
        if running is not None:
            try:
                self._stacks = await self._host.stacks(running.pid)
                _log.warning("hung node=%s inc=%d\n%s", self._node, running.inc, self._stacks)
            finally:
                if self._state.running == running:
                    self._host.signal(signal.SIGKILL)

    def _deliver(self, body: NodeDown) -> None:
        if isinstance(body, Stop | GivenUp):
            self._features.must_end()
        if running := self._state.running:
            self._link.send(running.inc, body)

    def _limit(self, cpu: float | None, memory_bytes: int | None) -> None:
        self._limits, note = change_limits(self._limits, self._node, cpu, memory_bytes)
        self._send(NodeLimited(node=self._node, hardware=self._limits.hardware, note=note))

    def _find_meeting(self, number: int) -> None:
        host = self._spec.listen
        try:
            address = f"{host}:{free_port(host)}"
        except OSError as error:  # the master asks again
            _log.warning("no_port node=%s host=%s error=%s", self._node, host, error)
            return
        self._send(MeetingFound(node=self._node, number=number, address=address))

    def _look_for_room(self) -> None:
        self._do(self._state.room(self._features.has_room(), time.monotonic()))

    def _send(self, message: AgentUp) -> None:
        self._master.send(message)

    def _refuse(self, up: ProcessUp) -> None:
        if up.pid not in self._refused:
            self._refused.add(up.pid)
            _log.warning("process_refused node=%s inc=%d pid=%d", self._node, up.inc, up.pid)
        self._host.kill(up.pid)

    # ------------------------------------------------------------------ the process

    def _on_forked(self, inc: int, pid: int) -> None:
        self._features.began()
        self._do(self._state.forked(inc, pid))

    def _on_process(self, message: NodeUp) -> None:
        if isinstance(message, ProcessUp):
            self._linked[message.inc] = True
        self._facts.heard()
        if isinstance(message, KeepCut):
            self._cuts.ask(message)
            return
        if isinstance(message, ScriptError | Finished):
            # The job may end with this message, and its lines must be there by then.
            self._log_sender.send_last(time.monotonic())
        self._do(self._state.on_process(message.inc, message, time.monotonic()))

    def _on_link_lost(self, inc: int) -> None:
        self._linked[inc] = False
        self._tell_exit(inc)

    def _on_process_exit(self, inc: int, evidence: ExitEvidence) -> None:
        self._log_cap.times.note(time.time(), last=True)
        self._log_sender.send_last(time.monotonic())
        self._report()  # its last steps
        step = self._facts.step_of(inc) if role_of(self._node) == "worker" else None
        self._ended[inc] = msgspec.structs.replace(evidence, stacks=self._stacks, step=step)
        self._stacks = ""
        waits_s = {True: LAST_WORDS_S, False: 0.0, None: UNLINKED_S}
        wait_s = waits_s[self._linked.get(inc)]
        asyncio.get_running_loop().call_later(wait_s, self._tell_exit, inc)

    def _tell_exit(self, inc: int) -> None:
        evidence = self._ended.pop(inc, None)
        if evidence is not None:
            self._linked.pop(inc, None)
            self._do(self._state.exited(inc, evidence))

    # ------------------------------------------------------------------ the master

    def _on_connected(self) -> None:
        self._log_sender.connected()
        running = self._state.running
        self._send(
            AgentHello(
                node=self._node,
                agent=self._identity,
                launch=self._launch,
                agent_pid=os.getpid(),
                host=socket.gethostname(),
                running=(running,) if running else (),
                note=self._limits.note,
                hardware=self._limits.hardware,
                files=self._files_served.address if self._files_served is not None else "",
                size=self._size,
                log=self._log_sender.source if self._joined else "",
                may_keep=self._joined and self._kept.may_keep,
            )
        )
        self._features.connected()
        self._do(self._state.connected())

    def _on_master(self, message: AgentDown) -> None:
        if isinstance(message, KeepingDown):
            self._kept.told(message)
            return
        self._do(self._state.on_master(message, time.monotonic()))

    # ------------------------------------------------------------------ the clock

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._spec.report_s)
            self._report()
            self._log_cap.times.note(time.time())

    def _report(self) -> None:
        if self._features.holds():
            self._facts.heard()
        running = self._state.running
        facts = self._facts.read(running) if running and running.pid else None
        if facts is not None:
            # Without a group nothing is known, and what the zygote shares would pass for all.
            used = self._limits.group.memory_used()
            used += self._host.shared_bytes if used else 0
            facts = msgspec.structs.replace(facts, memory_bytes=used)
        self._send(Heartbeat(node=self._node, facts=facts))

    async def _tick(self) -> None:
        capping: asyncio.Future[None] | None = None
        looked_s = 0.0
        while True:
            due = self._state.must_end or self._features.ticks or self._log_sender.is_asked
            await asyncio.sleep(TICK_S if due else SLOW_TICK_S)
            now_s = time.monotonic()
            self._features.tick(now_s)
            self._do(self._state.tick(now_s))
            self._look_for_room()
            self._log_sender.send(now_s)
            if now_s < looked_s + SLOW_TICK_S:
                continue
            looked_s = now_s
            if capping is not None and capping.done():
                capping.result()  # raises what it raised
                capping = None
            if capping is None and self._log_sender.may_be_large:
                # In a thread: the tail of a large log takes the disk a while.
                look = self._log_sender.look
                capping = asyncio.get_running_loop().run_in_executor(None, look)

    async def _guard(self) -> None:
        while True:
            await asyncio.sleep(GUARD_S)
            if not self._job.path.is_dir():
                _log.warning("job_directory_gone node=%s", self._node)
                self._do(self._state.leave(0.0, time.monotonic()))
            elif not self._joined:
                self._supervisor.look()
            elif self._master.silent_s() > JOINED_WAIT_S:
                _log.warning("master_gone node=%s: leaving", self._node)
                self._is_left_alone = True
                self._do(self._state.leave(0.0, time.monotonic()))

    def _on_terminate(self) -> None:
        """SIGTERM: end the process in order; the second one: at once."""
        grace_s = 0.0 if self._terminated else self._stop_s
        self._terminated = True
        self._do(self._state.leave(grace_s, time.monotonic()))
