"""One node of the job as the membership knows it: its state, its journal records, what to do.

Vocabulary only; `paceline.protocol.nodes.membership` decides.
"""

from typing import Literal, assert_never

import msgspec

from paceline.base.numbering import NO_INC, Inc
from paceline.protocol.nodes.exits import Judged, is_echo
from paceline.protocol.nodes.lives import (
    Backing,
    Fate,
    LifePhase,
    NextLife,
    NodeAgent,
    NodeLife,
    NodePast,
    NodePlace,
    Presence,
    Refusals,
)
from paceline.protocol.records import Record
from paceline.wire.events.base import Event
from paceline.wire.events.nodes import LeftLoopEvent, ProcessExitedEvent
from paceline.wire.messages.agent import AgentHello, ExitEvidence, StartProcess
from paceline.wire.messages.node import Finished

# --------------------------------------------------------------------------- records


class NodeStarted(Record, frozen=True):
    """A new life: the number is given to nobody else, whatever happens."""

    node: str
    inc: Inc
    restarts: int = 0
    """Number of restarts of this node so far that cost budget."""
    decided: int = 0
    """Lives of this node, so far, that a KILL_RESTART has ended."""
    previous: tuple[str, int] | None = None
    """Sign of the end of the life before: exception class, exit code or signal, and the step."""
    repeats: int = 0
    """Number of lives before this one that ended so, one after another."""
    round_no: int = 0
    """Strategy script: the round that this life takes part in."""


class NodeFinished(Record, frozen=True):
    """The node's script has returned: it is not started again."""

    node: str
    joined: bool = True
    """Whether the script called ``pl.init``."""


class NodeRefused(Record, frozen=True):
    """The node cannot take part in the job: it is not started again."""

    node: str
    reason: str


class NodeRecalled(Record, frozen=True):
    """A node that was left out is to be tried again."""

    node: str


class WorkersWanted(Record, frozen=True):
    """The job was scaled."""

    count: int
    next_inc: Inc = NO_INC
    """Lowest number that no life can have had; only in a snapshot."""


class ServersWanted(Record, frozen=True):
    """The job was resumed with so many servers."""

    count: int


class NodeJoined(Record, frozen=True):
    """A worker that joined on its own: the backend neither launches nor stops it."""

    node: str


class NodeDropped(Record, frozen=True):
    """A node that joined on its own: gone, and not awaited."""

    node: str


class RestartOrdered(Record, frozen=True):
    """A KILL_RESTART: this life is to end in order, the next begins at another place."""

    node: str
    grace_s: float


class ServerAdded(Record, frozen=True):
    """A server that has its place, as a snapshot tells it."""

    node: str


class ServersChanging(Record, frozen=True):
    """Servers are to join, others to leave; one for one: it replaces the other."""

    joining: tuple[str, ...]
    leaving: tuple[str, ...]

    @property
    def replaced(self) -> str:
        """The server that is replaced; empty: the number of servers changes."""
        return self.leaving[0] if len(self.joining) == len(self.leaving) == 1 else ""


class ServersChanged(Record, frozen=True):
    """Those that were to join have their places, those that were to leave are on their way out."""


class ServersNotChanged(Record, frozen=True):
    """The servers stay as they were; those that were to join are gone, and not awaited."""

    futile: bool = False
    """True: those that were to join could not take their places."""


class RoundSet(Record, frozen=True):
    """Strategy script: all workers are to be in this round; who is in an earlier one ends first."""

    number: int
    port: int = 0
    """Port at which the workers of the round meet; 0: nobody has begun it yet."""
    host: str = ""
    """Address at which rank 0 listens there; empty: that of the master's machine."""
    groups: tuple[tuple[str, ...], ...] = ()
    """Names of the workers of each machine, in the order of ranks; none: one machine has all."""


class JobEnded(Record, frozen=True):
    """The job has ended; who goes on from this journal has a fresh budget."""


MemberRecords = (
    NodeStarted
    | NodeFinished
    | NodeRefused
    | NodeRecalled
    | WorkersWanted
    | ServersWanted
    | NodeJoined
    | NodeDropped
    | RestartOrdered
    | ServerAdded
    | ServersChanging
    | ServersChanged
    | ServersNotChanged
    | RoundSet
    | JobEnded
)

# --------------------------------------------------------------------------- instructions


class KeepRecord(msgspec.Struct, frozen=True):
    """Journal this before anything that follows."""

    record: MemberRecords


class Launch(msgspec.Struct, frozen=True):
    """Have the backend start an agent for the node, in place of any other."""

    node: str


class Retire(msgspec.Struct, frozen=True):
    """The node is to be no more: tell its agent to leave."""

    node: str
    why: str = ""
    """Reason for which the job goes on without it; empty: as it should be."""


class HangUp(msgspec.Struct, frozen=True):
    """The node was given up: end the connection of its agent, which greets again if it lives."""

    node: str


class FindPort(msgspec.Struct, frozen=True):
    """Find where the workers of the next round meet, and say so (`Membership.meet_at`)."""

    node: str = ""
    """Node whose agent knows, since rank 0 listens on its machine; empty: the master does."""


class Start(msgspec.Struct, frozen=True):
    """Send to the node's agent."""

    node: str
    message: StartProcess


class EndLife(msgspec.Struct, frozen=True):
    """Have the agent end this incarnation: in order, after ``grace_s`` by force.

    ``hung``: it makes no progress; the agent first records what its threads do.
    """

    node: str
    inc: Inc
    grace_s: float
    hung: bool = False


class WorkerUp(msgspec.Struct, frozen=True):
    """A worker's process is there."""

    inc: Inc


class WorkerLost(msgspec.Struct, frozen=True):
    """Nothing of this worker may count from here on."""

    inc: Inc


class JoinerLost(msgspec.Struct, frozen=True):
    """A server that was to join is dead."""

    inc: Inc


class FailJob(msgspec.Struct, frozen=True):
    """The job cannot go on."""

    reason: str
    traceback: str = ""
    exit_code: int = 0
    """The script's own, where it is the script that failed."""


Act = (
    KeepRecord
    | Launch
    | Retire
    | HangUp
    | FindPort
    | Start
    | EndLife
    | WorkerUp
    | WorkerLost
    | JoinerLost
    | FailJob
    | Event
)
"""An event is for the events file, and for all that watch nodes."""

# --------------------------------------------------------------------------- state

RETURN_S = 0.4
"""An agent of another machine whose connection broke is back within this, or its node is gone: it
tries every 0.2 s."""
BROKEN_RETURN_S = 0.15
"""The agent is back within this while its node's group is broken: then not its connection alone
broke. Its first attempt comes after 0.05 s."""
_BACKED = {Backing.DRAINING: "draining", Backing.LOST: "unbacked"}


class Node(msgspec.Struct):
    """One node: who it is, and its agent, life and fate."""

    name: str
    role: str
    rank: int
    by_itself: bool = False
    """Whether the node joined on its own: the backend can start no agent for it."""
    joins: bool = False
    """Whether the server awaits buckets of other servers, and has none yet."""
    agent: NodeAgent = msgspec.field(default_factory=NodeAgent)
    place: NodePlace = NodePlace()
    refusals: Refusals = msgspec.field(default_factory=Refusals)
    life: NodeLife = msgspec.field(default_factory=NodeLife)
    fate: Fate = Fate.STAYS
    next: NextLife = msgspec.field(default_factory=NextLife)
    past: NodePast = msgspec.field(default_factory=NodePast)

    @property
    def word(self) -> str:
        """Word for the node in the status."""
        match self.fate:
            case Fate.FINISHED:
                return "finished"
            case Fate.FAILED:
                return "failed"
            case Fate.BACKS_OFF:
                return "refused" if self.refusals.times else "backing off"
            case Fate.STAYS | Fate.LEAVES:
                return self._life_word()
            case _:
                assert_never(self.fate)

    def _life_word(self) -> str:
        match self.life.phase:
            case LifePhase.STARTING:
                return "starting"
            case LifePhase.RUNNING:
                return _BACKED.get(self.place.backing, "running")
            case LifePhase.ENDED:
                return "lost"
            case LifePhase.PRESUMED if self.agent.presence is Presence.ABSENT:
                return "not known"
            case LifePhase.NONE | LifePhase.PRESUMED:
                waits = "refused" if self.refusals.times else "pending"
                was_there = self.life.inc or not self.by_itself
                return "lost" if was_there and self.agent.presence is Presence.ABSENT else waits
            case _:
                assert_never(self.life.phase)

    def has_departed(self, now_s: float, return_s: float) -> bool:
        """Whether its machine has ended the connection, and its agent does not come back.

        A connection that is closed, and not silent, was closed by the kernel there: all of the node
        is gone, or its agent alone, which the platform says sooner. On the master's own machine the
        end of the agent itself is seen.
        """
        left_s = self.agent.left_s
        return (
            self.agent.is_remote
            and self.life.is_alive
            and left_s is not None
            and now_s >= left_s + return_s
        )

    def turns_away(self, hello: AgentHello) -> bool:
        """Whether an agent must leave, since one of another machine has this node.

        A machine is cut off, and its node is given to another one. Then the cable is plugged in
        again: both agents connect again whenever the other one is heard, unless one leaves.
        """
        there = self.agent.presence is Presence.CONNECTED and hello.machine != self.agent.machine
        runs_it = self.life.is_alive and any(up.inc == self.life.inc for up in hello.running)
        return there and not runs_it

    def settle(self, fate: Literal[Fate.FINISHED, Fate.FAILED]) -> None:
        """Take in that no further life follows its last; one that leaves does so all the same."""
        self.life.finish()
        if self.fate is not Fate.LEAVES:
            self.fate = fate

    def end_life(self, now_s: float, grace_s: float, *, hung: bool = False) -> EndLife:
        """Have its agent end its life."""
        self.life.end_told_s = now_s
        return EndLife(self.name, self.life.inc, grace_s, hung)

    def told_end(self, judged: Judged, exit_: ExitEvidence) -> ProcessExitedEvent:
        """The end of its life, for the events file: with a traceback if the script is the cause."""
        error = self.life.error
        blamed = error is not None and error.in_user_code and not is_echo(error)
        return ProcessExitedEvent(
            node=self.name,
            inc=self.life.inc,
            reason=judged.reason,
            verdict=judged.verdict,
            exit_code=exit_.exit_code,
            signal=exit_.signal,
            oom_kills=exit_.oom_kills,
            traceback=judged.users_traceback if blamed else "",
        )

    def told_return(self, message: Finished) -> list[LeftLoopEvent]:
        """Take in that its script has returned; what there is to tell of that."""
        again, self.life.returned = self.life.returned, True
        self.life.done = message.done
        self.past.joined |= message.joined
        if again or message.left_step is None:
            return []
        inc, step, miscount = self.life.inc, message.left_step, message.miscount
        return [LeftLoopEvent(node=self.name, inc=inc, step=step, miscount=miscount)]
