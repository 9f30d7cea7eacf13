"""Between an agent and the master."""

import msgspec

from paceline.base.numbering import Inc
from paceline.wire.messages.base import LifeMessage, Message
from paceline.wire.messages.features import AgentFeatureSaid, AgentFeatureTold
from paceline.wire.messages.keeping import KeepingDown, KeepingUp
from paceline.wire.messages.node import NodeDown, NodeUp, ProcessUp
from paceline.wire.spec import NodeSize

EXIT_SOFTWARE = 70
"""``os.EX_SOFTWARE``."""
EXIT_NO_AGENT = 75
"""Exit code of a training process that has had no agent for long."""
EXIT_FENCED = 76
"""Exit code of a process that was given up, or holds nothing that the job goes on from."""


class ExitEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """How a training process ended, as its agent saw it."""

    exit_code: int | None = None
    """None: not known (the agent that could have waited for it is gone)."""
    signal: int | None = None
    oom_kills: int = 0
    """Increase of the cgroup's oom_kill counter during this life."""
    machine_oom_kills: int = 0
    """Increase of the whole machine's counter, where the node has no cgroup of its own."""
    stopped_by_us: bool = False
    hung: bool = False
    """Whether the process was ended since all others waited for it."""
    made_room: bool = False
    """Whether the process was ended since the memory of its device is a guaranteed job's."""
    stacks: str = ""
    """Stacks of its threads at that time."""
    log_tail: str = ""
    step: int | None = None
    """The step that it was at; 0: it had begun none; None: unknown, or it is no worker."""


class StepsTook(msgspec.Struct, frozen=True, array_like=True):
    """A few steps in a row of a script that trains on its own."""

    last: int
    """Number of the last step; then the number of steps, and their mean time in seconds."""
    count: int
    mean_s: float
    marks: int = 0
    """Marks that each of these steps has: flags of `paceline.wire.step_ledger.Mark`."""
    amount: float = 0.0
    """Mean of the numbers in a step's batches; 0: not known."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One heartbeat's worth of a training process, from the step ledger and the kernel."""

    inc: Inc
    step: int = 0
    """Newest step; of a server the step in the model. With asp and ssp 0: it has none."""
    samples: int = 0
    """Samples handed to the training loop in this life."""
    steps: int = 0
    """Steps since the last report. A server without steps counts the pulls that it has answered:
    each worker makes one in an iteration."""
    step_samples: float = 0.0
    """Mean batch size of those steps."""
    compute_s: float = 0.0
    """T^w: mean of the newest steps, thread time without waits (antdt, section II)."""
    compute_max_s: float = 0.0
    """The largest of them."""
    server_s: float = 0.0
    """T^s: mean of the slowest server's handler; of a server: of its own work for one of those
    that ``steps`` counts."""
    message_s: float = 0.0
    data_s: float = 0.0
    """T^d: mean wait for a batch, from when it was wanted until it was read."""
    stolen_s: float = 0.0
    """Mean time of a step in which the process's main thread could run and had no processor."""
    throttled_s: float = 0.0
    """The part of it for which the node's quota was used up, where its machine has cut that quota.
    For the rest others used the processors, or the node needs more than it was granted."""
    bpt_s: float = 0.0
    """Batch processing time: mean wall time of the newest steps; of a server: 0."""
    computing_s: float = 0.0
    """All-reduce: how long it has been in its own part of a step; 0: it is not."""
    waiting_s: float = 0.0
    """All-reduce: how long it has waited for the others."""
    silent_s: float = 0.0
    """Seconds for which the process has said nothing and used hardly any cpu, as far as its agent
    was there to see it."""
    cpu_s: float = 0.0
    rss_bytes: int = 0
    memory_bytes: int = 0
    """Memory that counts against the limit of its node, without pages of files; 0: not known."""
    took: tuple[StepsTook, ...] = ()
    """Strategy script: the new steps, oldest first."""


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """Hardware of a node, as far as its agent knows."""

    kind: str = ""
    """Nodes of one kind are alike: the device or processor, and the quota in force."""
    cores: float | None = None
    """The cpu quota in force; None: there is none."""
    memory_bytes: int | None = None
    """The limit in force; None: there is none."""


class AgentHello(Message, frozen=True):
    """agent -> master: first on each stream. ``note``: which limits asked for it could not set."""

    node: str
    agent: str
    """Identity of this agent: made at random when it starts. In containers all have the same PID,
    and a machine that is started again gives PIDs again."""
    agent_pid: int
    host: str
    launch: str = ""
    """Token of the launch that started it, from its command line; empty: nobody launched it."""
    running: tuple[ProcessUp, ...] = ()
    note: str = ""
    hardware: Hardware = Hardware()
    files: str = ""
    """Address at which it serves the files that its node has copied; empty: on the master's
    machine."""
    size: NodeSize = NodeSize()
    """Size that the spec granted the node when this agent started."""
    log: str = ""
    """``HOST:PATH`` of the node's log; empty: it is in the job's directory."""
    may_keep: bool = False
    """Whether it can keep the job's journal, and start the next master from it."""

    @property
    def machine(self) -> str:
        """The address of its machine; empty: that of the master."""
        return self.files.rpartition(":")[0]


class Heartbeat(Message, frozen=True):
    """agent -> master."""

    node: str
    facts: NodeFacts | None = None


class FromProcess(Message, frozen=True):
    """agent -> master: a message of the node's training process."""

    node: str
    body: NodeUp


class ProcessExited(Message, frozen=True):
    """agent -> master: repeated at each reconnect, until a new StartProcess or Leave comes."""

    node: str
    inc: Inc
    evidence: ExitEvidence


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of a worker in a round whose workers are on several machines."""

    rank: int
    local_rank: int
    """Number of the worker among those of its machine."""
    local_size: int
    """Workers of its machine."""
    machine: int
    """Number of its machine."""
    machines: int
    host: str
    """Address at which rank 0 listens; empty: that of the master's machine."""


class FindMeeting(Message, frozen=True):
    """master -> agent of rank 0: find a free port of your machine for this round to meet at."""

    number: int


class MeetingFound(Message, frozen=True):
    """agent -> master: here the workers of this round can meet, ``HOST:PORT``."""

    node: str
    number: int
    address: str


class StartProcess(LifeMessage, frozen=True):
    """master -> agent: run incarnation ``inc`` of your node. Repetitions do nothing."""

    role: str
    rank: int
    num_workers: int
    told: dict[str, msgspec.Raw] = {}
    """Messages as msgpack, by feature, for features' parts in the process before its script."""
    restart: int = 0
    """Strategy script: how often all workers have begun again."""
    port: int = 0
    """Strategy script: where the workers of this round meet."""
    ranks: Ranks | None = None
    """Ranks among several machines; None: all workers are on one."""


class StopProcess(LifeMessage, frozen=True):
    """master -> agent: end incarnation ``inc``: in order, after ``grace_s`` by force.

    ``hung``: it makes no progress; say what its threads do, and end it at once.
    """

    grace_s: float
    hung: bool = False


class ToProcess(LifeMessage, frozen=True):
    """master -> agent: deliver to the training process of incarnation ``inc``."""

    body: NodeDown


class LimitNode(Message, frozen=True):
    """master -> agent: what your node may use from now on; None: no limit. Answer: NodeLimited."""

    cpu: float | None
    memory_bytes: int | None


class NodeLimited(Message, frozen=True):
    """agent -> master: what its node may use now, and why that is not what was ordered."""

    node: str
    hardware: Hardware
    note: str = ""


class Leave(Message, frozen=True):
    """master -> agent: end everything of this node and exit.

    ``why``: the job goes on without it, since it cannot take part; empty: it is as it should be.
    """

    why: str = ""


class SendLog(Message, frozen=True):
    """master -> agent on another machine: send what your node prints, at most so much of it.

    Said once on each stream, before which the agent sends nothing. See `LogLines` for the counts.
    """

    every_s: float
    """Least seconds between two messages."""
    upto: int = 0
    """Count of the first byte that the master does not have."""
    base: int = 0
    """Count of the first byte of the log's file, when the master heard of it last."""


class LogLines(Message, frozen=True):
    """agent on another machine -> master: whole lines that its node has printed.

    Bytes are counted from the first one that was ever written to the log, also where it was cut
    since. Bytes before ``start`` that the master lacks are left out: more was printed than is sent.
    """

    node: str
    start: int
    """Count of the first byte of ``text``."""
    base: int
    """Count of the first byte of the log's file now; those before it were cut off."""
    text: bytes


class ProbeMachine(Message, frozen=True):
    """master -> agent: see whether a machine answers you. Answer: MachineProbed."""

    machine: str
    """Its address, as `AgentHello.machine` has it."""


class MachineProbed(Message, frozen=True):
    """agent -> master: whether the kernel of a machine answered."""

    node: str
    machine: str
    answered: bool


class FileServers(Message, frozen=True):
    """master -> agent on another machine: who serves files of cuts, itself and nodes like that."""

    master: str = ""
    nodes: dict[str, str] = {}
    """Address of each node that serves; with ``changes`` an empty one: it serves no more."""
    changes: bool = False
    """Whether ``nodes`` are those alone that have changed since the last word on this stream."""

    def over(self, known: "FileServers") -> "FileServers":
        """Return all that is known after this word; ``known``: before it."""
        if not self.changes:
            return self
        nodes = {node: address for node, address in (known.nodes | self.nodes).items() if address}
        return FileServers(master=self.master, nodes=nodes)


AgentUp = (
    AgentHello
    | Heartbeat
    | FromProcess
    | ProcessExited
    | NodeLimited
    | AgentFeatureSaid
    | LogLines
    | MachineProbed
    | KeepingUp
    | MeetingFound
)


NodeTakes = (
    StartProcess
    | StopProcess
    | ToProcess
    | LimitNode
    | AgentFeatureTold
    | Leave
    | FileServers
    | SendLog
    | ProbeMachine
    | FindMeeting
)
"""Messages to an agent about its node; the others are about the job's journal."""
AgentDown = NodeTakes | KeepingDown
