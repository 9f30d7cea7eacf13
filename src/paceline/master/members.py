"""The edge around `Membership`: carries out what it says, and orders about nodes."""

import socket
from collections.abc import Callable, Iterable
from typing import assert_never

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.pacing import Pacing
from paceline.jobs.handed_on import read_taken
from paceline.master.inbox import Inbox
from paceline.master.job_end import JobEnd
from paceline.master.meeting import find_port
from paceline.master.parts import MasterParts, Times
from paceline.master.restarts import StartMeasured
from paceline.master.training import ForNodes, Training
from paceline.protocol.acts import Moved, NotMoved, WorkerRefused
from paceline.protocol.nodes.node import (
    Act,
    EndLife,
    FailJob,
    FindPort,
    HangUp,
    JoinerLost,
    KeepRecord,
    Launch,
    Node,
    Retire,
    ServersChanging,
    Start,
    WorkerLost,
    WorkerUp,
)
from paceline.protocol.nodes.orders import NodeOrders
from paceline.protocol.nodes.platform import AgentGone, AnyWord, NodePlaces, NodeStopped, PlaceTaken
from paceline.wire.events.base import Event
from paceline.wire.events.job import MasterMovedEvent
from paceline.wire.messages.agent import FindMeeting, MeetingFound, StopProcess


class MembersEdge:
    """The nodes of one job, acted on.

    Args:
        told: what features tell a node's next life, with the order to start it.
    """

    def __init__(
        self,
        parts: MasterParts,
        times: Times,
        told: Callable[[str], dict[str, msgspec.Raw]],
        inbox: Inbox,
        end: JobEnd,
        training: Training,
    ) -> None:
        self._spec, self._members, self._outbox = parts.spec, parts.members, parts.outbox
        self._job = parts.job
        self._roster = parts.members.roster
        self._monitor, self._times, self._told = parts.monitor, times, told
        self._inbox, self._end, self._training = inbox, end, training
        self._orders, self.places = NodeOrders(parts.members), NodePlaces(parts.members)
        self._looking, self._judging = Pacing(), Pacing()
        self._withdrawn: ServersChanging | None = None
        """A change of the servers that nobody wants any more."""
        self.watchers: list[Callable[[Event], None]] = []
        """Take in each event of a node."""

    # ------------------------------------------------------------------ instructions

    def act(self, acts: Iterable[Act]) -> None:
        """Carry out what the membership says."""
        for act in acts:
            self._inbox.changed = True
            match act:
                case KeepRecord(record=record):
                    self._outbox.record(record)
                case Event():
                    self._tell(act)
                case WorkerUp(inc=inc):
                    self._training.worker_up(inc)
                case WorkerLost(inc=inc):
                    self._training.worker_lost(inc)
                case JoinerLost(inc=inc):
                    self._training.edge.joiner_lost(inc)
                case FailJob():
                    self._end.fail(act.reason, act.traceback, act.exit_code)
                case FindPort():
                    self._find_meeting(act.node)
                case Launch() | Start() | EndLife() | Retire() | HangUp():
                    self._order(act)
                case _:
                    assert_never(act)

    def _find_meeting(self, node: str) -> None:
        """Find where the next round meets, or have a node's agent find it (`MeetingFound`)."""
        rounds = self._members.rounds
        if node and rounds is not None:
            self._outbox.to_agent(node, FindMeeting(number=rounds.number))
            return
        self.act(self._members.meet_at(find_port(self._spec), self._times.own()))

    def meet(self, found: MeetingFound) -> None:
        """Begin the next round there: an agent has found where its workers can meet."""
        host, _, port = found.address.rpartition(":")
        now_s, number, node = self._times.own(), found.number, found.node
        self.act(self._members.meet_at(int(port), now_s, host=host, number=number, node=node))

    def _order(self, act: Launch | Start | EndLife | Retire | HangUp) -> None:
        """Have the backend, or a node's agent, carry out an act."""
        match act:
            case Launch(node=node):
                life = self._roster.nodes[node].life
                self._outbox.launch(node, may_move=not life.is_alive)
                first = life.inc == 0
                self._monitor.restarts.launched(node, self._times.steady(), first=first)
            case Start(node=node, message=start):
                start = msgspec.structs.replace(start, told=self._told(node))
                self._outbox.to_agent(node, start)
            case EndLife(node=node, inc=inc, grace_s=grace_s, hung=hung):
                self._outbox.to_agent(node, StopProcess(inc=inc, grace_s=grace_s, hung=hung))
            case Retire(node=node, why=why):
                self._outbox.retire(node, why)
            case HangUp(node=node):
                self._outbox.hang_up(node)
            case _:
                assert_never(act)

    def _tell(self, event: Event) -> None:
        self._outbox.tell(event)
        self._monitor.note(event, self._times.steady())
        for watch in self.watchers:
            watch(event)

    # ------------------------------------------------------------------ what concerns nodes

    def taken_over(self) -> None:
        """Drop the nodes of the machine that had the master before, if this is another one."""
        taken = read_taken(self._job)
        if taken is None:
            return
        after_s = max(0.0, self._times.wall() - taken.lost_s)
        host = socket.gethostname()
        self._tell(MasterMovedEvent(before=taken.before, host=host, after_s=after_s))
        self.act(self._members.machine_lost(taken.beside, f"its machine {taken.before} is gone"))
        self._outbox.later(self._job.taken_over.unlink)  # said twice it is the same

    def follow(self, found: ForNodes) -> None:
        """Do what follows from a finding of the training."""
        match found:
            case Moved():
                change, now_s = self._roster.change, self._times.steady()
                for name in change.joining if change is not None else ():
                    replaced = change.replaced if change is not None else ""
                    self._monitor.restarts.works(name, now_s, replaces=replaced)
                self.act(self._members.changed())
            case NotMoved(futile=futile):
                withdrawn = self._withdrawn is not None and self._withdrawn == self._roster.change
                futile = futile and not withdrawn
                self.act(self._members.not_changed(futile=futile, withdrawn=withdrawn))
            case WorkerRefused(inc=inc, reason=reason):
                self.act(self._orders.refuse(inc, reason))
            case _:
                assert_never(found)

    def started(self, measured: StartMeasured) -> None:
        """A node works: keep what its start has cost, and tell it."""
        self._outbox.record(measured)
        self._monitor.restarts.apply(measured)
        self.act([measured.event])

    def tick(self) -> None:
        """Judge whose silence has lasted too long."""
        if self._judging.is_due(self._times.steady()):
            with self._judging.doing(self._times.steady()):
                self._judge_silence()
        self.look_for_departed()
        self._outbox.launch_overdue()

    def _judge_silence(self) -> None:
        state = self._training.state
        timeouts = self._spec.timeouts.derived(self._monitor.step_s())
        lost_after_s = timeouts.lost_after_s or 0.0
        stalled = self._times.steady() - self._monitor.progress_s > lost_after_s
        acts = self._members.tick(
            self._times.own(),
            lost_after_s=lost_after_s,
            others_wait=stalled or bool(state.waiting),
            any_committed=bool(state.ledger.done),
        )
        self.act(acts)

    def look_for_departed(self) -> None:
        """Give up the nodes of machines that are gone."""
        broke = self._training.edge.group_broke
        self.act(self.places.departed(self._times.own(), group_broke=broke))

    def machine_gone(self, nodes: Iterable[Node]) -> None:
        """Give up the nodes of a machine that answers nobody."""
        self.act(self.places.without_machine(nodes, self._times.own()))

    def look_for_hang(self) -> None:
        """End the process that hangs; if all members wait, have them form their group again."""
        steady_s = self._times.steady()
        if not self._looking.is_due(steady_s):
            return
        timeouts = self._spec.timeouts.derived(self._monitor.step_s())
        hang_s = timeouts.hang_s or 0.0
        with self._looking.doing(steady_s):
            hang = self._training.edge.find_hang(hang_s, steady_s)
        if hang is None or self._outbox.has_healed_within(hang_s):
            return
        now_s = self._times.own()
        for name in hang.nodes:
            self.act(self._orders.hung(name, now_s, hang.since_s, silent=hang.silent))
        if not hang.nodes:
            self._training.edge.reconnect(hang.since_s)

    def platform_said(self, word: AnyWord) -> None:
        """Take in what the backend says of a node."""
        acts = self.places.heard(word, self._times.own())
        if isinstance(word, AgentGone) and word.node not in self._roster.nodes:
            self._outbox.vacate(word.node)
        if isinstance(word, PlaceTaken):
            self._monitor.restarts.placed(word.node, self._times.steady())
        if isinstance(word, NodeStopped):
            self._outbox.stopped(word.node)
        self.act(acts)

    # ------------------------------------------------------------------ orders

    def alive(self, name: str) -> Node:
        """Find a living node.

        Raises:
            ConfigError: there is none of this name; names those that there are.
        """
        node = self._roster.nodes.get(name)
        if node is None or not node.life.is_alive:
            nodes = self._roster.nodes.values()
            names = ", ".join(node.name for node in nodes if node.life.is_alive)
            raise ConfigError(f"no live node {name!r}; there are: {names or 'none'}")
        return node

    def scale(self, workers: int) -> None:
        """Set the number of workers."""
        self.act(self._orders.scale(workers, self._times.own(), self._stop_s()))

    def scale_servers(self, servers: int) -> None:
        """Set the number of servers.

        Raises:
            ConfigError: it cannot be done now, or not in this job.
        """
        self._check_may_move()
        self.act(self._orders.scale_servers(servers, self._times.own()))

    def withdraw_servers(self) -> bool:
        """Withdraw the change of the servers that is under way; tell whether it is over.

        Buckets that have moved stay where they are. Until the leader has said which is true, ask
        again.
        """
        roster, edge = self._roster, self._training.edge
        if roster.change is None:
            return True
        self._withdrawn = roster.change
        if edge.is_moving:
            edge.give_up_move()
        else:
            self.act(self._members.not_changed(futile=False, withdrawn=True))
        return roster.change is None

    def _check_may_move(self) -> None:
        """Refuse to move buckets while some move, or where none can."""
        replaced = self._roster.being_replaced
        if self._roster.change is not None or self._training.edge.is_moving:
            what = f"{replaced} is being replaced" if replaced else ""
            raise ConfigError(
                f"a change of the servers is under way: {what or 'their number changes'}; wait "
                "until that is over (`paceline status` shows the servers)"
            )
        if why := self._spec.unmovable:
            raise ConfigError(why)

    def kill(self, name: str) -> None:
        """End a living node's process at once, as a crash would.

        Raises:
            ConfigError: see `alive`.
        """
        self.act(self._orders.kill(self.alive(name).name))

    def join(self, host: str) -> str:
        """Add a worker, whose agent is about to be started on that host; its name."""
        name, acts = self._orders.join(host, self._times.own())
        self.act(acts)
        return name

    def join_machine(self, host: str) -> tuple[str, ...]:
        """Give a machine the workers of one that the job waits for; their names.

        Raises:
            ConfigError: all machines are there.
        """
        names, acts = self._orders.join_machine(host, self._times.own())
        if not names:
            raise ConfigError(
                f"all {self._spec.machines} machines of the job are there; of one that has just "
                "gone the place is open within a minute: join again then"
            )
        self.act(acts)
        return names

    def restart(self, name: str, reason: str, within_s: float | None = None) -> None:
        """KILL_RESTART: a worker ends in order and starts again; a server's buckets move first.

        Raises:
            ConfigError: it cannot be done now, or not in this job.
        """
        now_s = self._times.own()
        if self.alive(name).role == "worker":
            self._training.cuts.check_may_leave(self._times.steady())
            grace_s = self._stop_s() if within_s is None else min(self._stop_s(), within_s)
            self.act(self._orders.restart(name, now_s, grace_s, reason))
            return
        self._check_may_move()
        self.act(self._orders.replace_server(name, now_s, reason))

    def close(self) -> None:
        """Have all workers' processes end in order; none starts again."""
        self.act(self._members.close(self._times.own(), self._stop_s()))

    def _stop_s(self) -> float:
        """Seconds that a process has to end in."""
        return self._spec.timeouts.derived(self._monitor.step_s()).stop_s or 0.0
