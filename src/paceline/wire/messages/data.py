"""Between workers and servers, and among servers: headers beside raw tensor frames."""

import msgspec

from paceline.base.numbering import START, CutNo, EntryNo, EpochNo, Inc, StepNo
from paceline.base.samples import Span
from paceline.wire.messages.base import EpochMessage, Message, ServerMap
from paceline.wire.messages.feeds import Feed, Slice
from paceline.wire.messages.files import (
    AskFile,
    AskFiles,
    DropFiles,
    FilePiece,
    FilesAre,
    FileTaken,
    GiveFile,
)
from paceline.wire.messages.group import AskState, Computed, Meet, StatePart
from paceline.wire.messages.order import Entry

Changed = tuple[tuple[int, str, float], ...]
"""(group of the schema, hyper-parameter, its value now)."""


class Script(msgspec.Struct, frozen=True, array_like=True):
    """Schedulers and hyper-parameters at a position of the job's schedule (`ps.schedule`)."""

    position: int
    state: bytes
    """Only workers can read it."""


class Part(EpochMessage, frozen=True):
    """worker -> each server: its share of one contribution; tensors follow as frames.

    ``slice`` (BSP) is what step ``step`` consists of.
    """

    seq: int
    map_version: int
    spans: tuple[Span, ...]
    weight: int
    step: StepNo = START
    slice: Slice = ()
    rates: tuple[float, ...] = ()
    changed: Changed = ()
    """Hyper-parameters that are not as the schema has them."""
    lacking: tuple[int, ...] = ()
    """Dense parameters, by their places in the schema, that have no gradient here."""
    factor: float = 1.0
    """Factor on the learning rates."""
    seen: int = -1
    """Contributions in the model whose parameters it was computed on; -1: its staleness does not
    matter."""
    tables: tuple[int, ...] = ()
    """Tables with sparse gradients here, in the order of their (ids, gradients) frames."""
    dense: tuple[str, ...] = ()
    """Dtypes of the dense gradient frames, which come first."""
    position: int = 0
    """BSP: of the schedule, at which it was computed."""


class Held(Message, frozen=True):
    """server -> worker: the part of ``seq`` is in memory."""

    epoch_no: EpochNo
    server: Inc
    inc: Inc
    seq: int


class Ready(EpochMessage, frozen=True):
    """worker -> leader: all servers hold all contributions up to ``seq`` (BSP: of ``step``).

    Those before ``first`` are in the order, or became void when buckets were copied.
    """

    seq: int
    map_version: int
    first: int = 1
    step: StepNo = START


class Ordered(EpochMessage, frozen=True):
    """leader -> worker: everything of ``inc`` up to ``seq`` is in the order."""

    seq: int


class Also(msgspec.Struct, frozen=True, array_like=True):
    """Request of a pull besides parameters."""

    counting: int = -1
    """The feed whose samples in the model are to be counted; -1: none."""
    script: int = -1
    """The position at which the script's state is wanted; -1: it is not."""


BARE = Also()
"""An `Also` that asks for nothing."""
NEWEST = 1 << 62
"""Position for `Also.script` that no job comes to: the newest state is wanted."""


class Pull(EpochMessage, frozen=True):
    """worker -> server: answer when ``step`` >= min_step. Frames: one id array per table."""

    ticket: int
    min_step: StepNo = START
    clock: int = -1
    """SSP: contributions this worker has offered; -1: it is idle and nobody waits for it."""
    feed: Feed | None = None
    """BSP: the feed that the worker trains on."""
    tables: tuple[int, ...] = ()
    dense: bool = True
    also: Also = BARE
    map_version: int = 0
    """Version of the map by which ids are divided among servers."""


class Pulled(Message, frozen=True):
    """server -> worker: dense frames (by dtype), then one row frame per table of the pull."""

    epoch_no: EpochNo
    server: Inc
    inc: Inc
    ticket: int
    step: StepNo
    last_seq: int
    applied: int = 0
    """Contributions in the model, of this epoch_no (without steps)."""
    slice: Slice = ()
    """Samples of which step + 1 of the pull's feed consists."""
    handler_s: float = 0.0
    """Work on this worker's messages since the answer before, without updates (T^s)."""
    waited_s: float = 0.0
    """Seconds that the pull waited here for its step (BSP), or for slower workers (SSP)."""
    dense: tuple[str, ...] = ()
    counted: int = 0
    """Samples of the feed that was named, in the model (BSP: at ``step``)."""
    script: Script | None = None


class Differs(Message, frozen=True):
    """leader -> worker: its samples or hyper-parameters in ``step`` are not those of ``others``.

    The step waits until all that is in it is of one mind: this worker must end. ``what`` is what
    differs, in words.
    """

    epoch_no: EpochNo
    server: Inc
    inc: Inc
    step: StepNo
    what: str
    others: tuple[Inc, ...]


class ScriptPart(EpochMessage, frozen=True):
    """worker -> each server: what the script has besides the model, to be kept with it."""

    script: Script


class Refused(Message, frozen=True):
    """server -> worker: not now ("not yet", old epoch) or never (``fenced``)."""

    epoch_no: EpochNo
    server: Inc
    inc: Inc
    fenced: bool = False


class AskMap(EpochMessage, frozen=True):
    """worker -> server: which map is in force, and what of mine is in the order?"""


class MapIs(Message, frozen=True):
    """server -> worker: the map of its last entry.

    With ``leads`` it is the leader's word: contributions of ``inc`` above ``seq`` that were sent
    under a map before version ``barrier`` will never be ordered; they are offered under new seqs.
    """

    epoch_no: EpochNo
    server: Inc
    inc: Inc
    map: ServerMap
    leads: bool
    barrier: int = 0
    seq: int = 0


class Piece(Message, frozen=True):
    """owner -> receiver: bytes of buckets as of the copy entry, from ``offset`` on.

    What the receiver will have of this owner is packed as for a cut (``num_bytes`` in all). All
    else that a fresh receiver goes on from comes with each piece: position, step, committed set,
    the last seq of each worker, and what is counted in an epoch.
    """

    epoch_no: EpochNo
    server: Inc
    """Incarnation of the owner, which sends it."""
    inc: Inc
    """Incarnation of the receiver."""
    map: ServerMap
    position: EntryNo
    step: StepNo
    committed: tuple[Span, ...]
    last_seq: tuple[tuple[Inc, int], ...]
    last_cut: CutNo
    applied: int = 0
    short_steps: int = 0
    left_out: int = 0
    offset: int = 0
    num_bytes: int = 0


class PieceHeld(Message, frozen=True):
    """receiver -> owner: the piece at ``offset`` is in memory."""

    epoch_no: EpochNo
    server: Inc
    offset: int


class Order(Message, frozen=True):
    """leader -> server: entries at positions ``start``, ``start + 1`` and so on.

    ``leader``: who sends it, and is to hear how far the receiver is. ``fenced``: pairs (inc,
    position): no entry after that position contains inc.
    """

    epoch_no: EpochNo
    leader: Inc
    start: EntryNo
    entries: tuple[Entry, ...]
    fenced: tuple[tuple[Inc, EntryNo], ...] = ()


class At(Message, frozen=True):
    """server -> leader: everything up to ``position`` is applied."""

    epoch_no: EpochNo
    server: Inc
    position: EntryNo


class Echo(EpochMessage, frozen=True):
    """worker -> server: send these bytes back; of the check of nodes, before the first step."""

    number: int


class Echoed(Message, frozen=True):
    """server -> worker: the bytes of `Echo` ``number``."""

    epoch_no: EpochNo
    server: Inc
    inc: Inc
    number: int


class Export(EpochMessage, frozen=True):
    """worker -> server: send keys and rows of a table (state_dict), first from ``offset`` 0."""

    ticket: int
    table: int
    offset: int
    map_version: int = 0


class Exported(Message, frozen=True):
    """server -> worker: what was asked for; frames keys, rows.

    ``next_offset``: what to ask for next, which means something to the server alone; None: nothing.
    """

    epoch_no: EpochNo
    server: Inc
    inc: Inc
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
    | ScriptPart
    | Differs
    | Order
    | At
    | Echo
    | Echoed
    | Export
    | Exported
    | AskMap
    | MapIs
    | Piece
    | PieceHeld
    | Meet
    | Computed
    | AskState
    | StatePart
    | AskFile
    | FilePiece
    | AskFiles
    | FilesAre
    | GiveFile
    | FileTaken
    | DropFiles
)
