"""The records of `MasterState`: all of it that survives the master's death.

Reference: docs/protocols/integrity.md, section 2.
"""

from collections.abc import Sequence

import msgspec

from paceline.base.numbering import CutNo, EpochNo, Inc, StepNo
from paceline.base.samples import Span
from paceline.policy.actions import Share
from paceline.wire.messages.base import CutRef, Server, ServerMap
from paceline.wire.messages.feeds import Feed, Rate, ScriptPlace
from paceline.wire.messages.group import Division, Member
from paceline.wire.messages.node import Grant
from paceline.wire.messages.order import Lacking
from paceline.wire.schema import ModelSchema


class Place(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Where something begins: a position of a line; those of a later feed are later."""

    line: int = 0
    position: int = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The global actions in force, as one value: each of them makes a new plan of the last one."""

    no: int = 0
    shares: dict[str, Share] = {}
    """Share of each node; see `share_of`. Empty: all compute alike."""
    fixed: bool = False
    """True: no worker is granted more of an epoch than its share (asynchronous)."""
    backup: int = 0
    """Workers whose shares a step may lack (synchronous)."""
    left_out: int = 0
    """Samples of a step that may be missing when it is decided (synchronous)."""
    late: int = 0
    """Samples that may be missing when nothing has changed that for ``grace_s``."""
    grace_s: float = 0.0
    lacking_of: int = 0
    """The global batch that these samples are of, if it follows the workers."""
    allow: int = 0
    """Number of the plan since which these three hold; 0: they always did."""
    chunks: int = 1
    """Contributions in which each worker hands in its share of a step (synchronous)."""
    factors: dict[str, float] = {}
    """Factor on the learning rate of a node's contributions, by node (asynchronous)."""
    by_staleness: bool = False
    """Whether the factor is 1 / (1 + staleness) for nodes without one."""

    @property
    def lacking(self) -> Lacking:
        """Samples that a step may lack when it is decided."""
        return Lacking(self.left_out, self.late, self.grace_s, self.lacking_of)

    def rate_of(self, node: str) -> Rate:
        """The factor on the learning rate of this node's contributions."""
        by_staleness = self.by_staleness and node not in self.factors
        return Rate(self.no, self.factors.get(node, 1.0), by_staleness)

    def share_of(self, node: str) -> Share | None:
        """The node's share; for a node that has come since, the mean; None: all compute alike."""
        return self.shares.get(node) or self._mean()

    def _mean(self) -> Share | None:
        if not self.shares:
            return None
        shares = self.shares.values()
        size = sum(share.num_samples for share in shares) / len(shares)
        accumulation = max(share.accumulation for share in shares)
        return Share(max(1, round(size / accumulation)), accumulation)

    def sizes_of(self, nodes: Sequence[str]) -> list[int]:
        """Return the shares of these nodes in a step, in proportion to each other."""
        mean = self._mean() or Share(1)
        shares = (self.shares.get(node, mean) for node in nodes)
        return [share.num_samples for share in shares]


class Record(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """One line of the journal; the tag is the class name."""


class SchemaFixed(Record, frozen=True):
    """The model's schema, from the first worker that prepared one."""

    model: ModelSchema


class FeedAdded(Record, frozen=True):
    """A feed as the first worker opened it."""

    feed: Feed


class LoopEnded(Record, frozen=True):
    """Servers: a worker left the loop over a feed in this step, and its script returned.

    For those that began when the model had more than ``since`` samples the loop is over, as long
    as the model has ``samples``.
    """

    feed: int
    step: StepNo
    since: int
    samples: int = 0


class Agreed(Record, frozen=True):
    """The outcome of a meeting of workers at a place of the script: one value, or all by rank."""

    place: ScriptPlace
    values: tuple[bytes, ...]


class EpochStarted(Record, frozen=True):
    """A restore: leases are void, the ledger is the complement of the cut's committed set."""

    epoch_no: EpochNo
    cut: CutRef
    step: StepNo
    committed: tuple[Span, ...]
    map: ServerMap
    short_steps: int = 0
    """Steps of all epochs before that were decided while something was missing."""
    left_out: int = 0
    """Samples that were missing in these steps."""


class Extended(Record, frozen=True):
    """Partitions (of a feed of unknown length) reach so far; ``finished``: that is all."""

    feed: int
    ends: tuple[tuple[str, int], ...]
    finished: bool = False


class Granted(Record, frozen=True):
    """The answer to request n of an incarnation."""

    grant: Grant
    handled: tuple[Span, ...] = ()
    """Samples that every server has applied (at-least-once); the worker forgets them with this
    answer."""


class Returned(Record, frozen=True):
    """A lost incarnation: DONE := DONE + ``committed``, the rest of its leases to do."""

    inc: Inc
    committed: tuple[Span, ...] = ()


class GaveBack(Record, frozen=True):
    """A living incarnation has forgotten these samples of its lease; they are to do."""

    inc: Inc
    r: int
    spans: tuple[Span, ...]


class Planned(Record, frozen=True):
    """A plan is committed: at that time nobody held a sample from ``since`` on."""

    plan: Plan
    since: Place
    step: StepNo
    """The step that begins at ``since``, as it was foreseen."""
    undecided: Place
    """Place at which the undecided step began at that time."""


class CutValid(Record, frozen=True):
    """Every server has said `Copied` with equal step and set; it may be in memory only."""

    cut: CutRef
    step: StepNo
    committed: tuple[Span, ...]
    epoch_no: EpochNo


class CutStored(Record, frozen=True):
    """A cut that was in memory is on disk."""

    cut: CutRef


class CutGone(Record, frozen=True):
    """A cut was deleted, or found damaged: no epoch starts from it any more."""

    cut_no: CutNo


class MoveBegun(Record, frozen=True):
    """Buckets are to move: servers join, leave, or have others; beside the map of ``version``."""

    joining: tuple[Server, ...]
    """Fresh servers."""
    leaving: tuple[Inc, ...]
    """Servers that own buckets now, and none when the move is over."""
    owners: tuple[Inc, ...]
    """Next owner of each bucket."""
    version: int


class MapChanged(Record, frozen=True):
    """A server's word: the order holds this map."""

    map: ServerMap


class MoveEnded(Record, frozen=True):
    """The buckets have moved, or will not."""


class GroupFormed(Record, frozen=True):
    """All-reduce: these are to train together; nothing of a group before counts any more."""

    group: int
    members: tuple[Member, ...]
    replica: str = ""
    """Description of the members' model (`JoinGroup`), the same for all of them."""


class GroupRestored(Record, frozen=True):
    """All-reduce: nobody holds state, so all begin again where the model had ``committed``."""

    epoch_no: EpochNo
    step: StepNo
    committed: tuple[Span, ...]
    cut: CutRef | None = None
    """Cut from which they begin; None: from the model as it was built."""


class GroupBegun(Record, frozen=True):
    """All-reduce: members hold ``step``, and so ``committed``; they divide the next as said.

    All of them, but ``joiners``, which copy it within the next step. ``lacks_chief``: worker-0 is
    gone for good, and the first of them stands in for it.
    """

    group: int
    step: StepNo
    committed: tuple[Span, ...]
    division: Division = Division()
    joiners: tuple[Inc, ...] = ()
    lacks_chief: bool = False


class GroupProgressed(Record, frozen=True):
    """All-reduce: what all members were known to hold when a cut became valid."""

    step: StepNo
    committed: tuple[Span, ...]


class GroupKept(msgspec.Struct, frozen=True, array_like=True):
    """State of the newest group in a snapshot, and how it was told to run."""

    epoch_no: EpochNo
    number: int
    members: tuple[Member, ...]
    step: StepNo
    begun: GroupBegun | None = None
    start: GroupRestored | None = None
    gone: tuple[Inc, ...] = ()
    replica: str = ""
    held_by: tuple[Inc, ...] = ()
    gathers: bool = False


Records = (
    SchemaFixed
    | FeedAdded
    | LoopEnded
    | Agreed
    | EpochStarted
    | Extended
    | Granted
    | Returned
    | GaveBack
    | Planned
    | CutValid
    | CutStored
    | CutGone
    | MoveBegun
    | MapChanged
    | MoveEnded
    | GroupFormed
    | GroupRestored
    | GroupBegun
    | GroupProgressed
)
