"""The nodes of a job and their lives: a pure machine, facts in, instructions out.

It gives every life of a node's training process an incarnation number, decides what an end means
(by `paceline.protocol.nodes.exits`) and when to start again. Times are the master's own
(`paceline.master.own_time`). What must survive the master's death is a record, journalled before
any instruction of the same answer is carried out; the agents report the rest again.

A silent agent is replaced after ``lost_after_s`` (docs/failure-model.md). That harms no process:
the successor takes over what runs. The process is given up only if an agent says that it is gone,
or if there is no agent for another ``lost_after_s`` *and* others wait for it.

Workers of strategies script and fsdp live in rounds (`paceline.protocol.nodes.rounds`): when one
fails all end, then all begin again together. A worker may also join on its own (`join`): the
backend cannot launch an agent for it, so it is awaited as long as others, and then dropped. In
rounds its place stays: it is open until a machine joins again, and no round begins before that.
"""

from collections.abc import Container, Iterable, Iterator

from paceline.base.numbering import NO_INC
from paceline.protocol.nodes.budget import Budget
from paceline.protocol.nodes.ends import TAKEN_AWAY, AgentEnd, EndKind
from paceline.protocol.nodes.exits import LACKING, NO_CAUSE, Evidence, Judged, is_free, judge
from paceline.protocol.nodes.lives import (
    Backing,
    EndOrder,
    Fate,
    LifePhase,
    NodePlace,
    Presence,
    Refusals,
)
from paceline.protocol.nodes.node import (
    Act,
    FailJob,
    FindPort,
    HangUp,
    JoinerLost,
    Launch,
    Node,
    NodeDropped,
    NodeFinished,
    NodeRefused,
    Retire,
    RoundSet,
    ServersChanged,
    ServersChanging,
    ServersNotChanged,
    Start,
    WorkerLost,
    WorkerUp,
)
from paceline.protocol.nodes.roster import Roster, started
from paceline.protocol.nodes.rounds import Ended, Rounds, by_machine
from paceline.wire.events.base import Event
from paceline.wire.events.nodes import (
    AgentJoinedEvent,
    AgentLostEvent,
    FencedEvent,
    LeftOutEvent,
    MachinesAwaitedEvent,
    NodeLostEvent,
    NodeStartedEvent,
    NotReplacedEvent,
    PlaceRefusedEvent,
    ProcessUpEvent,
    RelaunchEvent,
    ReplacedEvent,
    RestartAllEvent,
    ServersChangedEvent,
    ServersNotChangedEvent,
    Verdict,
)
from paceline.wire.messages.agent import AgentHello, ExitEvidence, ProcessExited, StartProcess
from paceline.wire.messages.node import Finished, ProcessUp, ScriptError
from paceline.wire.spec import RestartSpec

MISSING_S = 1.0
"""A new agent that does not know its node's process: its word about the end may be on its way."""
REPEAT_START_S = 2.0
"""A StartProcess that got no answer is sent again."""
REPEAT_END_S = 2.0
"""A StopProcess that got no answer is sent again, whatever ends the life."""
AGENT_START_S = 5.0
"""Time for the first word of an agent launched in place of a silent one, on a loaded machine."""
FIRST_HELLO_S = 60.0
"""A launched agent whose first word takes longer is launched again."""
BRIEF, PATIENCE = 10, 8
"""An agent that falls silent within so many times the limit is brief: its successor has twice as
long, up to so many times. A machine too busy for its agents would be made busier by new ones."""


class Membership:
    """The lives of all nodes: what an end or a silence means, and what follows."""

    min_workers: int = 1
    """Least number of workers that can take part: with fewer the job fails."""
    places_s: float = 300.0
    """Seconds for which places may be refused without which the job cannot train."""

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

        ``rounds``: workers start and restart together; None: each on its own.
        """
        self.roster = Roster(num_workers, num_servers, rounds)
        """The nodes, as records have made them."""
        self.rounds = rounds
        self._restart, self._budget = restart, Budget(restart)
        self._pending_s = pending_s
        self.closing = False
        #: For workers to end in order, once they were told to; None: they were not.
        self._closing_grace_s: float | None = None

    def _wanted(self, node: Node) -> bool:
        return node.fate.lives_on and not self.closing

    # ------------------------------------------------------------------ agents

    def begin(self, now_s: float, awaited: Container[str] = ()) -> list[Act]:
        """At the master's start: launch every node but those whose agent may still be there."""
        acts: list[Act] = []
        for node in list(self.roster.nodes.values()):
            if node.fate is Fate.LEAVES:
                acts += self.gone_for_good(node)
            if not self._wanted(node):
                continue
            if node.by_itself or node.name in awaited:
                node.agent.heard_s, node.agent.presence = now_s, Presence.ABSENT
                continue
            if node.life.inc and not node.life.end_is_ordered:
                node.life.end = EndOrder.PLAIN
            acts += self.launch(node, now_s)
        return acts

    def gone_for_good(self, node: Node) -> list[Act]:
        """Forget a node that was scaled away; its agent, if one is found, must leave."""
        acts = self.lost(node)
        self.roster.forget(node)
        return [*acts, Retire(node.name)]

    def _left(self, node: Node, now_s: float) -> list[Act]:
        """Forget a node that was scaled away, and begin the round that may have waited for it."""
        awaited = self._in_round(node) and not self.closing
        return [*self.gone_for_good(node), *(self.end_formers(now_s) if awaited else [])]

    def _drop(self, node: Node, reason: str, silent_s: float | None = None) -> list[Act]:
        """Drop a node that joined on its own: it does not come back."""
        inc, is_known = node.life.inc, node.life.went_away
        told = NodeLostEvent(node=node.name, inc=inc, reason=reason, silent_s=silent_s)
        lost = self.lost(node)
        return [*([] if is_known else [told]), *lost, self.roster.keep(NodeDropped(node=node.name))]

    def machine_lost(self, beside: Container[str], reason: str) -> list[Act]:
        """Before `begin`: the machine that launched nodes is gone, so they are not awaited.

        Args:
            beside: nodes that had joined from that machine.
            reason: for people.
        """
        known = self.roster.nodes.values()
        nodes = [node for node in known if not node.by_itself or node.name in beside]
        return [act for node in nodes for act in self._drop(node, reason)]

    def launch(self, node: Node, now_s: float) -> list[Act]:
        """Have an agent started for the node."""
        node.agent.heard_s, node.agent.presence = now_s, Presence.LAUNCHED
        node.agent.left_s, node.place = None, NodePlace()
        node.next.in_new_agent = False
        node.life.missing_since_s = None
        if not node.life.is_alive:
            node.fate, node.life.phase = Fate.STAYS, LifePhase.NONE
        return [Launch(node.name)]

    def hello(self, message: AgentHello, now_s: float) -> list[Act]:
        """An agent has connected and says what runs on its node."""
        node = self.roster.nodes.get(message.node)
        if node is None or not self._may_serve(node):
            return [Retire(message.node)]
        life = node.life
        acts: list[Act] = []
        if node.agent.identity != message.agent:
            joined = AgentJoinedEvent(node=node.name, inc=life.inc, pid=message.agent_pid)
            acts.append(joined)
        is_new = not node.agent.has_greeted
        node.agent.greet(message, now_s)
        if node.refusals.times:  # its agent is there: no other one is needed
            node.refusals, node.next.in_new_agent = Refusals(), False
        running = next((up for up in message.running if up.inc == life.inc), None)
        if not life.is_alive:
            return [*acts, *self._start_if_due(node, now_s)]
        if running is not None:  # it has outlived its agent's place
            life.missing_since_s, life.taken = None, None
            return [*acts, *self.process_up(running, now_s)]
        if life.is_started_by(node.agent):
            return [*acts, self._start_message(node, now_s)]
        # Another agent than the one it was started by: it ran there, or may have. An agent that was
        # launched since knows nothing of how it ended.
        life.missing_since_s = now_s - (MISSING_S if is_new else 0.0)
        return acts

    def _may_serve(self, node: Node) -> bool:
        return node.life.is_alive or self._wanted(node)

    def heard(self, name: str, now_s: float) -> None:
        """Anything came from the node's agent."""
        node = self.roster.nodes.get(name)
        if node is not None:
            node.agent.hear(now_s)

    def stream_lost(self, name: str, now_s: float) -> None:
        """The agent's connection broke; it may come back."""
        node = self.roster.nodes.get(name)
        if node is not None:
            node.agent.disconnect(now_s)

    def agent_ended(self, name: str, launch: str, end: AgentEnd, now_s: float) -> list[Act]:
        """The backend's word: the agent of this launch is gone. Its process awaits the next one.

        Args:
            name: of the node.
            launch: token of the launch; empty: the agent never came up.
            end: of the agent.
            now_s: as always.
        """
        node = self.roster.nodes.get(name)
        if node is None or (node.agent.has_greeted and launch not in ("", node.agent.launch)):
            return []
        node.agent.disconnect(now_s)
        if not self._may_serve(node):
            return []
        if node.fate is Fate.LEAVES:
            return self._left(node, now_s)  # the backend cleans up: nobody else can
        if self.closing:
            return [*self.lost(node), Retire(name)]
        acts: list[Act] = [AgentLostEvent(node=name, inc=node.life.inc, reason=end.words)]
        if end.kind is EndKind.OOM or end.kind in TAKEN_AWAY:
            node.life.taken = end.kind
        if end.whole and node.life.is_alive and node.agent.has_greeted:
            node.next.in_new_agent = True
            evidence = ExitEvidence(exit_code=end.code, signal=end.signal)
            return [*acts, *self._ended(node, evidence, now_s, any_committed=True)]
        if node.agent.has_greeted:
            return [*acts, *self.launch(node, now_s)]
        # It died before its first word: without a limit this would go on for ever.
        verdict = Verdict.TAKEN_AWAY if end.kind in TAKEN_AWAY else Verdict.RETRYABLE
        gone = Judged("agent", verdict, f"its agent did not come up ({end.words})")
        node.next.in_new_agent = True
        if not node.life.is_alive:
            node.life.end = EndOrder.NONE  # an order ended that life; none ended this agent
        return [*acts, *self.lost(node), *self._again(node, gone, now_s)]

    def refused(self, name: str, why: str, now_s: float) -> list[Act]:
        """The platform does not start the node: it is asked again, ever later, at no cost.

        A life that counts as alive stays so: the refusal says nothing about its process.
        """
        node = self.roster.nodes.get(name)
        if node is None or not self._wanted(node):
            return self.agent_ended(name, "", AgentEnd(why=why), now_s)
        is_news = why != node.refusals.why
        wait_s = node.refusals.add(why, now_s)
        told: list[Act] = []
        if is_news:
            told.append(PlaceRefusedEvent(node=name, inc=node.life.inc, reason=why))
        if node.life.is_alive or node.by_itself:
            # If that life is given up after all, its next one is asked for anew.
            node.next.in_new_agent = not node.by_itself
            return told
        if node.joins and node.refusals.since_s + self.places_s <= now_s:
            return [*told, *self.not_changed()]
        node.fate, node.next.due_s, node.next.in_new_agent = Fate.BACKS_OFF, now_s + wait_s, True
        return told

    def _refused_for_good(self, now_s: float) -> list[Act]:
        """End the job if places without which it cannot train were refused for too long."""
        nodes = [node for node in self.roster.nodes.values() if self._wanted(node)]
        refused = [node for node in nodes if node.refusals.times and not node.life.is_alive]
        due = [node for node in refused if now_s >= node.refusals.since_s + self.places_s]
        if not due or self.closing:
            return []
        workers = [node for node in nodes if node.role == "worker"]
        num_left = sum(node not in due for node in workers)
        least = len(workers) if self.rounds is not None else max(1, self.min_workers)
        servers = [node for node in due if node.role == "server" and not node.joins]
        if num_left >= least and not servers:
            return []
        node = (servers or due)[0]
        since_s = now_s - node.refusals.since_s
        return [
            FailJob(
                f"{node.name}: its place was refused for {since_s:.0f} s ({node.refusals.why}), "
                "and without it the job cannot train; have the platform grant it, then go on with "
                "`paceline run --resume`, or with fewer nodes (timeouts.places_s says how long a "
                "job waits)"
            )
        ]

    # ------------------------------------------------------------------ lives

    def _start_if_due(self, node: Node, now_s: float) -> list[Act]:
        due_s = node.next.due_s
        if not self._wanted(node) or (due_s is not None and now_s < due_s):
            return []
        if node.next.in_new_agent:
            return self.launch(node, now_s)
        if self._in_round(node) and any(self._of_former_rounds()):
            return []
        if node.agent.presence is not Presence.CONNECTED:
            return []
        if self.rounds is not None and self.rounds.port == 0:
            return self._gather(now_s) if self.rounds.spreads else [FindPort()]
        return self._new_life(node, now_s)

    def _new_life(self, node: Node, now_s: float) -> list[Act]:
        round_no = self.rounds.number if self.rounds is not None else 0
        keep = self.roster.keep(started(node, self.roster.next_inc, round_no))
        node.next.due_s = None
        node.life.end_told_s = -REPEAT_END_S
        told = NodeStartedEvent(node=node.name, inc=node.life.inc)
        return [keep, told, self._start_message(node, now_s)]

    def _start_message(self, node: Node, now_s: float) -> Start:
        life = node.life
        life.phase, life.started_by, life.started_s = LifePhase.STARTING, node.agent.identity, now_s
        start = StartProcess(
            inc=life.inc,
            role=node.role,
            rank=node.rank,
            num_workers=self.roster.num_workers,
            restart=life.round_no,
            port=self.rounds.port if self.rounds is not None else 0,
            ranks=self.rounds.ranks.get(node.name) if self.rounds is not None else None,
        )
        return Start(node.name, start)

    def process_up(self, up: ProcessUp, now_s: float) -> list[Act]:
        """The process exists; a server is up only with its address."""
        node = self.roster.node_of(up.inc)
        if node is None or node.name != up.node or not node.life.is_alive or up.pid == 0:
            return []
        if node.life.up == up:
            return []
        first = node.life.up is None
        node.life.run(up)
        if first:
            node.past.since_s = now_s
        told = ProcessUpEvent(node=node.name, inc=up.inc, pid=up.pid, address=up.address)
        if node.role == "server":
            return [told] if up.address else []
        return [told, WorkerUp(up.inc)] if first else []

    def script_error(self, message: ScriptError) -> None:
        """The last words of a process; its end follows."""
        node = self.roster.node_of(message.inc)
        if node is not None:
            node.life.error = message

    def script_returned(self, message: Finished) -> list[Act]:
        """The script came to its end; that of the process follows."""
        node = self.roster.node_of(message.inc)
        told = [] if node is None else node.told_return(message)
        return [*told] if node is not None and self._wanted(node) else []

    def process_exited(
        self, message: ProcessExited, now_s: float, *, any_committed: bool
    ) -> list[Act]:
        """The agent's word that a life is over; repetitions change nothing."""
        node = self.roster.node_of(message.inc)
        if node is None or not node.life.is_alive or node.name != message.node:
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
        life = node.life
        evidence = Evidence(
            exit=exit_,
            error=life.error,
            # A worker told to leave returns from its script, too.
            finished=self._has_returned(node, exit_)
            and (self._wanted(node) or (life.done and node.fate.lives_on)),
            started=started,
            any_committed=any_committed,
            by_itself=self.runs_by_itself,
            killed=life.end is EndOrder.KILL,
            taken=self._taken(node),
            previous=node.past.previous if self._counts_repeats(now_s) else None,
            repeats=node.past.repeats,
            host=node.agent.host if node.role == "worker" and self.roster.spreads else "",
        )
        judged = judge(evidence)
        life.note = judged.reason
        acts: list[Act] = [node.told_end(judged, exit_)]
        acts += self.lost(node)
        round_over = self._in_round(node) and not self.closing and not self._is_done(node, judged)
        if round_over and node.fate is not Fate.LEAVES:
            acts += self._end_round(node, judged, now_s)
        elif judged.verdict is Verdict.FINISHED:
            acts.append(self.roster.keep(NodeFinished(node=node.name, joined=node.past.joined)))
            # Nobody could start another agent there, if the others must begin again after all.
            acts += [] if self._keeps_place(node) else [Retire(node.name)]
        elif node.fate is Fate.LEAVES:
            acts += self._left(node, now_s)
        elif self.closing:
            acts.append(Retire(node.name))
        elif node.by_itself and judged.verdict is Verdict.STOPPED and not life.end_is_ordered:
            acts += [*self._drop(node, "its machine has left"), Retire(node.name)]
        elif node.by_itself and judged.verdict is Verdict.UNRETRYABLE:
            # What its machine lacks is no error of the others.
            acts += [*self._drop(node, judged.reason), Retire(node.name, judged.reason)]
        elif judged.rule in LACKING and any_committed:
            acts += self.left_out(node, judged.reason)
        elif judged.verdict is Verdict.UNRETRYABLE:
            acts += self.not_changed() if node.joins else [self._fail(node.name, judged)]
        else:
            acts += self._again(node, judged, now_s)
        return acts

    @staticmethod
    def _taken(node: Node) -> EndKind | None:
        """What the platform has said of the place that its life has; None: nothing of its end."""
        match node.place.backing:
            case Backing.DRAINING:
                return EndKind.PREEMPTED
            case Backing.LOST:
                return EndKind.NODE_LOST
            case _:
                return node.life.taken

    def _counts_repeats(self, now_s: float) -> bool:
        """Whether the same error again ends the job; with strategy script only if it comes soon."""
        if self.rounds is None or not self.runs_by_itself:
            return not self._restart.repeat
        long = now_s - self.rounds.began_s > self._restart.backoff_max_s
        return not (self._restart.repeat or long)

    def lost(self, node: Node) -> list[Act]:
        """End the present life of the node: nothing of it may count."""
        life, was_alive = node.life, node.life.is_alive
        life.finish()
        if was_alive and node.joins:
            return [JoinerLost(life.inc)]
        if not was_alive or node.role != "worker":
            return []
        told = [] if life.returned else [FencedEvent(node=node.name, inc=life.inc)]
        return [*told, WorkerLost(life.inc)]

    def _has_returned(self, node: Node, exit_: ExitEvidence) -> bool:
        """Whether the script has returned; with strategy script the exit code says it, too."""
        if node.life.returned or not self.runs_by_itself:
            return node.life.returned
        return exit_.exit_code == 0 and not exit_.stopped_by_us

    def left_out(self, node: Node, reason: str, lost: Iterable[Act] = ()) -> list[Act]:
        """Have the others go on without a worker that cannot take part, nor could its next life.

        Args:
            node: its life has ended, or is about to: by ``lost``.
            reason: why.
            lost: what follows from that.
        """
        told = LeftOutEvent(node=node.name, inc=node.life.inc, reason=reason)
        kept = self.roster.keep(NodeRefused(node=node.name, reason=reason))
        num_left = sum(1 for _ in self.roster.counting())
        fails = num_left < max(1, self.min_workers)
        return [told, *lost, kept, FailJob(reason) if fails else Retire(node.name, reason)]

    def _fail(self, name: str, judged: Judged, why: str = "") -> FailJob:
        self.roster.fail(name)
        return FailJob(f"{name}: {judged.reason}{why}", judged.traceback, judged.own_code)

    def _again(self, node: Node, judged: Judged, now_s: float) -> list[Act]:
        """Start another life, now or later, if the budget allows."""
        if self._in_round(node):
            return self._end_round(node, judged, now_s)
        past, ordered = node.past, node.life.end_is_ordered
        free = ordered or is_free(judged.verdict, past.streak)
        if judged.verdict not in NO_CAUSE:
            past.remember(judged.sign)
        if not free and self._budget.is_spent(now_s, self.roster.num_restarts()):
            if node.joins:
                return self.not_changed()
            return [self._fail(node.name, judged, f"; {self._budget.used_up}")]
        if not free:
            past.restarts += 1
            self._budget.count(now_s)
        if ordered or now_s - past.since_s > self._restart.backoff_max_s:
            past.streak = 0
        wait_s = self._budget.backoff_s(past.streak)
        past.streak += 1
        # The next life is long if it lasts from here, also when it never comes up.
        past.since_s = node.next.due_s = now_s + wait_s
        node.fate = Fate.BACKS_OFF
        inc, moves = node.life.inc, node.life.end is EndOrder.MOVE
        told = RelaunchEvent(node=node.name, inc=inc, cause=judged.reason, wait_s=wait_s)
        acts: list[Act] = [told, *(self._give_up_place(node) if moves else [])]
        return [*acts, *(self._start_if_due(node, now_s) if wait_s == 0 else [])]

    def _give_up_place(self, node: Node) -> list[Act]:
        """Ask for another place: the life that ended may have been slow because of where it was."""
        node.past.decided += 1
        if node.by_itself:
            return []  # there is no other place for it
        node.next.in_new_agent = True
        return [Retire(node.name)]

    # ------------------------------------------------------------------ rounds

    @property
    def runs_by_itself(self) -> bool:
        """Whether what scripts train is not known."""
        return self.rounds is not None and self.rounds.by_itself

    def _in_round(self, node: Node) -> bool:
        return self.rounds is not None and node.role == "worker"

    def _keeps_place(self, node: Node) -> bool:
        """Whether the node's machine joins, and the job waits for one to take its place."""
        return node.by_itself and self._in_round(node)

    def _gather(self, now_s: float) -> list[Act]:
        """Begin the next round of several machines, if all its workers have their agents."""
        assert self.rounds is not None
        rounds = self.rounds
        workers = [node for node in self.roster.of_role("worker") if self._wanted(node)]
        if any(self._of_former_rounds()) or any(self._is_early(node, now_s) for node in workers):
            return []
        away = [node for node in workers if not self._is_there(node)]
        others = [node for node in away if node.by_itself]
        machines = {self.roster.machine_of(node) for node in others}
        if not any(node.agent.is_awaited for node in others):
            rounds.awaited_s = None
        elif rounds.awaited_s is None:
            rounds.awaited_s = now_s
            count = rounds.machines - len(machines)
            return [MachinesAwaitedEvent(count=count, wanted=rounds.machines)]
        elif now_s >= rounds.awaited_s + self.places_s:
            return [FailJob(self._too_few(rounds.machines - len(machines)))]
        if away or (rounds.asked_s is not None and now_s < rounds.asked_s + REPEAT_START_S):
            return []
        rounds.asked_s = now_s
        first = self._groups(workers)[0][0]
        return [FindPort(first if rounds.meets else "")]

    def _is_early(self, node: Node, now_s: float) -> bool:
        """Whether the next life of the node is not due yet."""
        return node.next.due_s is not None and now_s < node.next.due_s

    def _is_there(self, node: Node) -> bool:
        """Whether the agent is there that is to start the node's next life."""
        return node.agent.presence is Presence.CONNECTED and not node.next.in_new_agent

    def _too_few(self, count: int) -> str:
        assert self.rounds is not None
        return (
            f"{count} of {self.rounds.machines} machines came within {self.places_s:.0f} s, and "
            "without the others the job does not train; go on with `paceline run --resume`, and "
            "run `paceline agent --join ticket` on the others (timeouts.places_s says how long a "
            "job waits)"
        )

    def _groups(self, workers: Iterable[Node]) -> tuple[tuple[str, ...], ...]:
        """Group workers by machine, in the order of their ranks: by name."""
        assert self.rounds is not None
        if self.rounds.anywhere:
            return by_machine((node.name, node.agent.machine) for node in workers)
        return by_machine((node.name, str(self.roster.machine_of(node))) for node in workers)

    def meet_at(
        self,
        port: int,
        now_s: float,
        *,
        host: str = "",
        number: int | None = None,
        node: str = "",
    ) -> list[Act]:
        """Begin the round that is due: its workers meet at this port.

        Args:
            port: negative, the workers meet without one.
            now_s: as always.
            host: where; empty: on the master's machine.
            number: the round that the answer is about; None: it is no answer of an agent.
            node: whose agent answers; empty: none does.
        """
        rounds = self.rounds
        if rounds is None or rounds.port or number not in (None, rounds.number):
            return []
        groups: tuple[tuple[str, ...], ...] = ()
        if rounds.spreads:
            workers = [node for node in self.roster.of_role("worker") if self._wanted(node)]
            if not all(self._is_there(node) for node in workers):
                return []  # one has left since: the question is asked again
            groups = self._groups(workers)
            if node and node != groups[0][0]:
                return []  # rank 0 is on another machine since, and cannot listen at this address
        rounds.began_s = now_s
        record = RoundSet(number=rounds.number, port=port, host=host, groups=groups)
        due = [node for node in self.roster.of_role("worker") if not node.life.is_alive]
        keep = self.roster.keep(record)
        return [keep, *(act for node in due for act in self._start_if_due(node, now_s))]

    def _of_former_rounds(self) -> Iterator[Node]:
        """Workers that are to end before the next round can begin."""
        return (node for node in self.roster.of_role("worker") if self._is_former(node))

    def _is_former(self, node: Node) -> bool:
        number = self.rounds.number if self.rounds is not None and node.role == "worker" else 0
        return node.life.is_alive and node.life.round_no < number

    def _is_done(self, node: Node, judged: Judged) -> bool:
        """Whether the worker has come to its end in the present round."""
        present = self.rounds is None or node.life.round_no == self.rounds.number
        return present and judged.verdict is Verdict.FINISHED

    def _end_round(self, node: Node, judged: Judged, now_s: float) -> list[Act]:
        """A worker has failed, or ended since another one has: all others end, too."""
        assert self.rounds is not None
        rounds = self.rounds
        acts: list[Act] = []
        life, ordered = node.life, node.life.end_is_ordered
        if life.round_no == rounds.number:
            acts.append(self.roster.keep(RoundSet(number=rounds.number + 1)))
        if ordered or judged.verdict not in (Verdict.STOPPED, Verdict.FINISHED):
            ended = Ended(
                node=node.name, inc=life.inc, judged=judged, error=life.error, ordered=ordered
            )
            rounds.ends.append(ended)
        node.fate = Fate.BACKS_OFF
        return [*acts, *self.end_formers(now_s)]

    def end_formers(self, now_s: float) -> list[Act]:
        """Have all of former rounds end; when they have, the next round begins."""
        left = list(self._of_former_rounds())
        if not left:
            return self._next_round(now_s)
        grace_s = self.rounds.grace_s if self.rounds is not None else 0.0
        due = (node for node in left if now_s >= node.life.end_told_s + REPEAT_END_S)
        return [node.end_life(now_s, grace_s) for node in due]

    def _next_round(self, now_s: float) -> list[Act]:
        """All have ended: begin again, now or later, unless that cannot help or costs too much."""
        assert self.rounds is not None
        rounds, cause = self.rounds, self.rounds.take_cause()
        if now_s - rounds.began_s > self._restart.backoff_max_s:
            rounds.streak = 0
        # A living worker is in the present round already, which an ended one has not come to.
        ended = (node for node in self.roster.of_role("worker") if not node.life.is_alive)
        workers = [node for node in ended if node.fate is not Fate.LEAVES]
        acts: list[Act] = []
        wait_s = 0.0
        if cause is not None:
            free = cause.ordered or is_free(cause.judged.verdict, rounds.streak)
            restarts = self.roster.num_restarts()
            if cause.is_final or (not free and self._budget.is_spent(now_s, restarts)):
                return [self._give_up(cause)]
            wait_s = 0.0 if cause.ordered else self._budget.backoff_s(rounds.streak)
            rounds.streak += 0 if cause.ordered else 1
            if not free:
                self._budget.count(now_s)
                if cause.node in self.roster.nodes:  # else it was scaled away since
                    self.roster.nodes[cause.node].past.restarts += 1
            why = cause.judged.reason
            told = RestartAllEvent(node=cause.node, inc=cause.inc, cause=why, wait_s=wait_s)
            acts.append(told)
            for node in workers:
                node.past.remember(cause.judged.sign)
        for node in workers:
            node.fate, node.next.due_s = Fate.BACKS_OFF, now_s + wait_s
        if wait_s > 0:
            return acts
        return [*acts, *(act for node in workers for act in self._start_if_due(node, now_s))]

    def _give_up(self, cause: Ended) -> FailJob:
        why = "" if cause.is_final else f"; {self._budget.used_up}"
        return self._fail(cause.node, cause.judged, why)

    # ------------------------------------------------------------------ the clock

    def tick(
        self, now_s: float, *, lost_after_s: float, others_wait: bool, any_committed: bool
    ) -> list[Act]:
        """Do what is due: relaunches, repeated starts, ends that nobody reported, silence."""
        acts: list[Act] = []
        for node in list(self.roster.nodes.values()):
            life, missing_s = node.life, node.life.missing_since_s
            if missing_s is not None and now_s >= missing_s + MISSING_S:
                acts += self._missing(node, now_s, any_committed=any_committed)
            elif not life.is_alive:
                acts += self._start_if_due(node, now_s) if node.next.due_s is not None else []
            elif life.up is None and node.agent.presence is Presence.CONNECTED:
                acts += self._repeat_start(node, now_s)
            else:
                acts += self._repeat_end(node, now_s)
            if now_s - node.agent.heard_s < lost_after_s:
                continue  # no limit is shorter, and of thousand nodes hardly one is silent
            not_again = node.by_itself or node.fate is Fate.LEAVES
            if self._wanted(node) or (not_again and node.life.is_alive):
                acts += self._on_silence(node, now_s, lost_after_s, others_wait)
        if self.rounds is not None and self.rounds.spreads and not self.rounds.port:
            acts += self._gather(now_s) if not self.closing else []
        return [*acts, *self._refused_for_good(now_s)]

    def _missing(self, node: Node, now_s: float, *, any_committed: bool) -> list[Act]:
        """Its agent does not know of it, and no word about its end has come."""
        # An agent that was told to start it and was then lost may never have read that. What a
        # former master ordered and heard is not known.
        started = node.life.phase is not LifePhase.STARTING
        nothing = ExitEvidence()
        return self._ended(node, nothing, now_s, any_committed=any_committed, started=started)

    def _repeat_start(self, node: Node, now_s: float) -> list[Act]:
        life = node.life
        due = now_s >= life.started_s + REPEAT_START_S and life.is_started_by(node.agent)
        return [self._start_message(node, now_s)] if due else []

    def _repeat_end(self, node: Node, now_s: float) -> list[Act]:
        grace_s = self._end_grace_s(node)
        due = now_s >= node.life.end_told_s + REPEAT_END_S
        return [node.end_life(now_s, grace_s)] if due and grace_s is not None else []

    def _end_grace_s(self, node: Node) -> float | None:
        """The grace of an order to end that is repeated until it is obeyed; None: there is none."""
        if node.life.end is EndOrder.MOVE or node.fate is Fate.LEAVES:
            return node.life.end_grace_s
        if self._closes(node):
            return self._closing_grace_s
        return self.rounds.grace_s if self.rounds is not None and self._is_former(node) else None

    def _on_silence(
        self, node: Node, now_s: float, lost_after_s: float, others_wait: bool
    ) -> list[Act]:
        agent, is_alive, inc = node.agent, node.life.is_alive, node.life.inc
        silent_s = now_s - agent.heard_s
        asked = node.place.backing in (Backing.PENDING, Backing.REFUSED)
        if asked and not (agent.has_greeted or is_alive):
            return []  # a life whose agent was silent is judged all the same: others wait for it
        waits = not (is_alive or (node.by_itself and agent.has_greeted))
        start_s = FIRST_HELLO_S if waits else 0.0 if agent.has_greeted else AGENT_START_S
        limit_s = max(lost_after_s, start_s) * agent.patience
        limit_s += 0.0 if agent.has_greeted else self._pending_s
        if silent_s < limit_s:
            return []
        reason = f"silent for {silent_s:.1f} s"
        if self._keeps_place(node):
            return self._place_silent(node, reason, now_s, may_wait=silent_s < 2 * limit_s)
        if node.by_itself:
            given_up = silent_s >= 2 * limit_s and others_wait
            may_return = is_alive and self._wanted(node) and not given_up
            return [] if may_return else self._drop(node, reason, silent_s)
        if node.fate is Fate.LEAVES:
            return self.unreachable(node, reason, now_s)
        if agent.presence is not Presence.RELAUNCHED or not is_alive:
            told = AgentLostEvent(node=node.name, inc=inc, reason=reason, silent_s=silent_s)
            brief = agent.has_greeted and agent.heard_s < agent.greeted_s + BRIEF * limit_s
            agent.patience = min(PATIENCE, 2 * agent.patience) if brief else 1
            acts = self.launch(node, now_s)
            agent.presence = Presence.RELAUNCHED
            return [told, *acts]
        return self.unreachable(node, reason, now_s) if others_wait else []

    def _place_silent(self, node: Node, reason: str, now_s: float, *, may_wait: bool) -> list[Act]:
        """Open the place of a node whose machine has joined and is silent, or has never come."""
        if node.life.is_alive:
            return [] if may_wait else self.unreachable(node, reason, now_s)
        node.agent.miss()
        return []

    def unreachable(self, node: Node, reason: str, now_s: float) -> list[Act]:
        """Give up its life: nothing is heard of its agent, nor will be."""
        inc, silent_s = node.life.inc, now_s - node.agent.heard_s
        taken = self._taken(node) in TAKEN_AWAY
        verdict = Verdict.TAKEN_AWAY if taken else Verdict.RETRYABLE
        gone = Judged("unreachable", verdict, f"unreachable, {reason}")
        lost = NodeLostEvent(node=node.name, inc=inc, reason=gone.reason, silent_s=silent_s)
        if node.fate is Fate.LEAVES:
            return [lost, *self._left(node, now_s)]
        # If its connection has outlived its silence, nothing else would have it greet again.
        told = [lost, HangUp(node.name)] if node.by_itself else [lost]
        if self._keeps_place(node):
            node.agent.miss()
        elif node.by_itself:  # its agent is awaited for a while, and begins another life
            node.life.went_away = True
            return [*told, *self.lost(node)]
        return [*told, *self.lost(node), *self._again(node, gone, now_s)]

    # ------------------------------------------------------------------ servers

    def _told_change(self, change: ServersChanging) -> Event:
        """Return what there is to tell of servers that have their places now."""
        if change.replaced:
            old, successor = self.roster.nodes[change.replaced], change.joining[0]
            return ReplacedEvent(node=old.name, inc=old.life.inc, successor=successor)
        count = sum(1 for _ in self.roster.in_place())
        return ServersChangedEvent(count=count, joined=change.joining, left=change.leaving)

    def not_changed(self, *, futile: bool = True, withdrawn: bool = False) -> list[Act]:
        """Those that were to join are not to: the job goes on without them.

        ``futile``: they could not; a crash of somebody else says nothing about the attempt.
        ``withdrawn``: nobody wants them any more.
        """
        change = self.roster.change
        if change is None:
            return []
        keep = self.roster.keep(ServersNotChanged(futile=futile))
        count = sum(1 for _ in self.roster.in_place())
        told: Event = ServersNotChangedEvent(count=count, futile=futile, withdrawn=withdrawn)
        if change.replaced:
            replaced = self.roster.nodes.get(change.replaced)
            inc = replaced.life.inc if replaced is not None else NO_INC
            told = NotReplacedEvent(node=change.replaced, inc=inc)
        return [told, keep, *(Retire(name) for name in change.joining)]

    def changed(self) -> list[Act]:
        """Those that joined have everything: those that were to leave may go."""
        change = self.roster.change
        if change is None:
            return []
        acts: list[Act] = [self.roster.keep(ServersChanged()), self._told_change(change)]
        for name in change.leaving:
            acts += self.gone_for_good(self.roster.nodes[name])
        return acts

    def close(self, now_s: float, grace_s: float) -> list[Act]:
        """End all workers' processes in order: nothing is started again from here on."""
        self.closing, self._closing_grace_s = True, grace_s
        closed = [node for node in self.roster.nodes.values() if self._closes(node)]
        return [node.end_life(now_s, grace_s) for node in closed]

    def close_at_once(self) -> None:
        """All agents leave: no node is started again."""
        self.closing = True

    def _closes(self, node: Node) -> bool:
        """Whether its process was told to end; an agent launched since does not know that."""
        is_told = self._closing_grace_s is not None and node.role == "worker"
        return is_told and node.life.is_alive
