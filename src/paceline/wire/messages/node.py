"""Between a training process and the master, carried by the agent between them."""

from paceline.base.numbering import NO_EPOCH, START, CutNo, EntryNo, EpochNo, Inc, StepNo
from paceline.base.samples import Span
from paceline.wire.messages.base import (
    CutRef,
    EpochMessage,
    LifeMessage,
    Message,
    ServerMap,
    TableHeld,
)
from paceline.wire.messages.features import FeatureSaid, FeatureTold
from paceline.wire.messages.feeds import Batching, Feed, Rate, ScriptPlace, Slice, SourceLine
from paceline.wire.messages.group import (
    NO_FEED,
    Broken,
    CatchUp,
    Divide,
    GroupLeft,
    GroupStopped,
    JoinGroup,
    ProfileBatches,
    Profiled,
    Progress,
    RunGroup,
    StopGroup,
)
from paceline.wire.messages.order import Allow
from paceline.wire.schema import ModelSchema

# --------------------------------------------------------------------------- up


class ProcessUp(Message, frozen=True):
    """process -> agent, master: alive. ``address``: a server's data plane."""

    node: str
    inc: Inc
    pid: int
    role: str
    address: str = ""


class Prepared(LifeMessage, frozen=True):
    """worker -> master: ``prepare`` was called with a model of this schema."""

    schema: ModelSchema


class InitialWritten(LifeMessage, frozen=True):
    """worker -> master: the file of the initial cut is stored."""

    file: str
    checksum: str
    num_bytes: int


class OpenFeed(LifeMessage, frozen=True):
    """worker -> master: ``job.batches`` was called. Answer: FeedOpened, same for all workers.

    ``since``: samples in the model when this worker first opened one; -1: it has opened none.
    ``step``: the newest one that a member of a group holds; -1: it is none, or what it held at the
    end of its loop before is not known.
    """

    feed: Feed
    since: int = -1
    step: int = -1


class LoopLeft(LifeMessage, frozen=True):
    """worker -> master: my script has left the loop over a feed before its end, in this step.

    Resent while the script is at no other place; ``since``: see `OpenFeed`.
    """

    feed: int
    step: StepNo
    since: int


class AskPlace(LifeMessage, frozen=True):
    """worker -> master: how far is the model in the script? Answer: PlaceIs.

    ``stands_by``: this worker waits for a loop that others are to begin; where these meet before
    that, they do not wait for it.
    """

    stands_by: bool = False


class AgreeOn(LifeMessage, frozen=True):
    """worker -> master: I have come to this place of the script; resent until AgreedOn.

    ``all``: every worker that lives is waited for; else the first one's value counts for all.
    """

    place: ScriptPlace
    value: bytes
    rank: int = 0
    all: bool = False
    in_body: bool = False
    """The place is in the body of a loop: workers that will not come to it are not waited for."""


class InNoStep(LifeMessage, frozen=True):
    """worker -> master: in no step, or waiting in one. Who meets in a body need not wait for me."""


class LeaseRequest(EpochMessage, frozen=True):
    """worker -> master: more samples of ``feed``. The same n gets the same grant.

    ``step`` and ``slice`` (BSP): the undecided step and what it consists of, if the worker knows;
    ``starving``: nothing is left to offer for it. ``ends``: the partitions (of a feed of unknown
    length) that the worker sees reach further than the master is known to know, and whether none
    will grow any more (``finished``).
    ``handled`` (at-least-once): applied on every server.
    """

    n: int
    feed: int
    step: StepNo = START
    slice: Slice = ()
    starving: bool = False
    ends: tuple[tuple[str, int], ...] = ()
    finished: bool = False
    handled: tuple[Span, ...] = ()
    map_version: int = 0
    """Version of the servers' map, as the worker knows it."""
    since: int = 0
    """See `OpenFeed`."""


class GiveBack(EpochMessage, frozen=True):
    """worker -> master: these samples of its lease it has forgotten; resent until `GivenBack`.

    ``r`` counts what this incarnation gives back in this epoch, from 1.
    """

    r: int
    spans: tuple[Span, ...]


class AskCut(EpochMessage, frozen=True):
    """worker -> master: keep what is trained by now in a cut; resent until `CutMade`.

    ``n`` counts what this incarnation asks for; ``step``: to be in the cut, 0: what is in the model
    when the master hears of it. ``leaves``: its script, last in a loop over ``feed``, has returned.
    """

    n: int
    step: StepNo = START
    leaves: bool = False
    feed: int = NO_FEED


class EvaluateResult(EpochMessage, frozen=True):
    """worker -> master: values of one span (safetensors bytes); resent until Evaluated."""

    feed: int
    span: Span
    values: bytes


class FenceAnswer(EpochMessage, frozen=True):
    """leader -> master: nothing of ``fenced`` enters any more; what is in the model."""

    fenced: Inc
    committed: tuple[Span, ...]


class Committed(EpochMessage, frozen=True):
    """leader -> master: the committed set and step now, and the newest `Allow` that it knows."""

    step: StepNo
    committed: tuple[Span, ...]
    allow: int = 0
    short_steps: int = 0
    """Steps of this epoch_no that were decided while something of their slice was missing."""
    left_out: int = 0
    """Samples that were missing, in all of these steps."""


class Copied(EpochMessage, frozen=True):
    """server -> master: my copy of the cut would survive the loss of my node.

    Said once when two nodes hold it in memory, and again when it is on disk (``stored``).
    """

    cut_no: CutNo
    position: EntryNo
    step: StepNo
    committed: tuple[Span, ...]
    sharers: tuple[Inc, ...]
    """All whose copies make this cut: the owners under the map at its position."""
    file: str = ""
    checksum: str = ""
    num_bytes: int = 0
    cost_s: float = 0.0
    """The cost to the server's thread, and to the core that wrote at the same time."""
    stored: bool = False


class KeepCut(LifeMessage, frozen=True):
    """process -> its agent: my copy of a cut lies in our node's memory: keep it.

    Also in the memory of ``partner`` (empty: nobody), and on disk. Resent until `CutKept` says so.
    ``elsewhere``: address on another machine where the second copy is kept, in place of a partner.
    """

    copied: Copied
    partner: str = ""
    elsewhere: str = ""


class CutDelayed(LifeMessage, frozen=True):
    """process or its agent -> master: a disk refuses my copy of a cut; resent at each attempt."""

    cut_no: CutNo
    reason: str
    """Error of the disk, with the path."""


class Restored(EpochMessage, frozen=True):
    """server -> master: I am in this epoch now."""


class TablesHeld(LifeMessage, frozen=True):
    """server -> master: what my tables that grow hold; about once a second."""

    tables: tuple[TableHeld, ...]


class BucketLoads(LifeMessage, frozen=True):
    """server -> master: what is asked of my buckets; about once a second.

    ``per_s``: by bucket, elements read and updated per second; 0 for those of other servers.
    """

    per_s: tuple[int, ...]


class Joined(EpochMessage, frozen=True):
    """receiver of buckets -> master: I keep parts of what I shall hold.

    ``caught_up`` names the version of the map whose copies are all here, with every entry so far;
    0: not yet. ``progress`` grows as long as there is some.
    """

    caught_up: int = 0
    progress: int = 0


class MapSet(EpochMessage, frozen=True):
    """server -> master: the map of its last entry; with ``leads``, the leader's word.

    ``settled``: all servers of this map have applied its entry.
    """

    map: ServerMap
    leads: bool
    settled: bool = False


class ScriptError(LifeMessage, frozen=True):
    """worker -> agent, master: the script raised; sent before the process exits."""

    kind: str
    """Qualified name of the exception's class."""
    traceback: str
    in_user_code: bool
    step: int
    """-1: not known, of a script that trains on its own."""
    line: str = ""
    """``train.py, line 9``: the innermost line outside of paceline and libraries."""
    unreadable: str = ""
    """The file or folder that this machine cannot read, if that is why no step was done."""
    unreachable: str = ""
    """The peer that this machine cannot connect to, with its address and why."""


class Leaving(LifeMessage, frozen=True):
    """member -> its agent: I must leave, and keep a cut first; that ends in time on its own.

    ``within_s``: so much longer than is granted to others.
    """

    within_s: float


class Finished(LifeMessage, frozen=True):
    """worker -> master: the script returned; ``joined``: it has called ``pl.init``.

    ``done``: it came to its end, and was not broken off by an order to stop.
    """

    joined: bool = True
    done: bool = True
    left_step: int | None = None
    """The job's step when it left a loop over its batches before the end; None: it did not."""
    miscount: int = 0
    """See `ScriptCourse.miscount`."""


NodeUp = (
    ProcessUp
    | Prepared
    | InitialWritten
    | OpenFeed
    | LoopLeft
    | AskPlace
    | AgreeOn
    | InNoStep
    | LeaseRequest
    | GiveBack
    | AskCut
    | EvaluateResult
    | FenceAnswer
    | Committed
    | Copied
    | KeepCut
    | CutDelayed
    | Restored
    | TablesHeld
    | BucketLoads
    | Joined
    | MapSet
    | JoinGroup
    | GroupStopped
    | GroupLeft
    | Progress
    | Broken
    | Profiled
    | FeatureSaid
    | ScriptError
    | Leaving
    | Finished
)


# --------------------------------------------------------------------------- down


class WriteInitial(LifeMessage, frozen=True):
    """master -> one worker: write the initial values as cut 0."""


class FeedOpened(LifeMessage, frozen=True):
    """master -> worker: the feed as all workers read it.

    ``complete``: all of it is done, and in ``cut`` if it was trained on. ``trains`` (all-reduce): a
    group trains by now, whose state is to be copied. ``begun``: samples in the model.
    ``left``: one that decides has left it, or the loops before it, for good: see `Grant`.
    """

    feed: Feed
    complete: bool = False
    cut: CutRef | None = None
    trains: bool = False
    begun: int = 0
    left: bool = False


class PlaceIs(LifeMessage, frozen=True):
    """master -> worker: the model has samples of these feeds to train on, in their order.

    ``begun``: where slices of several sizes end is left out, which are up to 100,000 numbers.
    ``at``: the first position of each that nobody has; 0: not known.
    ``cut`` (all-reduce): in which the state is, if no group trains.
    ``newest``: the last feed to train on that was opened. ``others``: another worker holds the
    model. ``returned``: the script of one has come to its end. ``awaited``: nobody begins a
    further loop before this worker has done what its script does behind the newest one.
    """

    begun: tuple[Feed, ...] = ()
    at: tuple[int, ...] = ()
    cut: CutRef | None = None
    newest: Feed | None = None
    others: bool = False
    returned: bool = False
    awaited: bool = False


class AgreedOn(LifeMessage, frozen=True):
    """master -> worker: the outcome at this place: one value, or those of all workers, by rank."""

    place: ScriptPlace
    values: tuple[bytes, ...]


class Grant(EpochMessage, frozen=True):
    """master -> worker: the answer to request n. ``end``: the feed is complete.

    ``left``: it is not, but one that decides has left it: nothing comes of what is computed beyond.

    ``lines`` (a feed of unknown length): the lines of the spans. ``batching`` (BSP): from the
    undecided step on, by ``start``; empty: all of a share at once. ``batch_size`` (without steps):
    samples of a batch of this worker from now on, its part of the script's; 0: not said.
    """

    n: int
    feed: int
    spans: tuple[Span, ...] = ()
    end: bool = False
    left: bool = False
    batch_size: int = 0
    lines: tuple[SourceLine, ...] = ()
    batching: tuple[Batching, ...] = ()
    rate: Rate = Rate()


class NewRate(EpochMessage, frozen=True):
    """master -> worker: from the next contribution on. If it is lost, the next grant says it."""

    rate: Rate


class Recall(EpochMessage, frozen=True):
    """master -> worker: give back what of ``feed`` you have not begun; some of it.

    Of steps: from position ``start`` on. Else: all but the first ``keep`` samples. It is of the
    time of grant ``n``: a worker that has not taken that one yet, or has taken a later one, does
    nothing.
    """

    n: int
    feed: int
    start: int = 0
    keep: int = 0


class GivenBack(EpochMessage, frozen=True):
    """master -> worker: all up to number ``r`` is journalled."""

    r: int


class Evaluated(LifeMessage, frozen=True):
    """master -> worker: this span is ``stored``; the empty one: all are, of ``epoch_no``."""

    feed: int
    span: Span | None = None
    stored: bool = False
    epoch_no: EpochNo = NO_EPOCH


class CutMade(LifeMessage, frozen=True):
    """master -> worker: a cut on disk holds what ``n`` and those before it asked for."""

    n: int


class Restore(EpochMessage, frozen=True):
    """master -> one server incarnation: load your share of the cut under this map."""

    cut: CutRef
    map: ServerMap
    mode: str
    """``bsp``, ``ssp`` or ``asp``."""
    samples: str
    """``exactly-once``, ``at-least-once`` or ``at-most-once``."""
    staleness: int = 0


class NewEpoch(EpochMessage, frozen=True):
    """master -> worker: drop all work; these are the servers now."""

    map: ServerMap
    step: StepNo
    """The cut's step: where synchronous modes go on."""


class Fence(EpochMessage, frozen=True):
    """master -> leader: let nothing of ``fenced`` into the order any more."""

    fenced: Inc


class TakeCut(EpochMessage, frozen=True):
    """master -> leader: order a cut; a repetition does nothing.

    To a member of a group: copy what you hold, at ``step`` or later; ``behind``: also if the script
    has left its loop before the end, and waits behind it.
    """

    cut_no: CutNo
    step: StepNo = START
    behind: bool = False


class JoinServers(EpochMessage, frozen=True):
    """master -> receiver of buckets: keep parts of this epoch until buckets come.

    ``map`` is the one that will be asked for: it copies buckets to this server. A server that owns
    buckets learns of it by the order, and only answers. Repeated until the buckets have moved;
    always answered.
    """

    map: ServerMap
    model: ModelSchema
    mode: str
    staleness: int = 0


class ChangeMap(EpochMessage, frozen=True):
    """master -> leader: order this map, if it follows yours; answer: yours."""

    map: ServerMap


class NewMap(EpochMessage, frozen=True):
    """master -> worker: the leader is to be asked for its map, which is this or a newer one."""

    map: ServerMap


class CutKept(LifeMessage, frozen=True):
    """agent -> its process: what has become of its copy, as it is to tell the master.

    ``gone``: its file is not there (any more), so the process has to keep what it has of it.
    ``error``: it cannot be kept. ``delayed``: not now, since the disk refuses it; more will follow.
    """

    copied: Copied
    gone: bool = False
    error: str = ""
    delayed: bool = False


class WorkersNow(LifeMessage, frozen=True):
    """master -> worker on servers: so many workers train; repeated every few seconds."""

    count: int


class Stop(LifeMessage, frozen=True):
    """master -> process: finish the step and leave in order."""


class GivenUp(LifeMessage, frozen=True):
    """master -> worker: others go on without this life; it ends at once, another replaces it.

    A master gives a life up and dies, while its process goes on. The next master hears of that
    process from its agent, and tells it this.
    """


NodeDown = (
    WriteInitial
    | FeedOpened
    | PlaceIs
    | AgreedOn
    | Grant
    | NewRate
    | Recall
    | GivenBack
    | Evaluated
    | CutMade
    | Restore
    | NewEpoch
    | Fence
    | Allow
    | TakeCut
    | CutKept
    | JoinServers
    | ChangeMap
    | NewMap
    | StopGroup
    | CatchUp
    | Divide
    | RunGroup
    | ProfileBatches
    | FeatureTold
    | WorkersNow
    | Stop
    | GivenUp
)
