"""Care of an agent for its node's training process: a pure machine, messages in, acts out.

It owns who runs here (at most one incarnation), how it is being ended, and what the master must
still be told. The clock is an argument; `paceline.agent.agent` carries the acts out.
"""

import signal
from typing import assert_never

import msgspec

from paceline.base.numbering import Inc
from paceline.wire.messages.agent import (
    AgentUp,
    ExitEvidence,
    FileServers,
    FindMeeting,
    FromProcess,
    Leave,
    LimitNode,
    NodeTakes,
    ProbeMachine,
    ProcessExited,
    SendLog,
    StartProcess,
    StopProcess,
    ToProcess,
)
from paceline.wire.messages.features import AgentFeatureTold
from paceline.wire.messages.node import (
    Finished,
    KeepCut,
    Leaving,
    NodeDown,
    NodeUp,
    ProcessUp,
    ScriptError,
)

LEAVE_GRACE_S = 1.0
"""Between SIGTERM and SIGKILL when the node goes away and nobody waits for its work."""


class ForkLife(msgspec.Struct, frozen=True):
    """Fork this incarnation."""

    start: StartProcess


class Signal(msgspec.Struct, frozen=True):
    """Send a signal to the process of the node (SIGKILL: to all its children too)."""

    number: int


class Refuse(msgspec.Struct, frozen=True):
    """Kill a process of an incarnation that must not run here, and forget its connection."""

    up: ProcessUp


class Report(msgspec.Struct, frozen=True):
    """Send to the master; dropped while there is none."""

    message: AgentUp


class Deliver(msgspec.Struct, frozen=True):
    """Send to the process; dropped while it is not connected."""

    body: NodeDown


class KnowServers(msgspec.Struct, frozen=True):
    """Write down who serves files of cuts, for the process as well."""

    servers: FileServers


class EndHung(msgspec.Struct, frozen=True):
    """Capture what the process's threads do, then SIGKILL."""


class Quit(msgspec.Struct, frozen=True):
    """Nothing runs any more and nothing will: end the agent."""


MasterOrder = LimitNode | AgentFeatureTold | SendLog | ProbeMachine | FindMeeting
"""Orders of the master that change nothing here: the agent carries them out as they are."""
Act = ForkLife | Signal | EndHung | Refuse | Report | Deliver | KnowServers | MasterOrder | Quit


class Life(msgspec.Struct):
    """One incarnation, from StartProcess to the acknowledgement of its end."""

    up: ProcessUp
    """Word of the process on its start; until it speaks, what is known: pid 0 until it is
    forked."""
    stopped_by_us: bool = False
    hung: bool = False
    made_room: bool = False
    kill_at_s: float | None = None
    extra_s: float = 0.0
    """Seconds that an orderly end takes longer, since the process keeps a cut first."""
    last_words: tuple[AgentUp, ...] = ()
    """Last words of the process, kept with its end: a process that is gone repeats nothing."""
    ended: ProcessExited | None = None


AgentTakes = KeepCut | Leaving
"""Messages of a process to its agent alone: the master hears nothing of them."""


class NodeState:
    """The machine.

    Args:
        node: the agent's.
        adopted: the process that a predecessor of this agent left running.
        stop_s: a process whose script has raised is killed after so many seconds.
    """

    def __init__(self, node: str, adopted: ProcessUp | None = None, *, stop_s: float = 5.0) -> None:
        self.node = node
        self._stop_s = stop_s
        self.life = Life(adopted) if adopted else None
        #: Runs when the present life is over, and when there is room for it.
        self._next: StartProcess | None = None
        self._has_room = True
        self._leaving = False
        self.left_out = ""
        """Why the job goes on without this node; empty: it does not."""
        self._servers = FileServers()

    @property
    def running(self) -> ProcessUp | None:
        """The process that runs, or is about to."""
        return self.life.up if self.life and self.life.ended is None else None

    # ------------------------------------------------------------------ the master

    def connected(self) -> list[Act]:
        """Return what follows the hello on a new stream: an end that the master may not know."""
        return self._tell_end()

    def on_master(self, message: NodeTakes, now_s: float) -> list[Act]:
        """Answer the master; repetitions and what is out of date change nothing."""
        match message:
            case StartProcess():
                return self._start(message, now_s)
            case StopProcess(inc=inc, hung=True):
                return self._end_hung(inc, now_s)
            case StopProcess(inc=inc, grace_s=grace_s):
                return self._stop(inc, grace_s, now_s)
            case ToProcess(inc=inc, body=body):
                running = self.running
                return [Deliver(body)] if running and running.inc == inc else []
            case LimitNode() | AgentFeatureTold() | SendLog() | ProbeMachine() | FindMeeting():
                return [message]
            case Leave(why=why):
                self.left_out = why
                return self.leave(LEAVE_GRACE_S, now_s)
            case FileServers():
                self._servers = message.over(self._servers)
                return [KnowServers(self._servers)]
            case _:
                assert_never(message)

    def _start(self, start: StartProcess, now_s: float) -> list[Act]:
        newest = self._next.inc if self._next else self.life.up.inc if self.life else 0
        if self._leaving or start.inc < newest:
            return []
        if start.inc == newest:
            return self._tell_end() or self._tell_up()
        if self.running:
            # The master has given up the old one, which may be why it does not answer.
            self._next = start
            return self._end_running(0.0, now_s)
        self._next = start
        return self._run_next()

    def _run_next(self) -> list[Act]:
        start = self._next
        if start is None or not self._has_room:
            return []
        self._next = None
        self.life = Life(ProcessUp(node=self.node, inc=start.inc, pid=0, role=start.role))
        return [ForkLife(start)]

    def _stop(self, inc: Inc, grace_s: float, now_s: float) -> list[Act]:
        if self._next and self._next.inc == inc:
            self._next = None
        running = self.running
        if running and running.inc == inc:
            return self._end_running(grace_s, now_s)
        if self.life and self.life.up.inc == inc:
            return self._tell_end()
        evidence = ExitEvidence(stopped_by_us=True)
        return [Report(ProcessExited(node=self.node, inc=inc, evidence=evidence))]

    def _end_hung(self, inc: Inc, now_s: float) -> list[Act]:
        life = self.life
        if life is None or life.up.inc != inc or life.ended or not life.up.pid:
            return self._stop(inc, 0.0, now_s)
        if life.hung:
            return []
        life.hung = True
        return [EndHung()]

    def room(self, has_room: bool, now_s: float) -> list[Act]:
        """Take in whether a shared device has room for the process; without it none runs."""
        if has_room == self._has_room:
            return []
        self._has_room = has_room
        if self.running is None:
            return self._run_next()
        if not has_room:
            self._life().made_room = True
            return self._end_running(self._stop_s, now_s)
        return []

    def leave(self, grace_s: float, now_s: float) -> list[Act]:
        """End the process (if one runs) and then the agent."""
        self._leaving = True
        self._next = None
        return self._end_running(grace_s, now_s) if self.running else [Quit()]

    def _end_running(self, grace_s: float, now_s: float) -> list[Act]:
        life = self.life
        if life is None or life.ended:
            return []
        first = not life.stopped_by_us
        self._end_by(now_s + (grace_s + life.extra_s if grace_s > 0 else 0.0))
        life.stopped_by_us = True
        if grace_s <= 0:
            return [Signal(signal.SIGKILL)]
        # A second SIGTERM would mean "at once" to the process.
        return [Signal(signal.SIGTERM)] if first else []

    def _end_by(self, kill_at_s: float) -> None:
        life = self._life()
        life.kill_at_s = kill_at_s if life.kill_at_s is None else min(life.kill_at_s, kill_at_s)

    def _tell_up(self) -> list[Act]:
        running = self.running
        return [self._from_process(running)] if running and running.pid else []

    def _tell_end(self) -> list[Act]:
        if self.life is None or self.life.ended is None:
            return []
        return [Report(message) for message in (*self.life.last_words, self.life.ended)]

    # ------------------------------------------------------------------ the process

    def forked(self, inc: int, pid: int) -> list[Act]:
        """The process exists now (it says so itself later)."""
        life = self.life
        if life is None or life.up.inc != inc or life.ended:
            return []
        if life.up.pid == 0:
            life.up = msgspec.structs.replace(life.up, pid=pid)
        if not life.stopped_by_us:
            return []
        # Its end was wanted before it existed: it has done nothing yet that could be lost.
        return [Signal(signal.SIGKILL)]

    def on_process(self, inc: int, message: NodeUp, now_s: float) -> list[Act]:
        """Forward what the process of incarnation ``inc`` says."""
        running = self.running
        if isinstance(message, ProcessUp):
            if running is None or running.inc != message.inc or self._is_twin(message):
                return [Refuse(message)]
            self._life().up = message
            return [self._from_process(message)]
        if running is None or running.inc != inc:
            return []
        if isinstance(message, Leaving):
            self._grant(message.within_s)
            return []
        if isinstance(message, ScriptError | Finished):
            last_words = FromProcess(node=self.node, body=message)
            life = self._life()
            if last_words not in life.last_words:
                life.last_words = (*life.last_words, last_words)
        if isinstance(message, ScriptError):
            # Its threads may never end, and until it does the job tells nobody of the error.
            self._end_by(now_s + self._stop_s)
        return [self._from_process(message)]

    def _grant(self, extra_s: float) -> None:
        """Have an orderly end take so much longer; again: nothing."""
        life = self._life()
        if life.kill_at_s is not None:
            life.kill_at_s += extra_s - life.extra_s
        life.extra_s = extra_s

    def _is_twin(self, up: ProcessUp) -> bool:
        """A second fork of the same incarnation, made when a zygote died before it could report."""
        return self._life().up.pid not in (0, up.pid)

    def exited(self, inc: int, evidence: ExitEvidence) -> list[Act]:
        """The process is gone and all it said was handed in."""
        life = self.life
        if life is None or life.up.inc != inc or life.ended:
            return []
        evidence = msgspec.structs.replace(
            evidence,
            stopped_by_us=life.stopped_by_us,
            hung=life.hung,
            made_room=life.made_room,
        )
        life.ended = ProcessExited(node=self.node, inc=life.up.inc, evidence=evidence)
        acts: list[Act] = [Report(life.ended)]
        acts += self._run_next()
        if self._leaving:
            acts.append(Quit())
        return acts

    @property
    def must_end(self) -> bool:
        """Whether the process was told to end, by some time."""
        life = self.life
        return life is not None and life.ended is None and life.kill_at_s is not None

    def tick(self, now_s: float) -> list[Act]:
        """Use force where the time for an orderly end is over."""
        life = self.life
        if life is None or life.ended or life.kill_at_s is None or now_s < life.kill_at_s:
            return []
        life.kill_at_s = now_s + 1.0
        return [Signal(signal.SIGKILL)]

    def _life(self) -> Life:
        assert self.life is not None
        return self.life

    def _from_process(self, body: NodeUp) -> Report:
        return Report(FromProcess(node=self.node, body=body))
