"""Questions to a running job: the calls of the command line and the dashboard to the master."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from paceline.base.numbering import NO_INC, CutNo, EpochNo, Inc, StepNo
from paceline.wire.messages.base import Message
from paceline.wire.spec import JobSpec

Culprit = Literal["computation", "link", "nothing"]
"""Component that is named as slow; nothing: none was found."""


def blame(culprit: Culprit, nodes: tuple[str, ...], ratio: float) -> str:
    """Say who is slow, and how many times as long it takes."""
    match culprit:
        case "computation":
            return f"{nodes[0]} computes {ratio:.2f} times as long"
        case "link":
            return f"the link {' - '.join(nodes)} takes {ratio:.2f} times as long"
        case "nothing":
            return "no component was found to blame"


class GetStatus(Message, frozen=True):
    """Answer: JobStatus."""


class GetObservation(Message, frozen=True):
    """Answer: Observed."""


class Scale(Message, frozen=True):
    """Set the number of workers, of servers, or of both; answer: Done."""

    workers: int | None = None
    """None: as many as there are."""
    servers: int | None = None


class ResizeNodes(Message, frozen=True):
    """Have the nodes of a role use so much of their machines from now on; answer: Done."""

    role: str
    cpu: tuple[float, ...] | None = None
    """Cores of each, node by node, in turn; None: as before."""
    memory_bytes: int | None = None
    """Bytes of memory of each node; None: as before."""


class Kill(Message, frozen=True):
    """Kill a node's training process with SIGKILL (it is started again); answer: Done."""

    node: str


class Replace(Message, frozen=True):
    """Have another process take a node's place while training goes on."""

    node: str


class StopJob(Message, frozen=True):
    """End the job: in order (finish the step, one more cut), or ``now``; answer: Done.

    ``signal``: the one that a person sent to what watches the job; 0: none, it is their order.
    """

    now: bool = False
    signal: int = 0


class GetSpec(Message, frozen=True):
    """Answer: JobInfo."""


class Join(Message, frozen=True):
    """A machine wants to run workers and will start their agents now; answer: NodesAdded."""

    host: str
    workers: int = 0
    """Number of workers; 0: as many as the job's machines have, and else one."""


class ListJobFiles(Message, frozen=True):
    """Name files of the job: logs, their times, events; answer: JobFileList."""


class ReadJobFile(Message, frozen=True):
    """Read a part of a file that `ListJobFiles` names; answer: JobFilePart."""

    name: str
    start: int
    """First byte of the part."""
    num_bytes: int
    """Most bytes that are wanted; a part may be shorter."""


class FollowJobFiles(Message, frozen=True):
    """Wait until files grow, or the job ends; answer: JobFileNews."""

    upto: dict[str, int]
    """Bytes that are known of each file that is followed; empty: the job's end alone is awaited."""
    every: bool = False
    """Whether other logs are followed as well, also those that are not there yet."""
    wait_s: float = 0.0
    """Seconds after which the answer comes in any case."""


class FeatureCall(Message, frozen=True):
    """A feature's verb asks the feature's part in the master; answer: FeatureReply, or Done."""

    feature: str
    body: msgspec.Raw
    """Call of the feature as msgpack."""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as the master sees it."""

    node: str
    role: str
    state: str
    """pending, refused, starting, running, draining, unbacked, finished, lost, backing off, failed,
    or not known (so far, to a new master)."""
    inc: Inc = NO_INC
    pid: int = 0
    agent_pid: int = 0
    restarts: int = 0
    step: int = 0
    samples: int = 0
    """Samples handed to this node's training loop over all its lives."""
    bpt_s: float = 0.0
    compute_s: float = 0.0
    server_s: float = 0.0
    message_s: float = 0.0
    data_s: float = 0.0
    rss_bytes: int = 0
    cpu_s: float = 0.0
    cores: float | None = None
    """Cores that the process may use: the quota; None: all."""
    limit_bytes: int | None = None
    """Bytes of memory that the process may use; None: all."""
    note: str = ""
    shown: dict[str, Any] = {}
    """Values of features, by the names that they have in ``--json``."""


class SlowPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a job that is slow: a straggler, a slow rank or a slow link."""

    culprit: Culprit
    """``nothing``: the job is slow, and no part of it is known to be."""
    nodes: tuple[str, ...]
    """A node, or the ends of a link."""
    ratio: float
    """Ratio of the part's time to its usual one; of ``nothing``: that of a step of the job."""
    since_s: float
    """Unix time."""
    done: str
    """Measure that is taken against it, in words."""
    until_s: float | None = None
    """Unix time at which it was well again; None: it is slow still."""

    @property
    def sentence(self) -> str:
        """Return the culprit, and how many times as long it takes, in words."""
        if self.culprit == "nothing":
            return f"a step takes {self.ratio:.2f} times as long ({self.done})"
        return blame(self.culprit, self.nodes, self.ratio)


class LastLogged(msgspec.Struct, frozen=True):
    """The newest value that the script has logged under a name."""

    name: str
    value: float | str
    """``nan``, ``inf`` and ``-inf`` as text."""
    step: int


class ShownTable(msgspec.Struct, frozen=True):
    """A small table of a feature for people."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Rows, each as long as ``columns``."""


class ShownFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of a feature for a monitoring system."""

    name: str
    """Name without ``paceline_``, in base units: ``job_step_seconds``."""
    about: str
    """What it is, in one sentence."""
    value: float
    labels: dict[str, str] = {}
    """Figures of one name have the same labels, with other values."""
    counts: bool = False
    """True: it only grows while the master lives."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What status, metrics and the live view show of a feature."""

    logged: tuple[LastLogged, ...] = ()
    """Newest values, which metrics have as numbers."""
    notes: tuple[str, ...] = ()
    """Sentences for people, the most important one first."""
    tables: tuple[ShownTable, ...] = ()
    """Tables of ``paceline status``."""
    nodes: dict[str, dict[str, Any]] = {}
    """Values for programs by node, each with the name that it has there in ``--json``."""
    slow: tuple[SlowPart, ...] = ()
    """What is slow now, and by how much."""
    relieved: tuple[SlowPart, ...] = ()
    """Parts that were slow in this job and are well again, in the order of their ends."""
    figures: tuple[ShownFigure, ...] = ()
    """Figures for metrics."""


def sound(found: object) -> Shown:
    """Return what a feature shows, if it can be sent and read.

    Raises:
        TypeError: it is no `Shown`, or holds something that cannot be encoded.
        ValidationError: a value is not of the type that its field has.
    """
    if not isinstance(found, Shown):
        raise TypeError(f"it shows {found!r:.100}, and no Shown")
    return _read_shown(msgspec.msgpack.encode(found))


_read_shown = msgspec.msgpack.Decoder(Shown).decode


def together(found: Iterable[Shown]) -> Shown:
    """Put what several features show into one."""
    all_ = [*found]
    nodes: dict[str, dict[str, Any]] = {}
    for one in all_:
        for node, values in one.nodes.items():
            nodes.setdefault(node, {}).update(values)
    return Shown(
        logged=tuple(value for one in all_ for value in one.logged),
        notes=tuple(note for one in all_ for note in one.notes),
        tables=tuple(table for one in all_ for table in one.tables),
        nodes=nodes,
        slow=tuple(part for one in all_ for part in one.slow),
        relieved=tuple(part for one in all_ for part in one.relieved),
        figures=tuple(figure for one in all_ for figure in one.figures),
    )


class JobStatus(Message, frozen=True):
    """A snapshot of the job."""

    job_id: str
    state: str
    """starting, forming, training (strategy script: running), restoring, stopping, finished, failed
    or stopped."""
    master_pid: int
    epoch_no: EpochNo
    step: StepNo
    committed: int
    total: int | None
    """Samples in all opened feeds, all epochs; None while unknown or unbounded."""
    samples_per_s: float | None
    """Mean of the last seconds; None: too little was seen since the master started."""
    eta_s: float | None
    started_s: float
    """Unix time of the job's launch."""
    valid_cuts: tuple[CutNo, ...]
    nodes: tuple[NodeStatus, ...]
    num_events: int
    """Lines in the events file so far."""
    error: str = ""
    short_steps: int = 0
    """Steps that were decided while something of their slice was missing."""
    waits_for: str = ""
    """Why workers that are ready do not train yet; empty: they do, or may."""
    kept_on: tuple[str, ...] = ()
    """Machines that keep the job's journal, the master's first; empty: that alone does."""
    lacks: dict[str, str] = {}
    """Why there is no more room for nodes of a role, by role."""
    room: dict[str, int] = {}
    """Further nodes that would get a place at once, by role; absent where nobody counts them."""
    logged: tuple[LastLogged, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences of features about the job."""
    tables: tuple[ShownTable, ...] = ()
    slow: tuple[SlowPart, ...] = ()
    """Parts that are slow now; empty: none is known to be."""
    relieved: tuple[SlowPart, ...] = ()
    """Parts that were slow and are well again."""


class Observed(Message, frozen=True):
    """Observation that a solution would see now."""

    json: str
    """A `paceline.policy.observation.Observation`; empty: nobody trains."""


class JobInfo(Message, frozen=True):
    """Facts that a joining machine needs."""

    job_id: str
    spec: JobSpec
    script_digest: str = ""
    """Digest of the script's file when the job began; empty: not known."""


class NodesAdded(Message, frozen=True):
    """The names of the nodes that the machine runs; none: the job has no model yet, ask again."""

    nodes: tuple[str, ...] = ()


class JobFile(msgspec.Struct, frozen=True):
    """A file of the job's directory that people read."""

    name: str
    size_bytes: int
    changed_s: float
    """Unix time of the last change."""


class JobFileList(Message, frozen=True):
    """Files of the job's directory that people read, by name."""

    files: tuple[JobFile, ...]


class JobFilePart(Message, frozen=True):
    """A part of a file."""

    name: str
    start: int
    data: bytes
    """Nothing: the file ends before it, or there is no such file."""
    size_bytes: int
    """Size of the file; 0: there is none."""


class JobFileNews(Message, frozen=True):
    """What has come to files since."""

    parts: tuple[JobFilePart, ...]
    """A part of each file that has grown, or was begun again; of many, of some."""
    outcome: str = ""
    """The job's ``outcome.json``; empty: the job has not ended."""


class FeatureReply(Message, frozen=True):
    """Answer of a feature's part in the master."""

    body: msgspec.Raw
    """Answer of the feature as msgpack."""


class Done(Message, frozen=True):
    """The call was carried out, or why not."""

    error: str = ""


RoomCall = (
    GetStatus
    | GetObservation
    | Scale
    | ResizeNodes
    | Kill
    | Replace
    | StopJob
    | GetSpec
    | Join
    | FeatureCall
)
"""Calls that the master's task answers."""
FileCall = ListJobFiles | ReadJobFile | FollowJobFiles
"""Calls that are answered beside the master's task, from files."""
Call = RoomCall | FileCall
Reply = (
    JobStatus
    | Observed
    | JobInfo
    | NodesAdded
    | JobFileList
    | JobFilePart
    | JobFileNews
    | FeatureReply
    | Done
)
Order = Scale | ResizeNodes | Kill | Replace | StopJob
"""Calls that change the job; their answer is Done."""
