"""Who belongs to the job and in which life: a pure machine, facts in, instructions out.

It owns the nodes (``worker-0`` …, ``server-0`` …), gives every life of a node's training process
an incarnation number, decides what an end means (by `paceline.protocol.nodes.exits`) and when to
start again. The clock is an argument. What must survive the master's death is a record, journalled
before any instruction of the same answer is carried out; the rest is told anew by the agents.

Silence (DESIGN, section 6): an agent that says nothing is replaced after ``lost_after_s``; that
harms no process, its successor takes over whatever runs. The process itself is given up only when
an agent says that it is gone, or when no agent can be had for another ``lost_after_s`` (long enough
for one to start) *and* others wait for it. The clock is the master's own time, which stands still
while the master does not run (`paceline.master.own_time`).

Workers of strategies script and fsdp live in rounds (`paceline.protocol.nodes.rounds`): when one
fails all end, and when all have ended, they begin again together.

A worker may also come by itself (`join`): the same in everything, but nobody can launch an agent
for it. It is awaited as long as others would be, and then dropped.
"""

import itertools
from collections.abc import Container, Iterator

from paceline.protocol.nodes.exits import NO_CAUSE, Evidence, Judged, is_free, judge
from paceline.protocol.nodes.node import (
    Act,
    End,
    FailJob,
    JobEnded,
    JoinerLost,
    Keep,
    Launch,
    MemberRecords,
    Node,
    NodeDropped,
    NodeFinished,
    NodeJoined,
    NodeRefused,
    NodeStarted,
    RestartOrdered,
    Retire,
    RoundSet,
    ServerAdded,
    ServersWanted,
    ServerTook,
    Start,
    WorkerLost,
    WorkersWanted,
    WorkerUp,
)
from paceline.protocol.nodes.rounds import Ended, Rounds
from paceline.wire.events.job import ScaledEvent
from paceline.wire.events.nodes import (
    AgentJoinedEvent,
    AgentLostEvent,
    FencedEvent,
    HungEvent,
    KilledEvent,
    KillRestartEvent,
    LeftOutEvent,
    NodeLostEvent,
    NodeStartedEvent,
    NotReplacedEvent,
    ProcessUpEvent,
    RelaunchEvent,
    ReplacedEvent,
    ReplacingEvent,
    RestartAllEvent,
    Verdict,
)
from paceline.wire.messages.agent import AgentHello, ExitEvidence, ProcessExited, StartProcess
from paceline.wire.messages.base import Server
from paceline.wire.messages.node import Finished, ProcessUp, ScriptError
from paceline.wire.spec import RestartSpec

NOBODY = -1
"""An agent that a former master told to start: which one is not known."""
MISSING_S = 1.0
"""A new agent that does not know its node's process: its word about the end may be on its way."""
REPEAT_START_S = 2.0
"""A StartProcess that got no answer is sent again."""
REPEAT_END_S = 2.0
"""The same for the StopProcess of a KILL_RESTART, of a round that is over, or of the job's end."""
AGENT_START_S = 5.0
"""Time for the first word of an agent launched in place of a silent one, on a loaded machine."""
FIRST_HELLO_S = 60.0
"""A launched agent whose first word takes longer is launched again."""
BRIEF, PATIENCE = 10, 8
"""An agent that falls silent within so many times the limit is brief: its successor has twice as
long, up to so many times. A machine too busy for its agents would be made busier by new ones."""


class Membership:
    """The machine."""

    def __init__(
        self,
        *,
        num_workers: int,
        num_servers: int,
        restart: RestartSpec,
        pending_s: float = 0.0,
        rounds: Rounds | None = None,
    ) -> None:
        """``pending_s``: how long a launch may have to wait for its place, which is no silence.

        ``rounds``: workers start and restart together; None: each by itself.
        """
        self.rounds = rounds
        self._restart = restart
        self._num_servers = num_servers
        self._pending_s = pending_s
        self._next_inc = 1
        #: When relaunches were made that cost budget, as far as they count.
        self._relaunched_s: list[float] = []
        self.num_workers = num_workers
        self.nodes: dict[str, Node] = {}
        self._by_inc: dict[int, Node] = {}
        self.closing = False
        #: For workers to end in order, once they were told to; None: they were not.
        self._closing_grace_s: float | None = None
        for index in range(num_servers):
            self._add("server", index)
        for index in range(num_workers):
            self._add("worker", index)

    def _add(self, role: str, index: int) -> Node:
        node = Node(f"{role}-{index}", role, index)
        self.nodes[node.name] = node
        return node

    # ------------------------------------------------------------------ records

    def apply(self, record: MemberRecords) -> None:
        """The only way durable state changes."""
        match record:
            case NodeStarted():
                node = self.nodes.get(record.node) or self._add(*_role_and_index(record.node))
                self._by_inc.pop(node.inc, None)
                self._next_inc = max(self._next_inc, record.inc + 1)
                node.inc, node.alive, node.round_no = record.inc, True, record.round_no
                node.unblamed = node.moving = False
                node.restarts, node.decided = record.restarts, record.decided
                node.previous, node.repeats = record.previous, record.repeats
                self._by_inc[node.inc] = node
            case NodeFinished():
                node = self.nodes[record.node]
                node.state, node.alive = "finished", False
                node.joined |= record.joined
            case NodeRefused():
                node = self.nodes[record.node]
                node.state, node.note, node.alive = "failed", record.reason, False
            case WorkersWanted():
                self._next_inc = max(self._next_inc, record.next_inc)
                self._resize(record.count)
            case ServersWanted():
                self._resize_servers(record.count)
            case NodeJoined():
                node = self.nodes.get(record.node) or self._add(*_role_and_index(record.node))
                node.guest = True
                self.num_workers = max(self.num_workers, node.rank + 1)
            case NodeDropped():
                self._apply_drop(record)
            case RestartOrdered():
                node = self.nodes[record.node]
                node.unblamed = node.moving = True
                node.end_grace_s = record.grace_s
            case ServerAdded() | ServerTook():
                self._apply_server(record)
            case RoundSet():
                self._apply_round(record)
            case JobEnded():
                self._apply_end()

    def _apply_drop(self, record: NodeDropped) -> None:
        if record.node in self.nodes:
            old = self.nodes.get(self.nodes[record.node].replaces)
            if old is not None and record.futile:
                old.decided += 1
            self._forget(self.nodes[record.node])
        staying = (node.rank for node in self.of_role("worker") if not node.leaving)
        self.num_workers = max(staying, default=-1) + 1

    def _apply_end(self) -> None:
        for node in self.nodes.values():
            node.restarts, node.previous, node.alive = 0, None, False
            node.state = "pending" if node.state == "failed" else node.state
        if self.rounds is not None and not self.all_finished():
            self._apply_round(RoundSet(number=self.rounds.number + 1))

    def _apply_round(self, record: RoundSet) -> None:
        if self.rounds is None:
            return
        if record.number > self.rounds.number:
            for node in self.of_role("worker"):
                if node.state == "finished":
                    node.state, node.needs_launch = "pending", True
        self.rounds.number, self.rounds.port = record.number, record.port

    def _apply_server(self, record: ServerAdded | ServerTook) -> None:
        if isinstance(record, ServerAdded):
            node = self.nodes.get(record.node) or self._add(*_role_and_index(record.node))
            node.replaces = record.replaces
            if record.replaces in self.nodes:
                # Being replaced did not help if this one is slow, too.
                node.decided = self.nodes[record.replaces].decided + 1
        else:
            node = self.nodes[record.node]
            if node.replaces in self.nodes:
                self.nodes[node.replaces].leaving = True
            node.replaces = ""

    def _resize(self, count: int) -> None:
        for index in range(self.num_workers, count):
            name = f"worker-{index}"
            if name in self.nodes and self.nodes[name].leaving:
                self._forget(self.nodes[name])
            if name not in self.nodes:
                self._add("worker", index)
        for node in self.of_role("worker"):
            node.leaving = node.leaving or node.rank >= count
        self.num_workers = count

    def _resize_servers(self, count: int) -> None:
        joining = [node for node in self.of_role("server") if node.replaces]
        servers = [n for n in self.of_role("server") if not (n.leaving or n.replaces)]
        for node in [*servers[count:], *joining]:
            self._forget(node)
        free = (index for index in itertools.count() if f"server-{index}" not in self.nodes)
        for index in list(itertools.islice(free, max(0, count - len(servers)))):
            self._add("server", index)

    def _forget(self, node: Node) -> None:
        self._by_inc.pop(node.inc, None)
        del self.nodes[node.name]

    def snapshot(self) -> list[MemberRecords]:
        """Records that stand for all that were applied."""
        kept: list[MemberRecords] = [WorkersWanted(count=self.num_workers, next_inc=self._next_inc)]
        names = (f"worker-{rank}" for rank in range(self.num_workers))
        kept += [NodeDropped(node=name) for name in names if name not in self.nodes]
        if self.rounds is not None:
            kept.append(RoundSet(number=self.rounds.number, port=self.rounds.port))
        first = (f"server-{rank}" for rank in range(self._num_servers))
        kept += [NodeDropped(node=name) for name in first if not self._stays(name)]
        for node in self.nodes.values():
            if node.guest:
                kept.append(NodeJoined(node=node.name))
            if node.role == "server" and self._stays(node.name):
                kept.append(ServerAdded(node=node.name, replaces=node.replaces))
            if node.inc and (node.role == "worker" or self._stays(node.name)):
                kept.append(_started(node, node.inc, node.round_no))
            if node.moving:
                kept.append(RestartOrdered(node=node.name, grace_s=node.end_grace_s))
            if node.state == "finished":
                kept.append(NodeFinished(node=node.name, joined=node.joined))
            if node.state == "failed":
                kept.append(NodeRefused(node=node.name, reason=node.note))
        return kept

    def _stays(self, name: str) -> bool:
        return name in self.nodes and not self.nodes[name].leaving

    def _keep(self, record: MemberRecords) -> Keep:
        self.apply(record)
        return Keep(record)

    # ------------------------------------------------------------------ what is there

    def of_role(self, role: str) -> Iterator[Node]:
        """All nodes of a role, those on their way out included."""
        return (node for node in self.nodes.values() if node.role == role)

    def wanted_workers(self) -> Iterator[Node]:
        """Those that are to train: alive, or expected back."""
        ended = ("finished", "failed")
        return (n for n in self.of_role("worker") if not n.leaving and n.state not in ended)

    def node_of(self, inc: int) -> Node | None:
        """The node that ``inc`` is the newest life of; None: old, or never given."""
        return self._by_inc.get(inc)

    def servers(self) -> tuple[Server, ...] | None:
        """All servers with their addresses; None: some are not up.

        One that is to take another's place counts from when it has taken it.
        """
        nodes = [n for n in self.of_role("server") if not (n.replaces or n.leaving)]
        if not all(node.up and node.up.address for node in nodes):
            return None
        return tuple(Server(n.inc, n.name, n.up.address) for n in nodes if n.up)

    def all_finished(self) -> bool:
        """Whether the scripts of all workers that count have returned."""
        return all(n.state == "finished" for n in self._counting())

    def _counting(self) -> Iterator[Node]:
        """Workers without which the job does not end well."""
        workers = self.of_role("worker")
        return (n for n in workers if not (n.leaving or n.state == "failed"))

    @property
    def joined(self) -> bool:
        """Whether the script of some worker called ``pl.init`` before it returned."""
        return any(node.joined for node in self.nodes.values())

    def num_restarts(self) -> int:
        """Relaunches so far, of the whole job."""
        return sum(node.restarts for node in self.nodes.values())

    def _wanted(self, node: Node) -> bool:
        return not (node.leaving or self.closing or node.state in ("finished", "failed"))

    # ------------------------------------------------------------------ agents

    def begin(self, now_s: float, awaited: Container[str] = ()) -> list[Act]:
        """At the master's start: launch every node but those whose agent may still be there."""
        acts: list[Act] = []
        for node in list(self.nodes.values()):
            if node.leaving:
                acts += self._gone_for_good(node)
            if not self._wanted(node):
                continue
            node.heard_s, node.started_by = now_s, NOBODY
            if node.guest or node.name in awaited:
                node.state, node.greeted = "lost", True
            else:
                node.unblamed = node.inc > 0
                acts += self._launch(node, now_s)
        return acts

    def _gone_for_good(self, node: Node) -> list[Act]:
        """A node that was scaled away has left, or is to be ended by whoever finds it."""
        acts = self._lost(node)
        self._forget(node)
        return [*acts, Retire(node.name)]

    def _drop(self, node: Node, reason: str, silent_s: float | None = None) -> list[Act]:
        """A node that came by itself does not come back."""
        told = NodeLostEvent(node=node.name, inc=node.inc, reason=reason, silent_s=silent_s)
        return [told, *self._lost(node), self._keep(NodeDropped(node=node.name))]

    def _launch(self, node: Node, now_s: float) -> list[Act]:
        node.connected = node.greeted = node.needs_launch = False
        node.heard_s, node.missing_since_s = now_s, None
        if not node.alive:
            node.state = "pending"
        return [Launch(node.name)]

    def hello(self, message: AgentHello, now_s: float) -> list[Act]:
        """An agent has connected and says what runs on its node."""
        node = self.nodes.get(message.node)
        if node is None or not self._may_serve(node):
            return [Retire(message.node)]
        acts: list[Act] = []
        if node.agent_pid != message.agent_pid:
            pid = message.agent_pid
            acts.append(AgentJoinedEvent(node=node.name, inc=node.inc, pid=pid))
        is_new, node.greeted = not node.greeted, True
        node.greeted_s = now_s if is_new else node.greeted_s
        node.agent_pid, node.connected = message.agent_pid, True
        node.heard_s, node.replaced = now_s, False
        running = next((up for up in message.running if up.inc == node.inc), None)
        if not node.alive:
            return [*acts, *self._start_if_due(node, now_s)]
        if running is not None:
            node.missing_since_s = None
            return [*acts, *self.process_up(running, now_s)]
        if node.up is None and node.started_by == message.agent_pid:
            return [*acts, self._start_message(node, now_s)]
        # Another agent than the one it was started by: it ran there, or may have. An agent that was
        # launched since knows nothing of how it ended.
        node.missing_since_s = now_s - (MISSING_S if is_new else 0.0)
        return acts

    def _may_serve(self, node: Node) -> bool:
        return node.state not in ("finished", "failed") and (node.alive or self._wanted(node))

    def heard(self, name: str, now_s: float) -> None:
        """Anything came from the node's agent."""
        node = self.nodes.get(name)
        if node is not None:
            node.heard_s, node.replaced = now_s, False

    def stream_lost(self, name: str) -> None:
        """The agent's connection broke; it may come back."""
        node = self.nodes.get(name)
        if node is not None:
            node.connected = False

    def agent_ended(self, name: str, agent_pid: int, reason: str, now_s: float) -> list[Act]:
        """The backend's word: this agent is gone. Its process goes on and awaits the next one."""
        node = self.nodes.get(name)
        if node is None or (node.greeted and agent_pid not in (0, node.agent_pid)):
            return []
        node.connected = False
        if not self._may_serve(node):
            return []
        if node.leaving:
            # Nobody is left to end the process in order: the backend cleans up.
            return self._gone_for_good(node)
        if self.closing:
            return [*self._lost(node), Retire(name)]
        acts: list[Act] = [AgentLostEvent(node=name, inc=node.inc, reason=reason)]
        if node.greeted:
            return [*acts, *self._launch(node, now_s)]
        # It died before its first word: without a limit this would go on for ever.
        gone = Judged("agent", Verdict.RETRYABLE, f"its agent did not come up ({reason})")
        node.needs_launch = True
        return [*acts, *self._lost(node), *self._again(node, gone, now_s)]

    # ------------------------------------------------------------------ lives

    def _start_if_due(self, node: Node, now_s: float) -> list[Act]:
        if not self._wanted(node) or (node.retry_at_s is not None and now_s < node.retry_at_s):
            return []
        if node.needs_launch:
            return self._launch(node, now_s)
        if self._in_round(node) and any(self._of_former_rounds()):
            return []
        return self._new_life(node, now_s) if node.connected else []

    def _new_life(self, node: Node, now_s: float) -> list[Act]:
        acts: list[Act] = []
        if self.rounds is not None and self.rounds.port == 0:
            self.rounds.began_s = now_s
            acts = [self._keep(RoundSet(number=self.rounds.number, port=self.rounds.new_port()))]
        round_no = self.rounds.number if self.rounds is not None else 0
        keep = self._keep(_started(node, self._next_inc, round_no))
        node.retry_at_s = node.missing_since_s = node.up = node.error = None
        node.returned = False
        node.end_told_s = -REPEAT_END_S
        node.state, node.note = "starting", ""
        return [
            *acts,
            keep,
            NodeStartedEvent(node=node.name, inc=node.inc),
            self._start_message(node, now_s),
        ]

    def _start_message(self, node: Node, now_s: float) -> Start:
        node.started_s, node.started_by = now_s, node.agent_pid
        start = StartProcess(
            inc=node.inc,
            role=node.role,
            rank=node.rank,
            num_workers=self.num_workers,
            restart=node.round_no,
            port=self.rounds.port if self.rounds is not None else 0,
        )
        return Start(node.name, start)

    def process_up(self, up: ProcessUp, now_s: float) -> list[Act]:
        """The process exists; a server is up only with its address."""
        node = self._by_inc.get(up.inc)
        if node is None or node.name != up.node or not node.alive or up.pid == 0:
            return []
        if node.up == up:
            return []
        first = node.up is None
        node.up, node.state, node.missing_since_s = up, "running", None
        if first:
            node.up_s = now_s
        told = ProcessUpEvent(node=node.name, inc=node.inc, pid=up.pid, address=up.address)
        if node.role == "server":
            return [told] if up.address else []
        return [told, WorkerUp(node.inc)] if first else []

    def script_error(self, message: ScriptError) -> None:
        """The last words of a process; its end follows."""
        node = self._by_inc.get(message.inc)
        if node is not None:
            node.error = message

    def script_returned(self, message: Finished) -> list[Act]:
        """The script came to its end; that of the process follows."""
        node = self._by_inc.get(message.inc)
        told = [] if node is None else node.told_return(message)
        return [*told] if node is not None and self._wanted(node) else []

    def process_exited(
        self, message: ProcessExited, now_s: float, *, any_committed: bool
    ) -> list[Act]:
        """The agent's word that a life is over; repetitions change nothing."""
        node = self._by_inc.get(message.inc)
        if node is None or not node.alive or node.name != message.node:
            return []
        return self._ended(node, message.evidence, now_s, any_committed=any_committed)

    def _ended(
        self,
        node: Node,
        exit_: ExitEvidence,
        now_s: float,
        *,
        any_committed: bool,
        started: bool = True,
    ) -> list[Act]:
        evidence = Evidence(
            exit=exit_,
            error=node.error,
            # A worker told to leave returns from its script, too.
            finished=self._has_returned(node, exit_) and not (node.leaving or self.closing),
            started=started,
            any_committed=any_committed,
            by_itself=self.runs_by_itself,
            previous=node.previous if self._counts_repeats(now_s) else None,
            repeats=node.repeats,
        )
        judged = judge(evidence)
        node.note = judged.reason
        acts: list[Act] = [node.told_end(judged, exit_)]
        acts += self._lost(node)
        round_over = self._in_round(node) and not self.closing and not self._is_done(node, judged)
        if round_over and not node.leaving:
            acts += self._end_round(node, judged, now_s)
        elif judged.verdict is Verdict.FINISHED:
            finished = NodeFinished(node=node.name, joined=node.joined)
            acts += [self._keep(finished), Retire(node.name)]
        elif node.leaving:
            acts += self._gone_for_good(node)
            acts += self._end_formers(now_s) if round_over else []
        elif self.closing:
            acts.append(Retire(node.name))
        elif node.guest and judged.verdict is Verdict.STOPPED and not node.unblamed:
            acts += [*self._drop(node, "its machine has left"), Retire(node.name)]
        elif node.guest and judged.verdict is Verdict.UNRETRYABLE:
            # What its machine lacks is no error of the others.
            acts += [*self._drop(node, judged.reason), Retire(node.name)]
        elif judged.verdict is Verdict.UNRETRYABLE:
            acts += self.not_replaced() if node.replaces else [self._fail(node, judged)]
        else:
            acts += self._again(node, judged, now_s)
        return acts

    def _counts_repeats(self, now_s: float) -> bool:
        """Whether the error of the life before, once more, is a sign that nothing helps.

        Of a script by itself no step is known: there only if it comes soon.
        """
        if self.rounds is None or not self.runs_by_itself:
            return not self._restart.repeat
        long = now_s - self.rounds.began_s > self._restart.backoff_max_s
        return not (self._restart.repeat or long)

    @property
    def runs_by_itself(self) -> bool:
        """Whether what scripts train is not known."""
        return self.rounds is not None and self.rounds.by_itself

    def _has_returned(self, node: Node, exit_: ExitEvidence) -> bool:
        """Whether the script has; of one by itself the exit code says it, too."""
        if node.returned or not self.runs_by_itself:
            return node.returned
        return exit_.exit_code == 0 and not exit_.stopped_by_us

    def _lost(self, node: Node) -> list[Act]:
        was_alive, node.alive = node.alive, False
        node.up, node.missing_since_s = None, None
        node.state = "lost"
        if was_alive and node.replaces:
            return [JoinerLost(node.inc)]
        if not was_alive or node.role != "worker":
            return []
        told = [] if node.returned else [FencedEvent(node=node.name, inc=node.inc)]
        return [*told, WorkerLost(node.inc)]

    def _fail(self, node: Node, judged: Judged, why: str = "") -> FailJob:
        node.state = "failed"
        return FailJob(f"{node.name}: {judged.reason}{why}", judged.traceback, judged.own_code)

    def _again(self, node: Node, judged: Judged, now_s: float) -> list[Act]:
        """Start another life, now or later, if the budget allows."""
        if self._in_round(node):
            return self._end_round(node, judged, now_s)
        free = node.unblamed or is_free(judged.verdict, node.streak)
        if judged.verdict not in NO_CAUSE:
            node.remember(judged.sign)
        if not free and self._is_spent(now_s):
            if node.replaces:
                return self.not_replaced()
            return [self._fail(node, judged, f"; {self._no_budget()}")]
        if not free:
            self._count_relaunch(node, now_s)
        if node.unblamed or now_s - node.up_s > self._restart.backoff_max_s:
            node.streak = 0
        wait_s = self._backoff_s(node.streak)
        node.streak += 1
        # The next life is long if it lasts from here, also when it never comes up.
        node.up_s = node.retry_at_s = now_s + wait_s
        node.state = "backing off"
        told = RelaunchEvent(node=node.name, inc=node.inc, cause=judged.reason, wait_s=wait_s)
        acts: list[Act] = [told, *(self._give_up_place(node) if node.moving else [])]
        return [*acts, *(self._start_if_due(node, now_s) if wait_s == 0 else [])]

    def _give_up_place(self, node: Node) -> list[Act]:
        """What ended may have been slow because of where it was: ask for another place."""
        node.decided += 1
        if node.guest:
            return []  # there is no other place for it
        node.needs_launch = True
        return [Retire(node.name)]

    def _is_spent(self, now_s: float) -> bool:
        """Whether one more relaunch would be more than the budget."""
        window_s = self._restart.window_s
        if window_s is None:
            return self.num_restarts() >= self._restart.budget
        self._relaunched_s = [one_s for one_s in self._relaunched_s if now_s - one_s < window_s]
        return len(self._relaunched_s) >= self._restart.budget

    def _count_relaunch(self, node: Node, now_s: float) -> None:
        node.restarts += 1
        self._relaunched_s.append(now_s)

    def _no_budget(self) -> str:
        window_s = self._restart.window_s
        within = "" if window_s is None else f" within {window_s:g} s"
        return (
            f"the budget of {self._restart.budget} relaunches{within} is used up (restart.budget)"
        )

    def _backoff_s(self, streak: int) -> float:
        if streak == 0:
            return 0.0
        return min(self._restart.backoff_s * 2.0 ** (streak - 1), self._restart.backoff_max_s)

    # ------------------------------------------------------------------ rounds

    def _in_round(self, node: Node) -> bool:
        return self.rounds is not None and node.role == "worker"

    def _is_done(self, node: Node, judged: Judged) -> bool:
        """Whether the worker has come to its end in the present round."""
        present = self.rounds is None or node.round_no == self.rounds.number
        return present and judged.verdict is Verdict.FINISHED

    def _of_former_rounds(self) -> Iterator[Node]:
        """Workers that are to end before the next round can begin."""
        number = self.rounds.number if self.rounds is not None else 0
        return (n for n in self.of_role("worker") if n.alive and n.round_no < number)

    def _end_round(self, node: Node, judged: Judged, now_s: float) -> list[Act]:
        """A worker has failed, or ended since another one has: all others end, too."""
        assert self.rounds is not None
        rounds = self.rounds
        acts: list[Act] = []
        if node.round_no == rounds.number:
            acts.append(self._keep(RoundSet(number=rounds.number + 1)))
        if node.unblamed or judged.verdict not in (Verdict.STOPPED, Verdict.FINISHED):
            ended = Ended(
                node=node.name,
                inc=node.inc,
                judged=judged,
                error=node.error,
                unblamed=node.unblamed,
            )
            rounds.ends.append(ended)
        node.state = "backing off"
        return [*acts, *self._end_formers(now_s)]

    def _end_formers(self, now_s: float) -> list[Act]:
        """Have all of former rounds end; when they have, the next round begins."""
        left = list(self._of_former_rounds())
        if not left:
            return self._next_round(now_s)
        return [act for node in left for act in self._end_former(node, now_s)]

    def _end_former(self, node: Node, now_s: float) -> list[Act]:
        if self.rounds is None or now_s < node.end_told_s + REPEAT_END_S:
            return []
        node.end_told_s = now_s
        return [End(node.name, node.inc, self.rounds.grace_s)]

    def _next_round(self, now_s: float) -> list[Act]:
        """All have ended: begin again, now or later, unless that cannot help or costs too much."""
        assert self.rounds is not None
        rounds, cause = self.rounds, self.rounds.take_cause()
        if now_s - rounds.began_s > self._restart.backoff_max_s:
            rounds.streak = 0
        # Whoever lives is in the present round already, which another one has not come to.
        workers = [node for node in self.of_role("worker") if not node.alive]
        acts: list[Act] = []
        wait_s = 0.0
        if cause is not None:
            free = cause.unblamed or is_free(cause.judged.verdict, rounds.streak)
            if cause.is_final or (not free and self._is_spent(now_s)):
                return [self._give_up(cause)]
            wait_s = 0.0 if cause.unblamed else self._backoff_s(rounds.streak)
            rounds.streak += 0 if cause.unblamed else 1
            if not free:
                self._count_relaunch(self.nodes[cause.node], now_s)
            why = cause.judged.reason
            told = RestartAllEvent(node=cause.node, inc=cause.inc, cause=why, wait_s=wait_s)
            acts.append(told)
            for node in workers:
                node.remember(cause.judged.sign)
        for node in workers:
            node.state, node.retry_at_s = "backing off", now_s + wait_s
        if wait_s > 0:
            return acts
        return [*acts, *(act for node in workers for act in self._start_if_due(node, now_s))]

    def _give_up(self, cause: Ended) -> FailJob:
        why = "" if cause.is_final else f"; {self._no_budget()}"
        return self._fail(self.nodes[cause.node], cause.judged, why)

    # ------------------------------------------------------------------ the clock

    def tick(
        self, now_s: float, *, lost_after_s: float, others_wait: bool, any_committed: bool
    ) -> list[Act]:
        """What is due: relaunches, repeated starts, ends that nobody reported, silence."""
        acts: list[Act] = []
        for node in list(self.nodes.values()):
            if node.missing_since_s is not None and now_s >= node.missing_since_s + MISSING_S:
                acts += self._missing(node, now_s, any_committed=any_committed)
            elif node.retry_at_s is not None and not node.alive:
                acts += self._start_if_due(node, now_s)
            elif node.alive and node.connected and node.up is None:
                acts += self._repeat_start(node, now_s)
            elif node.moving and node.alive and now_s >= node.end_told_s + REPEAT_END_S:
                acts += self._end_to_move(node, now_s)
            elif self._closes(node) and now_s >= node.end_told_s + REPEAT_END_S:
                acts.append(self._end_to_close(node, now_s))
            elif self._in_round(node) and node in self._of_former_rounds():
                acts += self._end_former(node, now_s)
            if self._wanted(node) or (node.guest and node.alive):
                acts += self._on_silence(node, now_s, lost_after_s, others_wait)
        return acts

    def _missing(self, node: Node, now_s: float, *, any_committed: bool) -> list[Act]:
        """Its agent does not know of it, and no word about its end has come."""
        # An agent that was told to start it and was then lost may never have read that. What a
        # former master ordered and heard is not known.
        started = node.up is not None or node.started_by == NOBODY
        nothing = ExitEvidence()
        return self._ended(node, nothing, now_s, any_committed=any_committed, started=started)

    def _repeat_start(self, node: Node, now_s: float) -> list[Act]:
        due = now_s >= node.started_s + REPEAT_START_S and node.started_by == node.agent_pid
        return [self._start_message(node, now_s)] if due else []

    def _on_silence(
        self, node: Node, now_s: float, lost_after_s: float, others_wait: bool
    ) -> list[Act]:
        silent_s = now_s - node.heard_s
        waits = not (node.alive or (node.guest and node.greeted))
        start_s = FIRST_HELLO_S if waits else 0.0 if node.greeted else AGENT_START_S
        limit_s = max(lost_after_s, start_s) * node.patience
        limit_s += 0.0 if node.greeted else self._pending_s
        if silent_s < limit_s:
            return []
        reason = f"silent for {silent_s:.1f} s"
        if node.guest:
            given_up = silent_s >= 2 * limit_s and others_wait
            may_return = node.alive and self._wanted(node) and not given_up
            return [] if may_return else self._drop(node, reason, silent_s)
        if not node.replaced or not node.alive:
            told = AgentLostEvent(node=node.name, inc=node.inc, reason=reason, silent_s=silent_s)
            brief = node.greeted and node.heard_s < node.greeted_s + BRIEF * limit_s
            node.patience = min(PATIENCE, 2 * node.patience) if brief else 1
            node.replaced = True
            return [told, *self._launch(node, now_s)]
        if not others_wait:
            return []
        gone = Judged("unreachable", Verdict.RETRYABLE, f"unreachable, {reason}")
        lost = NodeLostEvent(node=node.name, inc=node.inc, reason=gone.reason, silent_s=silent_s)
        return [lost, *self._lost(node), *self._again(node, gone, now_s)]

    # ------------------------------------------------------------------ orders

    def resize(self, workers: int | None, servers: int | None) -> list[Act]:
        """Before `begin`: go on with so many nodes; None: as many as there were."""
        acts: list[Act] = []
        if workers is not None:
            acts.append(self._keep(WorkersWanted(count=workers)))
            acts.append(ScaledEvent(role="worker", count=workers))
        if servers is not None:
            acts.append(self._keep(ServersWanted(count=servers)))
            acts.append(ScaledEvent(role="server", count=servers))
        return acts

    def scale(self, count: int, now_s: float, grace_s: float) -> list[Act]:
        """Set the number of workers; the highest ranks leave in order.

        Those that live in rounds begin the next one.
        """
        if self.rounds is not None and count == self.num_workers:
            return []  # else all would begin again
        told = ScaledEvent(role="worker", count=count, before=self.num_workers)
        acts: list[Act] = [told]
        for node in list(self.of_role("worker")):
            if node.leaving and node.rank < count:
                # Wanted again before it was gone: the next agent takes its place.
                acts += [*self._lost(node), *([Retire(node.name)] if node.guest else [])]
        known = set(self.nodes)
        for node in self.of_role("worker"):
            known -= {node.name} if node.leaving else set()
        acts.insert(0, self._keep(WorkersWanted(count=count)))
        for node in list(self.of_role("worker")):
            if node.leaving:
                acts += self._send_away(node, grace_s)
            elif node.name not in known:
                acts += self._launch(node, now_s)
        if self.rounds is not None:
            acts.append(self._keep(RoundSet(number=self.rounds.number + 1)))
            acts += self._end_formers(now_s)
        return acts

    def join(self, host: str, now_s: float) -> tuple[str, list[Act]]:
        """One more worker, whose agent is about to be started there: its name."""
        name = f"worker-{max((node.rank for node in self.of_role('worker')), default=-1) + 1}"
        keep = self._keep(NodeJoined(node=name))
        told = ScaledEvent(node=name, role="worker", count=self.num_workers, host=host)
        self.nodes[name].heard_s = now_s
        return name, [keep, told]

    def _send_away(self, node: Node, grace_s: float) -> list[Act]:
        if node.alive and node.connected:
            return [End(node.name, node.inc, grace_s)]
        return self._gone_for_good(node)

    def kill(self, name: str) -> list[Act]:
        """End a node's process at once, as a crash would; it is started again."""
        node = self.nodes[name]
        node.unblamed = True
        return [KilledEvent(node=name, inc=node.inc), End(name, node.inc, 0.0)]

    def hung(self, name: str, now_s: float, since_s: float, *, silent: bool) -> list[Act]:
        """End a node's process that hangs. While it still hangs this is repeated seldom.

        Args:
            name: of the node.
            now_s: as always.
            since_s: so long it has made no progress.
            silent: it has not even spoken.
        """
        node = self.nodes.get(name)
        if node is None or not node.alive or now_s < node.end_told_s + REPEAT_END_S:
            return []
        node.end_told_s = now_s
        told = HungEvent(node=name, inc=node.inc, since_s=since_s, silent=silent)
        return [told, End(name, node.inc, 0.0, hung=True)]

    def restart(self, name: str, now_s: float, grace_s: float, reason: str = "") -> list[Act]:
        """KILL_RESTART: end a node's process in order, and start it again at another place.

        It costs no budget (``restart.budget`` is the user's, for what goes wrong) and no backoff.
        """
        node = self.nodes[name]
        keep = self._keep(RestartOrdered(node=name, grace_s=grace_s))
        told = KillRestartEvent(node=name, inc=node.inc, reason=reason)
        return [keep, told, *self._end_to_move(node, now_s)]

    def _end_to_move(self, node: Node, now_s: float) -> list[Act]:
        node.end_told_s = now_s
        return [End(node.name, node.inc, node.end_grace_s)]

    def refuse(self, inc: int, reason: str, least: int) -> list[Act]:
        """This worker cannot take part, nor could its next life: the others go on without it.

        ``least``: with fewer workers the job cannot, and fails for the same reason.
        """
        node = self._by_inc.get(inc)
        if node is None or not node.alive:
            return []
        told = LeftOutEvent(node=node.name, inc=inc, reason=reason)
        acts: list[Act] = [told, *self._lost(node)]
        acts.append(self._keep(NodeRefused(node=node.name, reason=reason)))
        left = list(self._counting())
        if len(left) < least or all(one.guest for one in left):  # guests alone keep no cuts
            return [*acts, FailJob(reason)]
        return [*acts, Retire(node.name)]

    # ------------------------------------------------------------------ servers

    def replace(self, name: str, now_s: float, reason: str) -> list[Act]:
        """Start a server that is to take the place of this one; `joiner` tells when it is up."""
        rank = 1 + max(node.rank for node in self.of_role("server"))
        keep = self._keep(ServerAdded(node=f"server-{rank}", replaces=name))
        node = self.nodes[f"server-{rank}"]
        inc = self.nodes[name].inc
        told = ReplacingEvent(node=name, inc=inc, cause=reason, successor=node.name)
        return [keep, told, *self._launch(node, now_s)]

    def joining(self) -> Node | None:
        """The server that is to take another's place."""
        return next((node for node in self.of_role("server") if node.replaces), None)

    def joiner(self) -> tuple[int, Server] | None:
        """Incarnation to be replaced, and who is up to do it."""
        node = self.joining()
        if node is None or node.up is None or not node.up.address:
            return None
        return self.nodes[node.replaces].inc, Server(node.inc, node.name, node.up.address)

    def replaced(self) -> list[Act]:
        """The one that joined has everything: the other may go."""
        node = self.joining()
        if node is None:
            return []
        old = self.nodes[node.replaces]
        told = ReplacedEvent(node=old.name, inc=old.inc, successor=node.name)
        return [self._keep(ServerTook(node=node.name)), told, *self._gone_for_good(old)]

    def not_replaced(self, *, futile: bool = True) -> list[Act]:
        """The one that was to join is not to: the job goes on without it.

        ``futile``: it could not; a crash of somebody else says nothing about the attempt.
        """
        node = self.joining()
        if node is None:
            return []
        told = NotReplacedEvent(node=node.replaces, inc=self.nodes[node.replaces].inc)
        return [told, self._keep(NodeDropped(node=node.name, futile=futile)), Retire(node.name)]

    def close(self, now_s: float, grace_s: float) -> list[Act]:
        """End all workers' processes in order: nothing is started again from here on."""
        self.closing, self._closing_grace_s = True, grace_s
        closed = [node for node in self.nodes.values() if self._closes(node)]
        return [self._end_to_close(node, now_s) for node in closed]

    def _closes(self, node: Node) -> bool:
        """Whether its process was told to end; an agent launched since does not know that."""
        return self._closing_grace_s is not None and node.role == "worker" and node.alive

    def _end_to_close(self, node: Node, now_s: float) -> End:
        node.end_told_s = now_s
        return End(node.name, node.inc, self._closing_grace_s or 0.0)


def _started(node: Node, inc: int, round_no: int) -> NodeStarted:
    """The record of a life of the node, with what it brings along from those before."""
    return NodeStarted(
        node=node.name,
        inc=inc,
        restarts=node.restarts,
        decided=node.decided,
        previous=node.previous,
        repeats=node.repeats,
        round_no=round_no,
    )


def _role_and_index(name: str) -> tuple[str, int]:
    role, _, index = name.rpartition("-")
    return role, int(index)
