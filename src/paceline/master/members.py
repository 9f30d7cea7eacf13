"""The edge around `Membership`: carries out what it says, and orders about nodes."""

from collections.abc import Callable, Iterable
from typing import assert_never

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.numbering import Inc
from paceline.base.pacing import Pacing
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
from paceline.protocol.nodes.platform import AgentGone, AnyWord, NodePlaces, PlaceDraining
from paceline.wire.events.base import Event
from paceline.wire.events.nodes import NotMovedAwayEvent
from paceline.wire.messages.agent import StopProcess

LEAVE_AGAIN_S = 3.0
"""Seconds between two attempts of a node to leave a place that drains: a server that was to take
its place may have failed, and the next one needs as long to come up."""


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
        self._roster = parts.members.roster
        self._monitor, self._times, self._told = parts.monitor, times, told
        self._inbox, self._end, self._training = inbox, end, training
        self._orders, self._places = NodeOrders(parts.members), NodePlaces(parts.members)
        self._leaves_again_s: dict[str, float] = {}
        """Earliest time at which a node that could not leave its place tries again."""
        self._not_moved: dict[str, tuple[Inc, str]] = {}
        """Why a node could not leave a place that drains, as it was told."""
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
                    port = find_port(self._spec)
                    self.act(self._members.meet_at(port, self._times.own()))
                case Launch() | Start() | EndLife() | Retire():
                    self._order(act)
                case _:
                    assert_never(act)

    def _order(self, act: Launch | Start | EndLife | Retire) -> None:
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
            case Retire(node=node):
                self._outbox.retire(node)
            case _:
                assert_never(act)

    def _tell(self, event: Event) -> None:
        self._outbox.tell(event)
        self._monitor.note(event, self._times.steady())
        for watch in self.watchers:
            watch(event)

    # ------------------------------------------------------------------ what concerns nodes

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
        self._leave_draining()
        self.look_for_departed()

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
        self.act(self._places.departed(self._times.own(), group_broke=broke))

    def machine_gone(self, nodes: Iterable[Node]) -> None:
        """Give up the nodes of a machine that answers nobody."""
        self.act(self._places.without_machine(nodes, self._times.own()))

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
        """Take in what the backend says of a node; one whose place goes away leaves it in order."""
        acts = self._places.heard(word, self._times.own())
        if isinstance(word, AgentGone) and word.node not in self._roster.nodes:
            self._outbox.vacate(word.node)
        self.act(acts)
        if isinstance(word, PlaceDraining):
            self._leave_draining()

    def _leave_draining(self) -> None:
        """Have nodes leave places that drain; what fails or is refused now is tried again."""
        now_s = self._times.own()
        for leaver in self._places.leavers(now_s):
            name, inc = leaver.node, self._roster.nodes[leaver.node].life.inc
            if now_s < self._leaves_again_s.get(name, now_s):
                continue
            self._leaves_again_s[name] = now_s + LEAVE_AGAIN_S
            try:
                self.restart(name, leaver.why, leaver.within_s)
            except ConfigError as error:  # told once, though it is tried again
                if self._not_moved.get(name) != (inc, str(error)):
                    self._not_moved[name] = inc, str(error)
                    self._tell(NotMovedAwayEvent(node=name, inc=inc, reason=str(error)))

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
