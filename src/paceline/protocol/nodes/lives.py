"""Parts of a node: its agent, its newest life, its fate, and what its lives have left.

Vocabulary only; `paceline.protocol.nodes.membership` decides. Times are by the caller's clock.
"""

import enum

import msgspec

from paceline.base.numbering import NO_INC, Inc
from paceline.protocol.nodes.ends import EndKind
from paceline.wire.messages.agent import AgentHello
from paceline.wire.messages.node import ProcessUp, ScriptError


class Presence(enum.Enum):
    """Whether a node's agent is there."""

    LAUNCHED = enum.auto()
    """Launched, or about to be, and silent so far."""
    RELAUNCHED = enum.auto()
    """Launched in the place of an agent that fell silent, and silent so far."""
    CONNECTED = enum.auto()
    ABSENT = enum.auto()
    """Gone or unheard: its connection broke, or only a former master has heard it. It may come
    back."""


class Backing(enum.Enum):
    """Word of the platform about a node's place."""

    UNKNOWN = enum.auto()
    """Nothing so far."""
    PENDING = enum.auto()
    REFUSED = enum.auto()
    TAKEN = enum.auto()
    DRAINING = enum.auto()
    LOST = enum.auto()
    """The platform calls it dead, and its agent works on."""


class NodePlace(msgspec.Struct, frozen=True):
    """The place of a node on the platform, as that tells it."""

    backing: Backing = Backing.UNKNOWN
    why: str = ""
    host: str = ""
    until_s: float | None = None
    """Time at which a place that drains is gone; None: the platform does not say."""


class NodeAgent(msgspec.Struct):
    """The agent of one node, or the one that is about to come."""

    presence: Presence = Presence.LAUNCHED
    identity: str = ""
    """Identity of the newest agent that has greeted; see `AgentHello.agent`."""
    launch: str = ""
    """Token of the launch of that one; empty: nobody launched it."""
    pid: int = 0
    """PID of that one, for people."""
    heard_s: float = 0.0
    """Time of the agent's last word, or of its launch."""
    greeted_s: float = 0.0
    """Time of the agent's first word."""
    patience: int = 1
    """Factor on the time after which the agent's silence counts."""
    is_remote: bool = False
    """Whether the agent runs on another machine than the master."""
    machine: str = ""
    """Address of that machine; empty: the master's machine."""
    files: str = ""
    """Address at which the agent serves files of cuts; empty: on the master's machine."""
    host: str = ""
    """Machine of the agent: its name, and its address if it is not the master's."""
    left_s: float | None = None
    """Time since which its connection is broken; None: it is not, or this master never heard the
    agent."""

    @property
    def has_greeted(self) -> bool:
        """Whether it has said anything yet."""
        return self.presence in (Presence.CONNECTED, Presence.ABSENT)

    def greet(self, hello: AgentHello, now_s: float) -> None:
        """Take in that it has connected."""
        if not self.has_greeted:
            self.greeted_s = now_s
        self.identity, self.launch, self.pid = hello.agent, hello.launch, hello.agent_pid
        self.heard_s, self.presence = now_s, Presence.CONNECTED
        self.left_s, self.machine, self.files = None, hello.machine, hello.files

    def hear(self, now_s: float) -> None:
        """Take in that anything came from it."""
        self.heard_s = now_s
        if self.presence is Presence.RELAUNCHED:
            self.presence = Presence.LAUNCHED
        elif self.presence is Presence.ABSENT and self.identity and self.left_s is None:
            self.presence = Presence.CONNECTED  # it was missed, and speaks on the same stream

    def miss(self) -> None:
        """Take in that it counts as gone, though its connection may stand."""
        self.presence = Presence.ABSENT

    def expect(self, now_s: float) -> None:
        """Take in that a machine has joined, and will start it."""
        self.presence, self.heard_s, self.identity = Presence.LAUNCHED, now_s, ""

    @property
    def is_awaited(self) -> bool:
        """Whether nobody is about to start it: another machine may."""
        return self.presence is Presence.ABSENT

    def disconnect(self, now_s: float) -> None:
        """Take in that its connection is gone."""
        if self.presence is Presence.CONNECTED:
            self.presence, self.left_s = Presence.ABSENT, now_s


class LifePhase(enum.Enum):
    """How far a life has come."""

    NONE = enum.auto()
    """No life: one begins when an agent is there."""
    PRESUMED = enum.auto()
    """A former master's: it counts as alive until an agent says that it is not."""
    STARTING = enum.auto()
    """An agent was ordered to start it."""
    RUNNING = enum.auto()
    """The process has said itself that it runs."""
    ENDED = enum.auto()


class EndOrder(enum.Enum):
    """The order to end a life, by its kind; an end that was ordered costs no budget."""

    NONE = enum.auto()
    PLAIN = enum.auto()
    """An end of the whole job, or for another life of the same node."""
    KILL = enum.auto()
    """A `paceline kill`."""
    MOVE = enum.auto()
    """A KILL_RESTART: the next life begins where the platform puts it."""


class NodeLife(msgspec.Struct):
    """The newest life of a node: one incarnation of its training process."""

    inc: Inc = NO_INC
    """0: there was no life yet."""
    round_no: int = 0
    """Strategies script and fsdp: the round in which this life takes part."""
    phase: LifePhase = LifePhase.NONE
    up: ProcessUp | None = None
    """Report of the process about itself, while it runs."""
    started_by: str = ""
    """Identity of the agent that was last ordered to start this life."""
    started_s: float = 0.0
    missing_since_s: float | None = None
    """Time since which an agent is there that does not know this life; None: none is."""
    error: ScriptError | None = None
    returned: bool = False
    """Whether the script has returned."""
    done: bool = False
    """Whether the script that has returned did so because it was done; see `Finished.done`."""
    end: EndOrder = EndOrder.NONE
    end_told_s: float = 0.0
    """Time at which the agent was last told to end it; a former master may have done so until
    now."""
    end_grace_s: float = 0.0
    """Seconds of grace that a KILL_RESTART gives this life."""
    note: str = ""
    """Why this life ended."""
    taken: EndKind | None = None
    """What became of its agent, where the platform took that away or memory was short: the process
    may have ended with it."""
    went_away: bool = False
    """Whether it was given up with its machine, which had joined, and may come back."""

    @property
    def is_alive(self) -> bool:
        """Whether it counts as alive: started, and not known to have ended."""
        return self.phase not in (LifePhase.NONE, LifePhase.ENDED)

    @property
    def end_is_ordered(self) -> bool:
        """Whether its end is no fault of its own."""
        return self.end is not EndOrder.NONE

    def is_started_by(self, agent: NodeAgent) -> bool:
        """Whether this agent was ordered to start it, and has not said that it runs."""
        return self.phase is LifePhase.STARTING and self.started_by == agent.identity

    def run(self, up: ProcessUp) -> None:
        """Take in that its process runs."""
        self.phase, self.up, self.missing_since_s = LifePhase.RUNNING, up, None

    def finish(self) -> None:
        """Take in that it is over: nothing of it may count."""
        self.phase, self.up, self.missing_since_s = LifePhase.ENDED, None, None


class Fate(enum.Enum):
    """Fate of a node."""

    STAYS = enum.auto()
    """The node lives, or its next life begins as soon as its agent is there."""
    BACKS_OFF = enum.auto()
    """The node's life has ended, and the next one waits for its time, or for its round."""
    LEAVES = enum.auto()
    """Scaled away, or replaced: no further life, however this one ends."""
    FINISHED = enum.auto()
    """The node's script has returned."""
    FAILED = enum.auto()
    """The node cannot take part, or has made the job fail."""

    @property
    def lives_on(self) -> bool:
        """Whether a further life may follow."""
        return self in (Fate.STAYS, Fate.BACKS_OFF)


REFUSED_S, REFUSED_MAX_S = 1.0, 300.0
"""Seconds after which a place that was refused is asked for again: at first, and at most."""


class Refusals(msgspec.Struct):
    """Refusals of a node's place, since it last had one."""

    times: int = 0
    since_s: float = 0.0
    """Time of the first one."""
    why: str = ""
    """The platform's words about the newest one."""

    def add(self, why: str, now_s: float) -> float:
        """Take one in; return the seconds after which to ask again."""
        self.since_s = self.since_s if self.times else now_s
        self.times, self.why = self.times + 1, why
        return min(REFUSED_MAX_S, REFUSED_S * 2.0 ** min(self.times - 1, 30))


class NextLife(msgspec.Struct):
    """When and where the next life of a node begins."""

    due_s: float | None = None
    """Earliest time of the next life; None: no time is set."""
    in_new_agent: bool = False
    """Whether another agent is launched for it when the time has come, instead of the present
    one."""


class NodePast(msgspec.Struct):
    """Remains of a node's lives."""

    restarts: int = 0
    """Number of restarts that cost budget."""
    decided: int = 0
    """Number of lives that a KILL_RESTART has ended."""
    previous: tuple[str, int] | None = None
    """Sign of the end of the last life: `Judged.sign`."""
    repeats: int = 0
    """Number of lives that ended so, one after another."""
    streak: int = 0
    """Short lives in a row."""
    since_s: float = 0.0
    """Time at which the newest life came up, or was due; its length counts from here."""
    joined: bool = False
    """Some life called ``pl.init`` before its script returned."""

    def remember(self, sign: tuple[str, int] | None) -> None:
        """Keep how a life ended, and how often in a row lives have."""
        self.repeats = self.repeats + 1 if sign == self.previous else 1
        self.previous = sign
