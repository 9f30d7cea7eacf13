"""The agents of a job as the master hears them: their streams, and what comes through them."""

import logging
from typing import NamedTuple, assert_never

from paceline.base.disk import append_if_possible
from paceline.base.features import NONSENSE
from paceline.base.numbering import Inc
from paceline.master.facts import StreamEnded
from paceline.master.feature_parts import FeatureParts
from paceline.master.holding import EdgesTakes
from paceline.master.inbox import Inbox
from paceline.master.keeping import Keeping
from paceline.master.members import MembersEdge
from paceline.master.node_logs import NodeLogs
from paceline.master.node_sizes import NodeSizes
from paceline.master.parts import MasterParts, Times
from paceline.master.probing import MachineWatch
from paceline.master.serving import CutsServed
from paceline.master.training import Training, TrainingTakes
from paceline.protocol.nodes.agent import AgentTakes
from paceline.wire.control import AgentStream
from paceline.wire.messages.agent import (
    AgentHello,
    AgentUp,
    FromProcess,
    Heartbeat,
    Leave,
    LogLines,
    MachineProbed,
    MeetingFound,
    NodeLimited,
    ProcessExited,
)
from paceline.wire.messages.features import AgentFeatureSaid, FeatureSaid
from paceline.wire.messages.group import GroupStopped
from paceline.wire.messages.keeping import JournalHeld, KeeperLeaves
from paceline.wire.messages.node import (
    Finished,
    NodeUp,
    ProcessUp,
    ScriptError,
    TablesHeld,
)

MAX_REFUSALS_LOGGED = 1_000

_log = logging.getLogger(__name__)

AgentsTakes = ProcessUp | ScriptError | Finished | TablesHeld | FeatureSaid
"""Messages of processes about their lives, their memory and for features."""

RoomsTakes = LogLines | MachineProbed | MeetingFound | NodeLimited | JournalHeld | KeeperLeaves
"""Messages of agents that go to one room each, as they are."""


class AgentRooms(NamedTuple):
    """Rooms of the master that take what agents say."""

    training: Training
    members: MembersEdge
    features: FeatureParts
    sizes: NodeSizes
    keeping: Keeping
    machines: MachineWatch


class Agents:
    """Takes the messages of agents, and of their processes, to the machines that they concern."""

    def __init__(self, parts: MasterParts, times: Times, inbox: Inbox, rooms: AgentRooms) -> None:
        self._job, self._backend, self._outbox = parts.job, parts.backend, parts.outbox
        self._members, self._monitor = parts.members, parts.monitor
        self._times, self._inbox = times, inbox
        self._training, self._act = rooms.training, rooms.members.act
        self._features, self._rooms = rooms.features, rooms
        self._served = CutsServed(parts.job, rooms.training.cuts.folders)
        self._logs = NodeLogs(parts)
        self._sizes = rooms.sizes
        self._names: dict[AgentStream, str] = {}
        self._refused: set[tuple[str, str]] = set()

    def handle(self, stream: AgentStream, message: AgentUp | StreamEnded) -> None:
        """Handle a message; one that cannot be handled is no reason to give up the job.

        Args:
            stream: of an agent.
            message: what came through it.
        """
        try:
            self._handle(stream, message, self._times.own())
        except NONSENSE:
            body = message.body if isinstance(message, FromProcess) else message
            _log.exception(
                "message_dropped type=%s node=%s", type(body).__name__, self._names.get(stream)
            )

    def _handle(self, stream: AgentStream, message: AgentUp | StreamEnded, now_s: float) -> None:
        if isinstance(message, StreamEnded):
            self._stream_ended(stream)
            return
        if isinstance(message, AgentHello):
            self._hello(stream, message, now_s)
            return
        name = message.node
        if self._names.get(stream) != name or self._outbox.streams.get(name) is not stream:
            self._refuse(name, "not from the node's agent")
            return
        self._members.heard(name, now_s)
        self._from_agent(name, message, now_s)

    def _hello(self, stream: AgentStream, hello: AgentHello, now_s: float) -> None:
        name = hello.node
        node = self._members.roster.nodes.get(name)
        if node is not None and node.turns_away(hello):
            _log.warning("agent_turned_away node=%s pid=%d", name, hello.agent_pid)
            stream.send_nowait(Leave())
            return
        before = self._outbox.streams.get(name)
        if before is not None and before is not stream:
            before.end()
        self._names[stream] = name
        self._outbox.streams[name] = stream
        if node is None:
            self._refuse(name, "no node of this job")
        else:
            node.agent.is_remote, node.agent.host = bool(hello.files), _machine_of(hello)
            if not node.by_itself:
                self._backend.adopt(name, hello.launch, hello.agent_pid)
                self._monitor.restarts.joined(name, hello.size.cpu)
            self._sizes.hello(hello)
            self._logs.hello(stream, hello)
            self._rooms.keeping.hello(stream, hello)
        self._served.hello(stream, hello)
        self._features.agent_came(name)
        self._act(self._members.hello(hello, now_s))

    def _stream_ended(self, stream: AgentStream) -> None:
        name = self._names.pop(stream, "")
        if self._outbox.streams.get(name) is stream:
            del self._outbox.streams[name]
            self._sizes.gone(name)
            self._members.stream_lost(name, self._times.own())
            self._served.gone(name)
            self._rooms.keeping.gone(name)
            self._inbox.changed = True

    def tick(self) -> None:
        """Look after logs and files of cuts of nodes on other machines."""
        self._logs.tick(self._times.steady())
        self._served.tick(self._times.steady())

    def close(self) -> None:
        """End the service of cuts: the job has ended."""
        self._served.close()
        self._logs.close()

    def _from_agent(
        self,
        name: str,
        message: Heartbeat | FromProcess | ProcessExited | AgentFeatureSaid | RoomsTakes,
        now_s: float,
    ) -> None:
        if isinstance(message, RoomsTakes):
            self._for_room(message)
            return
        match message:
            case Heartbeat(facts=facts):
                if facts is not None and self._is_alive(name, facts.inc):
                    self._monitor.heartbeat(name, facts, self._times.steady())
                    self._features.reported(name, facts, self._times.steady())
            case FromProcess(body=body):
                self._from_process(name, body, now_s)
            case AgentFeatureSaid():
                self._features.heard_agent(message)
            case ProcessExited():
                self._keep_stacks(message)
                committed = bool(self._training.state.ledger.done)
                self._act(self._members.process_exited(message, now_s, any_committed=committed))
            case _:
                assert_never(message)

    def _for_room(self, message: RoomsTakes) -> None:
        match message:
            case LogLines():
                self._logs.add(message)
            case MachineProbed():
                self._rooms.machines.witnessed(message)
            case MeetingFound():
                self._rooms.members.meet(message)
            case JournalHeld() | KeeperLeaves():
                self._rooms.keeping.heard(message)
            case NodeLimited():
                self._sizes.limited(message)
            case _:
                assert_never(message)

    def _keep_stacks(self, message: ProcessExited) -> None:
        """Keep the stacks of a process that hung where people find them."""
        if message.evidence.stacks and self._is_alive(message.node, message.inc):
            stacks = f"incarnation {message.inc}\n{message.evidence.stacks}\n"
            append_if_possible(self._job.logs / f"{message.node}.stacks", stacks)

    def _from_process(self, name: str, body: NodeUp, now_s: float) -> None:
        if not self._is_alive(name, body.inc):
            self._refuse(name, f"of incarnation {body.inc}, which does not live there")
        elif isinstance(body, TrainingTakes | EdgesTakes):
            self._inbox.changed |= isinstance(body, GroupStopped)
            self._training.handle(name, body, self._times.steady())
        elif not isinstance(body, AgentTakes):
            self._about_life(name, body, now_s)

    def _about_life(self, name: str, body: AgentsTakes, now_s: float) -> None:
        match body:
            case ProcessUp():
                self._act(self._members.process_up(body, now_s))
            case ScriptError():
                self._members.script_error(body)
            case Finished():
                self._act(self._members.script_returned(body))
            case TablesHeld():
                self._monitor.tables[name] = body.tables
            case FeatureSaid():
                self._features.heard(name, body)
            case _:
                assert_never(body)

    def _is_alive(self, name: str, inc: Inc) -> bool:
        node = self._members.roster.node_of(inc)
        return node is not None and node.name == name and node.life.is_alive

    def _refuse(self, name: str, reason: str) -> None:
        """Log what should not come, once: it may come a thousand times a second."""
        if (name, reason) not in self._refused and len(self._refused) < MAX_REFUSALS_LOGGED:
            self._refused.add((name, reason))
            _log.warning("message_refused node=%s reason=%s", name, reason)


def _machine_of(hello: AgentHello) -> str:
    """The name of an agent's machine, with its address if it is another one than the master's."""
    address = hello.files.rpartition("/")[2].rpartition(":")[0]
    return f"{hello.host} ({address})" if address else hello.host
