"""Events of nodes: their agents, their lives, why those end and what follows."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from paceline.base.node_files import MASTER
from paceline.base.sizes import size_of
from paceline.wire.events.base import Event, ReasonedEvent


class Verdict(StrEnum):
    """Meaning of the end of a life for the node."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """Ended by our own order, which says what comes next."""
    PREEMPTED = "preempted"
    MADE_ROOM = "made room"
    """Ended for the memory of a guaranteed job on the same device."""
    TAKEN_AWAY = "taken away"
    """Ended with its place, which the platform took away or calls lost."""
    OOM = "oom"
    RETRYABLE = "retryable"
    UNRETRYABLE = "unretryable"
    GIVEN_UP = "given up"
    """Ended because of what became of others, or by the master's word."""
    NOT_STARTED = "not started"
    """Never a process that could have failed."""


# --------------------------------------------------------------------------- starts


class AgentJoinedEvent(Event, frozen=True):
    """An agent of the node has connected."""

    pid: int

    is_usual = True
    clause_words = "pid {0.pid}"
    sentence_words = "the agent of {0.node} joined: {0.clause}"


class AgentLostEvent(ReasonedEvent, frozen=True):
    """The agent of the node is gone or silent; another one is launched."""

    silent_s: float | None = None
    """Seconds for which it has said nothing; None: the backend saw its end."""

    sentence_words = "the agent of {0.node} lost{0.after_colon}"


class MachinesAwaitedEvent(Event, frozen=True):
    """The job waits for machines to join, without which its workers do not begin."""

    count: int
    """Machines that are there."""
    wanted: int

    clause_words = "{0.count} of {0.wanted} machines are there"
    sentence_words = (
        "{0.clause}; the job waits: run `paceline agent --join ticket` on another one, with a copy "
        "of the file `ticket` of the job's directory"
    )


class MachineJoinedEvent(Event, frozen=True):
    """A machine has joined, and runs these workers."""

    nodes: tuple[str, ...]
    host: str

    clause_words = "{0.host}"

    def sentence(self) -> str:
        return f"{self.host} joined: it runs {', '.join(self.nodes)}"


class PlacePendingEvent(ReasonedEvent, frozen=True):
    """The platform has no place for the node yet."""

    sentence_words = "{0.node} waits for its place{0.after_colon}"


class PlaceRefusedEvent(ReasonedEvent, frozen=True):
    """The platform does not start the node."""

    sentence_words = "the platform refuses {0.node}{0.after_colon}"


class NotSharedEvent(Event, frozen=True):
    """The node's machine does not see the job's directory."""

    folder: str
    host: str

    clause_words = "{0.folder} is not on {0.host}"
    sentence_words = (
        "the job's directory is on the master's machine alone ({0.clause}): if that is lost, the "
        "job cannot go on; keep jobs on storage that all machines share, or copy cuts to a URL"
    )


class PlaceDrainingEvent(ReasonedEvent, frozen=True):
    """The node's place is going away: the node leaves it."""

    sentence_words = "the place of {0.node} is going away{0.after_colon}"


class ResizeDeferredEvent(ReasonedEvent, frozen=True):
    """The platform cannot give the node its new size yet."""

    sentence_words = "{0.node} gets its new size later{0.after_colon}"


class StandInEvent(Event, frozen=True):
    """Another worker is asked for, and stands in while this one leaves its place."""

    successor: str

    sentence_words = "{0.successor} stands in while {0.node} leaves its place"
    clause_words = "{0.successor} stands in"


class NotMovedAwayEvent(ReasonedEvent, frozen=True):
    """The node's place is going away, and the node cannot leave it in order."""

    sentence_words = "{0.node} cannot leave its place in order{0.after_colon}"


class UnbackedEvent(ReasonedEvent, frozen=True):
    """The platform calls the node dead; its agent works on."""

    sentence_words = "{0.node} works on, though the platform calls it lost{0.after_colon}"


class NoLimitsEvent(ReasonedEvent, frozen=True):
    """The node runs without limits that were asked for."""

    sentence_words = "{0.reason}"


class NodeResizedEvent(Event, frozen=True):
    """The node may use another part of its machine from now on; None: no limit."""

    cores: float | None
    memory_bytes: int | None

    sentence_words = "{0.node} may use {0.clause} from now on"

    @property
    def clause(self) -> str:
        cores = "all cores" if self.cores is None else f"{self.cores:g} cores"
        memory = "all memory" if self.memory_bytes is None else size_of(self.memory_bytes)
        return f"{cores} and {memory}"


class NotResizedEvent(ReasonedEvent, frozen=True):
    """A change of what nodes may use was given up: those that have not moved stay as they are."""

    sentence_words = "nodes keep the sizes that they have{0.after_colon}"


class NodeStartedEvent(Event, frozen=True):
    """A new life of the node."""

    is_usual = True
    sentence_words = "{0.node} starts (life {0.inc})"


class ProcessUpEvent(Event, frozen=True):
    """The process of a life answers."""

    pid: int
    address: str = ""
    """The address of a server."""

    is_usual = True
    sentence_words = "{0.node} is up ({0.clause})"

    @property
    def clause(self) -> str:
        return f"pid {self.pid} at {self.address}" if self.address else f"pid {self.pid}"


class WorksEvent(Event, frozen=True):
    """The node does its share after a start, which took so many seconds."""

    pending_s: float
    start_s: float
    rebuild_s: float
    restore_s: float
    redo_s: float

    is_usual = True
    sentence_words = "{0.node} works: its start took {0.clause}"

    @property
    def clause(self) -> str:
        return in_parts(
            {
                "pending": self.pending_s,
                "start": self.start_s,
                "rebuild": self.rebuild_s,
                "restore": self.restore_s,
                "redo": self.redo_s,
            }
        )


def in_parts(took_s: Mapping[str, float]) -> str:
    """``1.20 s (start 1.00 s, rebuild 0.20 s)``: the sum, and its parts that took any time."""
    parts = ", ".join(f"{name} {one_s:.2f} s" for name, one_s in took_s.items() if one_s >= 0.005)
    total = f"{sum(took_s.values()):.2f} s"
    return f"{total} ({parts})" if parts else total


# --------------------------------------------------------------------------- ends


class LeftLoopEvent(Event, frozen=True):
    """The script of a worker has left its loop over ``job.batches`` before the end."""

    step: int
    """The newest step that it has done."""
    miscount: int = 0
    """Batches of its life, if these are not the steps and it did not ask for those; else 0."""

    clause_words = "at step {0.step}"
    sentence_words = "{0.node} left its loop over job.batches before the end, {0.clause}"

    @property
    def is_news(self) -> bool:
        return self.miscount > 0

    @property
    def doubt(self) -> str:
        """Words on what a counter of the script's own may make of it."""
        return (
            f"if the script counts its batches, of which this life had {self.miscount}, it may "
            "have left after another step than an undisturbed run does: decide by job.step"
        )

    def sentence(self) -> str:
        """Say what happened, and what is in doubt."""
        return super().sentence() + (f"; {self.doubt}" if self.miscount else "")


class ChiefMissedEvent(Event, frozen=True):
    """The others begin their next loop without the worker that alone prints and saves."""

    waited_s: float

    is_news = True
    clause_words = "after {0.waited_s:.0f} s"
    sentence_words = (
        "{0.node} did not come back, and the others begin their next loop without it, {0.clause}: "
        "what the script does where job.is_chief behind the last loop was not done"
    )


class HungEvent(Event, frozen=True):
    """A process hangs and is ended; ``logs/<node>.stacks`` has what its threads did."""

    since_s: float
    """Seconds for which it has made no progress."""
    silent: bool = False
    """Whether the process itself was silent, too."""

    sentence_words = "{0.node} hangs: {0.clause}"

    @property
    def clause(self) -> str:
        how = f"no step for {self.since_s:.1f} s, while all others wait for it"
        if self.silent:
            how = f"it has said and done nothing for {self.since_s:.1f} s"
        return f"{how}; what it did: logs/{self.node}.stacks"


BY_ORDER = "by order"
"""The reason of what a person wants."""
KILLED_BY_ORDER = f"killed {BY_ORDER}"
"""The cause of a restart after `paceline kill`."""


class KilledEvent(Event, frozen=True):
    """A person ends the process of a node, or the master, at once."""

    clause_words = BY_ORDER
    sentence_words = "{0.node} is killed by order"

    def sentence(self) -> str:
        return f"the {super().sentence()}" if self.node == MASTER else super().sentence()


class KillRestartEvent(ReasonedEvent, frozen=True):
    """A worker must end, and starts again at another place."""

    sentence_words = "{0.node} is restarted {0.cause}"

    @property
    def by_person(self) -> bool:
        """Whether a person ordered it, and no solution decided it."""
        return self.reason == BY_ORDER

    @property
    def cause(self) -> str:
        """Return why it is restarted, in words: by a person's order, or by a decision."""
        return BY_ORDER if self.by_person else f"by decision: {self.reason}"


class ProcessExitedEvent(ReasonedEvent, frozen=True):
    """A life is over, by a rule of ``protocol/nodes/exits.py``."""

    verdict: Verdict
    exit_code: int | None = None
    signal: int | None = None
    """The signal that ended the process."""
    oom_kills: int = 0
    """Kills for memory in the node's control group during this life."""
    traceback: str = ""
    """The traceback of the script, if its error ended the life."""

    is_usual = True
    sentence_words = "{0.node} ended: {0.reason}"


class FencedEvent(Event, frozen=True):
    """Nothing of this life counts from here on."""

    before_restart: bool = False
    """Whether the life ended while no master was there to see it."""

    is_usual = True

    @property
    def clause(self) -> str:
        return f"incarnation {self.inc}, of before the restart" if self.before_restart else ""


class NodeLostEvent(ReasonedEvent, frozen=True):
    """A node is given up: nobody can reach it, or it came on its own and has left."""

    silent_s: float | None = None
    """Seconds for which its agent has said nothing; None: its process has ended."""

    sentence_words = "{0.node} lost{0.after_colon}"


class LeftOutEvent(ReasonedEvent, frozen=True):
    """A worker cannot take part, nor could its next life; the others go on."""

    sentence_words = "{0.node} is left out, the others go on: {0.reason}"


# --------------------------------------------------------------------------- what follows


class _AgainEvent(Event, frozen=True):
    """A life is over, and something starts again."""

    cause: str
    wait_s: float
    """Seconds until then."""

    clause_words = "{0.cause}; again in {0.wait_s:.1f} s"

    @property
    def when(self) -> str:
        """Later, in words; empty: at once."""
        wait = f"{self.wait_s:.1f} s"
        return "" if wait == "0.0 s" else f" in {wait}"


class RelaunchEvent(_AgainEvent, frozen=True):
    """A life is over, and the node is started again."""

    sentence_words = "{0.node} ended ({0.cause}), started again{0.when}"


class RestartAllEvent(_AgainEvent, frozen=True):
    """A life is over, and all workers are started again."""

    sentence_words = "{0.node} ended ({0.cause}), all workers start again{0.when}"


class ReplacingEvent(Event, frozen=True):
    """Another server is started to take the place of this one."""

    cause: str
    successor: str

    clause_words = "{0.cause}: {0.successor} takes over"


class ReplacedEvent(Event, frozen=True):
    """Another server has taken the place of this one."""

    successor: str

    clause_words = "by {0.successor}"


class NotReplacedEvent(Event, frozen=True):
    """No other server takes the place of this one."""


class ServersChangedEvent(Event, frozen=True):
    """Servers have joined or left while training went on."""

    count: int
    """Servers now."""
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def clause(self) -> str:
        parts = [("with", self.joined), ("without", self.left)]
        told = [f"{word} {', '.join(nodes)}" for word, nodes in parts if nodes]
        return ", ".join([f"{self.count} now", *told])


class ServersNotChangedEvent(Event, frozen=True):
    """No server has joined or left, though that was ordered."""

    count: int
    """Servers as before."""
    futile: bool = True
    """True: servers that were to join could not. False: a server has died meanwhile."""
    withdrawn: bool = False
    """The order was withdrawn, since those that were to join did not come in time."""

    @property
    def clause(self) -> str:
        if self.withdrawn:
            return f"still {self.count}: the order is withdrawn"
        lacks = "buckets could not move" if self.futile else "training went back to a cut meanwhile"
        return f"still {self.count}: {lacks}; to try again, repeat `paceline scale --servers`"


class MoveGivenUpEvent(Event, frozen=True):
    """A server to which buckets are to move does not get that far."""

    successor: str
    lacks: Literal["share", "answer"]
    """Missing thing: its share of buckets, or its own answer."""
    waited_s: float

    @property
    def clause(self) -> str:
        what = "nothing of its share has come" if self.lacks == "share" else "no answer"
        return f"{self.successor}: {what} for {self.waited_s:.0f} s"
