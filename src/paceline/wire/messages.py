"""Every message of a job, as frozen structs.

Three unions, one per plane: `Data` (workers and servers, header beside raw tensor frames), `Node`
(a training process and the master, carried by the agent between them) and `Agent` (an agent and
the master). All are msgpack on the wire and are the very events that the pure state machines take,
so what the explorer in ``tests/model`` permutes is what production sends.

Rules (DESIGN, invariant 4): every message names ``epoch_no`` and the incarnation ``inc`` of its
sender; a receiver acts only if ``epoch_no`` equals its own. Senders repeat until answered.
"""

from typing import NamedTuple

import msgspec

from paceline.base.samples import Intervals, Span, between
from paceline.wire.schema import ModelSchema


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of all messages; the tag on the wire is the class name."""


# --------------------------------------------------------------------------- shared vocabulary


class Server(msgspec.Struct, frozen=True, array_like=True):
    """One server of a map: its incarnation and where its data plane listens."""

    inc: int
    node: str
    address: str


class ServerMap(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds what: ``owners[b]`` is the index in ``servers`` of the owner of bucket b.

    The first server is the leader.
    """

    version: int
    servers: tuple[Server, ...]
    owners: tuple[int, ...]
    copies: tuple[int, ...] = ()
    """``copies[b]``: the server that bucket b is being copied to, -1: none. Empty: no copying."""

    def index(self, inc: int) -> int:
        """Where an incarnation stands among the servers; -1: it is none of them."""
        return next((k for k, server in enumerate(self.servers) if server.inc == inc), -1)

    @property
    def sharers(self) -> tuple[int, ...]:
        """Incarnations of the servers that own buckets, in order."""
        owning = set(self.owners)
        return tuple(server.inc for k, server in enumerate(self.servers) if k in owning)


Slice = tuple[Span, ...]
"""What one synchronous step consists of, in order."""


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """One call of ``job.batches`` or ``job.evaluate``: a source, read for some epochs.

    ``num_samples`` counts one epoch; None: it is not known in advance, and the feed is read by
    partition as far as these reach. ``first_step`` is the step before the feed's first slice
    (synchronous modes); the master fills it in.
    """

    feed: int
    purpose: str
    """``train`` or ``evaluate``."""
    num_samples: int | None
    epochs: int
    batch_size: int
    shard_size: int
    shuffle: bool
    seed: int
    first_step: int = 0
    window_shards: int = 0
    """Neighbouring shards that are mixed with each other; 0: all of the epoch."""

    def line(self, partition: int = 0) -> int:
        """The line of a partition; a feed of known length has the one partition 0."""
        return self.feed * LINES_PER_FEED + partition

    @property
    def steps_per_epoch(self) -> int:
        """Slices of one epoch; the last may be smaller. 0: not known (a stream)."""
        return -(-(self.num_samples or 0) // self.batch_size)

    @property
    def last_step(self) -> int:
        """The step of the feed's last slice, if no step before it is declared short."""
        return self.first_step + self.num_slices

    @property
    def num_slices(self) -> int:
        """Slices of all epochs; 0: not known."""
        return self.steps_per_epoch * self.epochs

    def slice_no(self, number: int) -> Span:
        """Slice ``number`` (1 ... num_slices) of the feed's order, as positions."""
        epoch, k = divmod(number - 1, self.steps_per_epoch)
        size = self.num_samples or 0
        start = k * self.batch_size
        stop = min(start + self.batch_size, size)
        return Span(self.line(), epoch * size + start, epoch * size + stop)

    def slice_of(self, step: int) -> Span:
        """The global batch of a step, if no step before it is declared short."""
        return self.slice_no(step - self.first_step)

    def number_at(self, position: int) -> int:
        """The number of the slice that holds this position."""
        epoch, offset = divmod(position, self.num_samples or 1)
        return epoch * self.steps_per_epoch + offset // self.batch_size + 1

    def next_slice(self, done: Intervals) -> Slice:
        """What the step consists of that follows a model with these samples of the feed.

        The slices come in order; after the last one of an epoch what short steps have left out of
        it, in slices of the same size. Empty: the model has all.
        """
        size = self.num_samples or 0
        number = self.number_at(done.edges[-1] - 1) if done else 0
        if number and number % self.steps_per_epoch == 0:
            left = done.gaps(0, number // self.steps_per_epoch * size)
            spans = (Span(self.line(), start, stop) for start, stop in left)
            if found := between(spans, 0, self.batch_size):
                return tuple(found)
        return (self.slice_no(number + 1),) if number < self.num_slices else ()

    def is_in_order(self, whole: Slice) -> bool:
        """Whether this is a slice of the order, and none of left-outs."""
        return whole == (self.slice_no(self.number_at(whole[0].start)),)

    def rank(self, whole: Slice) -> int:
        """The number of a slice in order; of one of left-outs: that of the next one in order."""
        number = self.number_at(whole[0].start)
        if self.is_in_order(whole):
            return number
        return -(-number // self.steps_per_epoch) * self.steps_per_epoch + 1

    def start_of(self, number: int) -> int:
        """Where slice ``number`` begins; beyond the last one: the end."""
        if number > self.num_slices:
            return (self.num_samples or 0) * self.epochs
        return self.slice_no(number).start


class Batching(msgspec.Struct, frozen=True, array_like=True):
    """How a worker computes its share of the steps from position ``start`` of their feed on.

    A contribution is computed in batches whose gradients are added up.
    """

    start: int = 0
    batch_size: int = 0
    """Samples of a batch at most; 0: all of the contribution."""
    contribution: int = 0
    """Samples of a contribution; 0: all of the share."""
    short: bool = False
    """A step may be decided without it, so it is worth while to look out for that."""


class Rate(msgspec.Struct, frozen=True, array_like=True):
    """ADJUST_LR: what the learning rate of a worker's contributions is multiplied with."""

    plan: int = 0
    """A newer one replaces it."""
    factor: float = 1.0
    by_staleness: bool = False
    """Also with 1 / (1 + updates since its parameters were pulled)."""


LINES_PER_FEED = 1 << 20


class SourceLine(msgspec.Struct, frozen=True, array_like=True):
    """What a line is at its source: a partition, which its name names in every process.

    ``num_samples`` counts one epoch; None: the partition may still grow, and all positions so far
    are of its first epoch.
    """

    line: int
    name: str
    num_samples: int | None


def feed_of(line: int) -> int:
    """The feed that a line belongs to."""
    return line // LINES_PER_FEED


class CutRef(msgspec.Struct, frozen=True, kw_only=True):
    """A cut that can be loaded: one file per server that took part, with its checksum."""

    cut_no: int
    directory: str
    memory: str = ""
    """Where nodes have copies of its files, until all of it is in its directory."""

    @property
    def in_memory(self) -> bool:
        """Whether it is not wholly on disk."""
        return bool(self.memory)


# --------------------------------------------------------------------------- entries of the order


class Included(msgspec.Struct, frozen=True, array_like=True):
    """All contributions of ``inc`` up to ``seq`` (BSP: those tagged with the entry's step)."""

    inc: int
    seq: int


class Update(Message, frozen=True):
    """Apply these contributions; ``step`` > 0: as one synchronous step."""

    included: tuple[Included, ...]
    step: int = 0


class Cut(Message, frozen=True):
    """Copy the state at this position."""

    cut_no: int


class Lacking(NamedTuple):
    """What a step is decided without."""

    left_out: int = 0
    """At most so many samples, at once."""
    late: int = 0
    """Or so many, when no more have been missing for the grace."""
    grace_s: float = 0.0

    def of_slice(self, size: int, batch_size: int) -> "Lacking":
        """Of a slice smaller than the global batch as much less."""
        left_out, late = (count * size // batch_size for count in (self.left_out, self.late))
        return Lacking(left_out, late, self.grace_s)


class Allow(Message, frozen=True):
    """master -> leader: from ``step`` on decide a slice while a share of it is missing.

    ``left_out`` samples of ``of``, the global batch, or ``late`` when no more have been missing for
    ``grace_s``; of a smaller slice as much less.
    """

    epoch_no: int
    inc: int
    no: int
    """Of the plan; a newer one replaces it."""
    step: int
    left_out: int
    of: int
    late: int = 0
    grace_s: float = 0.0


class Remap(Message, frozen=True):
    """The map from here on. With copies: owners set these buckets aside and send them.

    ``fenced``, ``clocks`` (inc, clock, base) and ``allowed`` are what a next leader goes on from.
    """

    map: ServerMap
    fenced: tuple[int, ...] = ()
    clocks: tuple[tuple[int, int, int], ...] = ()
    allowed: tuple[Allow, ...] = ()


Entry = Update | Cut | Remap


# --------------------------------------------------------------------------- data plane


class Part(Message, frozen=True):
    """worker -> each server: its share of one contribution; tensors follow as frames.

    ``slice`` (BSP) is what step ``step`` consists of.
    """

    epoch_no: int
    inc: int
    seq: int
    map_version: int
    spans: tuple[Span, ...]
    weight: int
    step: int = 0
    slice: Slice = ()
    rates: tuple[float, ...] = ()
    factor: float = 1.0
    """On the learning rates."""
    seen: int = -1
    """Contributions in the model whose parameters it was computed on; -1: its staleness does not
    matter."""
    tables: tuple[int, ...] = ()
    """Tables with sparse gradients here, in the order of their (ids, gradients) frames."""
    dense: tuple[str, ...] = ()
    """Dtypes of the dense gradient frames, which come first."""


class Held(Message, frozen=True):
    """server -> worker: the part of ``seq`` is in memory."""

    epoch_no: int
    server: int
    inc: int
    seq: int


class Ready(Message, frozen=True):
    """worker -> leader: all servers hold all contributions up to ``seq`` (BSP: of ``step``).

    Those before ``first`` are in the order, or became void when buckets were copied.
    """

    epoch_no: int
    inc: int
    seq: int
    map_version: int
    first: int = 1
    step: int = 0


class Ordered(Message, frozen=True):
    """leader -> worker: everything of ``inc`` up to ``seq`` is in the order."""

    epoch_no: int
    inc: int
    seq: int


class Pull(Message, frozen=True):
    """worker -> server: answer when ``step`` >= min_step. Frames: one id array per table."""

    epoch_no: int
    inc: int
    ticket: int
    min_step: int = 0
    clock: int = -1
    """SSP: contributions this worker has offered; -1: it is idle and nobody waits for it."""
    feed: Feed | None = None
    """BSP: what it trains on."""
    tables: tuple[int, ...] = ()
    dense: bool = True


class Pulled(Message, frozen=True):
    """server -> worker: dense frames (by dtype), then one row frame per table of the pull."""

    epoch_no: int
    server: int
    inc: int
    ticket: int
    step: int
    last_seq: int
    applied: int = 0
    """Contributions in the model, of this epoch_no (without steps)."""
    slice: Slice = ()
    """What step + 1 of the pull's feed consists of."""
    handler_s: float = 0.0
    """Work on this worker's messages since the answer before, without updates (T^s)."""
    waited_s: float = 0.0
    """How long the pull waited here for its step (BSP), or for slower workers (SSP)."""
    dense: tuple[str, ...] = ()


class Refused(Message, frozen=True):
    """server -> worker: not now ("not yet", old epoch) or never (``fenced``)."""

    epoch_no: int
    server: int
    inc: int
    fenced: bool = False


class AskMap(Message, frozen=True):
    """worker -> server: which map is in force, and what of mine is in the order?"""

    epoch_no: int
    inc: int


class MapIs(Message, frozen=True):
    """server -> worker: the map of its last entry.

    With ``leads`` it is the leader's word: contributions of ``inc`` above ``seq`` that were sent
    under a map before version ``barrier`` will never be ordered; they are offered under new seqs.
    """

    epoch_no: int
    server: int
    inc: int
    map: ServerMap
    leads: bool
    barrier: int = 0
    seq: int = 0


class Piece(Message, frozen=True):
    """old owner -> new owner: bytes of its buckets as of the copy entry, from ``offset`` on.

    The buckets are packed as for a cut (``num_bytes`` in all). What else the new owner goes on from
    comes with each piece: position, step, committed set, the last seq of each worker, and what is
    counted in an epoch.
    """

    epoch_no: int
    server: int
    """Who sends it."""
    inc: int
    """Who is to have it."""
    map: ServerMap
    position: int
    step: int
    committed: tuple[Span, ...]
    last_seq: tuple[tuple[int, int], ...]
    last_cut: int
    applied: int = 0
    short_steps: int = 0
    left_out: int = 0
    offset: int = 0
    num_bytes: int = 0


class PieceHeld(Message, frozen=True):
    """new owner -> old owner: the piece at ``offset`` is in memory."""

    epoch_no: int
    server: int
    offset: int


class Order(Message, frozen=True):
    """leader -> server: entries at positions ``start``, ``start + 1`` and so on.

    ``leader``: who sends it, and is to hear how far the receiver is. ``fenced``: pairs (inc,
    position): no entry after that position contains inc.
    """

    epoch_no: int
    leader: int
    start: int
    entries: tuple[Entry, ...]
    fenced: tuple[tuple[int, int], ...] = ()


class At(Message, frozen=True):
    """server -> leader: everything up to ``position`` is applied."""

    epoch_no: int
    server: int
    position: int


class Export(Message, frozen=True):
    """worker -> server: send keys and rows of a table (state_dict), first from ``offset`` 0."""

    epoch_no: int
    inc: int
    ticket: int
    table: int
    offset: int


class Exported(Message, frozen=True):
    """server -> worker: what was asked for; frames keys, rows.

    ``next_offset``: what to ask for next, which means something to the server alone; None: nothing.
    """

    epoch_no: int
    server: int
    inc: int
    ticket: int
    table: int
    offset: int
    next_offset: int | None


Data = (
    Part
    | Held
    | Ready
    | Ordered
    | Pull
    | Pulled
    | Refused
    | Order
    | At
    | Export
    | Exported
    | AskMap
    | MapIs
    | Piece
    | PieceHeld
)


# --------------------------------------------------------------------------- node plane, up


class ProcessUp(Message, frozen=True):
    """process -> agent, master: alive. ``address``: a server's data plane."""

    node: str
    inc: int
    pid: int
    role: str
    address: str = ""


class Prepared(Message, frozen=True):
    """worker -> master: ``prepare`` was called with a model of this schema."""

    inc: int
    schema: ModelSchema


class InitialWritten(Message, frozen=True):
    """worker -> master: the initial cut is complete in its directory."""

    inc: int


class OpenFeed(Message, frozen=True):
    """worker -> master: ``job.batches`` was called. Answer: FeedOpened, same for all workers."""

    inc: int
    feed: Feed


class LeaseRequest(Message, frozen=True):
    """worker -> master: more samples of ``feed``. The same n gets the same grant.

    ``step`` and ``slice`` (BSP): the undecided step and what it consists of, if the worker knows;
    ``starving``: nothing is left to offer for it. ``ends``: the partitions (of a feed of unknown
    length) that the worker sees reach further than the master is known to know, and whether none
    will grow any more (``finished``).
    ``handled`` (at-least-once): applied on every server.
    """

    epoch_no: int
    inc: int
    n: int
    feed: int
    step: int = 0
    slice: Slice = ()
    starving: bool = False
    ends: tuple[tuple[str, int], ...] = ()
    finished: bool = False
    handled: tuple[Span, ...] = ()
    map_version: int = 0
    """Of the servers' map, as the worker knows it."""


class GiveBack(Message, frozen=True):
    """worker -> master: these samples of its lease it has forgotten; resent until `GivenBack`.

    ``r`` counts what this incarnation gives back in this epoch, from 1.
    """

    epoch_no: int
    inc: int
    r: int
    spans: tuple[Span, ...]


class EvaluateResult(Message, frozen=True):
    """worker -> master: values of one span (safetensors bytes); resent until Evaluated."""

    epoch_no: int
    inc: int
    feed: int
    span: Span
    values: bytes


class FenceAnswer(Message, frozen=True):
    """leader -> master: nothing of ``fenced`` enters any more; what is in the model."""

    epoch_no: int
    inc: int
    fenced: int
    committed: tuple[Span, ...]


class Committed(Message, frozen=True):
    """leader -> master: the committed set and step now, and the newest `Allow` that it knows."""

    epoch_no: int
    inc: int
    step: int
    committed: tuple[Span, ...]
    allow: int = 0
    short_steps: int = 0
    """Of this epoch_no: decided while something of their slice was missing."""
    left_out: int = 0
    """Samples that were missing, in all of them."""


class Copied(Message, frozen=True):
    """server -> master: my copy of the cut would survive the loss of my node.

    Said once when two nodes hold it in memory, and again when it is on disk (``stored``).
    """

    epoch_no: int
    inc: int
    cut_no: int
    position: int
    step: int
    committed: tuple[Span, ...]
    sharers: tuple[int, ...]
    """All whose copies make this cut: the owners under the map at its position."""
    file: str = ""
    checksum: str = ""
    num_bytes: int = 0
    cost_s: float = 0.0
    """Of the server's thread, and of the core that wrote beside it."""
    stored: bool = False


class Restored(Message, frozen=True):
    """server -> master: I am in this epoch now."""

    epoch_no: int
    inc: int


class Joined(Message, frozen=True):
    """joining server -> master: I keep parts; ``caught_up``: and have all buckets of my map.

    ``progress`` grows as long as there is some.
    """

    epoch_no: int
    inc: int
    caught_up: bool = False
    progress: int = 0


class MapSet(Message, frozen=True):
    """server -> master: the map of its last entry; with ``leads``, the leader's word.

    ``settled``: all servers of this map have applied its entry.
    """

    epoch_no: int
    inc: int
    map: ServerMap
    leads: bool
    settled: bool = False


class ScriptError(Message, frozen=True):
    """worker -> agent, master: the script raised; sent before the process exits."""

    inc: int
    kind: str
    """Qualified name of the exception's class."""
    traceback: str
    in_user_code: bool
    step: int


class Finished(Message, frozen=True):
    """worker -> master: the script returned."""

    inc: int


NodeUp = (
    ProcessUp
    | Prepared
    | InitialWritten
    | OpenFeed
    | LeaseRequest
    | GiveBack
    | EvaluateResult
    | FenceAnswer
    | Committed
    | Copied
    | Restored
    | Joined
    | MapSet
    | ScriptError
    | Finished
)


# --------------------------------------------------------------------------- node plane, down


class WriteInitial(Message, frozen=True):
    """master -> one worker: write the initial values as cut 0 into this directory."""

    inc: int
    directory: str


class FeedOpened(Message, frozen=True):
    """master -> worker: the feed as all workers read it."""

    inc: int
    feed: Feed


class Grant(Message, frozen=True):
    """master -> worker: the answer to request n. ``end``: the feed is complete.

    ``lines`` (a feed of unknown length): the lines of the spans. ``batching`` (BSP): from the
    undecided step on, by ``start``; empty: all of a share at once.
    """

    epoch_no: int
    inc: int
    n: int
    feed: int
    spans: tuple[Span, ...] = ()
    end: bool = False
    lines: tuple[SourceLine, ...] = ()
    batching: tuple[Batching, ...] = ()
    rate: Rate = Rate()


class NewRate(Message, frozen=True):
    """master -> worker: from the next contribution on. If it is lost, the next grant says it."""

    epoch_no: int
    inc: int
    rate: Rate


class Recall(Message, frozen=True):
    """master -> worker: give back what of ``feed`` you have not begun; some of it.

    Of steps: from position ``start`` on. Else: all but the first ``keep`` samples. It is of the
    time of grant ``n``: a worker that has not taken that one yet, or has taken a later one, does
    nothing.
    """

    epoch_no: int
    inc: int
    n: int
    feed: int
    start: int = 0
    keep: int = 0


class GivenBack(Message, frozen=True):
    """master -> worker: all up to number ``r`` is journalled."""

    epoch_no: int
    inc: int
    r: int


class Evaluated(Message, frozen=True):
    """master -> worker: this span is stored; the empty one: all are, in ``directory``."""

    inc: int
    feed: int
    span: Span | None = None
    directory: str = ""


class Restore(Message, frozen=True):
    """master -> one server incarnation: load your share of the cut under this map."""

    epoch_no: int
    inc: int
    cut: CutRef
    map: ServerMap
    mode: str
    """``bsp``, ``ssp`` or ``asp``."""
    samples: str
    """``exactly-once``, ``at-least-once`` or ``at-most-once``."""
    staleness: int = 0


class NewEpoch(Message, frozen=True):
    """master -> worker: drop all work; these are the servers now."""

    epoch_no: int
    inc: int
    map: ServerMap
    step: int
    """The cut's step: where synchronous modes go on."""


class Fence(Message, frozen=True):
    """master -> leader: let nothing of ``fenced`` into the order any more."""

    epoch_no: int
    inc: int
    fenced: int


class TakeCut(Message, frozen=True):
    """master -> leader: order a cut; a repetition does nothing."""

    epoch_no: int
    inc: int
    cut_no: int


class JoinServers(Message, frozen=True):
    """master -> one server incarnation: keep parts of this epoch until buckets come.

    ``map`` is the one that will be asked for: it copies buckets to this server. Repeated until the
    move is over; always answered.
    """

    epoch_no: int
    inc: int
    map: ServerMap
    model: ModelSchema
    mode: str
    staleness: int = 0


class ChangeMap(Message, frozen=True):
    """master -> leader: order this map, if it follows yours; answer: yours."""

    epoch_no: int
    inc: int
    map: ServerMap


class NewMap(Message, frozen=True):
    """master -> worker: the leader is to be asked for its map, which is this or a newer one."""

    epoch_no: int
    inc: int
    map: ServerMap


class Stop(Message, frozen=True):
    """master -> process: finish the step and leave in order."""

    inc: int


NodeDown = (
    WriteInitial
    | FeedOpened
    | Grant
    | NewRate
    | Recall
    | GivenBack
    | Evaluated
    | Restore
    | NewEpoch
    | Fence
    | Allow
    | TakeCut
    | JoinServers
    | ChangeMap
    | NewMap
    | Stop
)


# --------------------------------------------------------------------------- agent and master


class ExitEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """How a training process ended, as its agent saw it."""

    exit_code: int | None = None
    """None: not known (the agent that could have waited for it is gone)."""
    signal: int | None = None
    oom_kills: int = 0
    """Increase of the cgroup's oom_kill counter during this life."""
    stopped_by_us: bool = False
    log_tail: str = ""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One heartbeat's worth of a training process, from the step ledger and the kernel."""

    inc: int
    step: int = 0
    """Of a server: in the model; asp, ssp: 0, since it has none."""
    samples: int = 0
    """Samples handed to the training loop in this life."""
    steps: int = 0
    """New since the last report; of a server without steps: pulls that it has answered, of which
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
    bpt_s: float = 0.0
    """Batch processing time: mean wall time of the newest steps; of a server: 0."""
    cpu_s: float = 0.0
    rss_bytes: int = 0


class AgentHello(Message, frozen=True):
    """agent -> master: first on each stream. ``note``: which limits asked for it could not set."""

    node: str
    agent_pid: int
    host: str
    running: tuple[ProcessUp, ...] = ()
    note: str = ""


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
    inc: int
    evidence: ExitEvidence


class StartProcess(Message, frozen=True):
    """master -> agent: run incarnation ``inc`` of your node. Repetitions do nothing."""

    inc: int
    role: str
    rank: int
    num_workers: int


class StopProcess(Message, frozen=True):
    """master -> agent: end incarnation ``inc``: in order, after ``grace_s`` by force."""

    inc: int
    grace_s: float


class ToProcess(Message, frozen=True):
    """master -> agent: deliver to the training process of incarnation ``inc``."""

    inc: int
    body: NodeDown


class Leave(Message, frozen=True):
    """master -> agent: end everything of this node and exit."""


AgentUp = AgentHello | Heartbeat | FromProcess | ProcessExited
AgentDown = StartProcess | StopProcess | ToProcess | Leave
