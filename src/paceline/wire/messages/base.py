"""Bases of messages, and parts of them on more than one plane: servers, their map, links, cuts."""

import msgspec

from paceline.base.numbering import NO_EPOCH, CutNo, EpochNo, Inc

UNPLACED = -1
"""A step or a number of samples that a worker does not know: that of the model, then."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of all messages; the tag on the wire is the class name."""


class Attempt(msgspec.Struct, frozen=True, array_like=True, order=True):
    """An attempt at the steps of a job. A step that comes again does so in a newer one."""

    epoch_no: int = 0
    group: int = 0
    """Number of the group with all-reduce and fsdp; else 0."""


class LifeMessage(Message, frozen=True):
    """A message that one life of a process sends, or gets; others have ended, or will come."""

    inc: Inc
    """Number of this life, its incarnation. Nothing of another one is handled as this one's."""


class EpochMessage(Message, frozen=True):
    """A message of one epoch and one life: nothing of an older epoch counts any more."""

    epoch_no: EpochNo
    inc: Inc
    """See `LifeMessage`."""


class GroupMessage(EpochMessage, frozen=True):
    """A message of one group of workers, which train together until it breaks up."""

    group: int
    """Number of the group; each has a higher one than those before it."""


class Server(msgspec.Struct, frozen=True, array_like=True):
    """One server of a map: its incarnation and where its data plane listens."""

    inc: Inc
    node: str
    address: str


class ServerMap(msgspec.Struct, frozen=True, kw_only=True):
    """The owners of buckets: ``owners[b]`` is the index in ``servers`` of the owner of bucket b.

    The first server is the leader.
    """

    version: int
    servers: tuple[Server, ...]
    owners: tuple[int, ...]
    copies: tuple[int, ...] = ()
    """``copies[b]``: the server that bucket b is being copied to, -1: none. Empty: no copying.

    A server to which anything is copied will hold just that: what it keeps is copied to itself.
    """

    def index(self, inc: Inc) -> int:
        """Where an incarnation stands among the servers; -1: it is none of them."""
        return next((k for k, server in enumerate(self.servers) if server.inc == inc), -1)

    @property
    def sharers(self) -> tuple[Inc, ...]:
        """Incarnations of the servers that own buckets, in order."""
        owning = set(self.owners)
        return tuple(server.inc for k, server in enumerate(self.servers) if k in owning)

    @property
    def ownership(self) -> tuple[Inc, ...]:
        """Return the incarnation of each bucket's owner."""
        return tuple(self.servers[owner].inc for owner in self.owners)

    @property
    def receivers(self) -> tuple[Inc, ...]:
        """Incarnations of the servers that buckets are being copied to, in order."""
        copied = set(self.copies)
        return tuple(server.inc for k, server in enumerate(self.servers) if k in copied)


class Link(msgspec.Struct, frozen=True, array_like=True):
    """The connection to a peer, both ways at once: bytes per second each way, and round trip, s."""

    node: str
    bytes_per_s: float
    rtt_s: float


class CutRef(msgspec.Struct, frozen=True, kw_only=True):
    """The key of a cut that can be loaded; each process looks for its files where it can reach."""

    cut_no: CutNo
    epoch_no: EpochNo = NO_EPOCH
    """Epoch of the copy, since the number of a cut that failed comes again; 0: unknown."""
    memory: bool | str = False
    """Whether nodes hold its files in memory. (A path, in journals of earlier releases.)"""
    stored: bool = False
    """Whether all of it is on disk, too; what is in memory may be gone."""

    @property
    def in_memory(self) -> bool:
        """Whether it is not wholly on disk."""
        return bool(self.memory) and not self.stored


class TableHeld(msgspec.Struct, frozen=True, array_like=True):
    """Part of a growing table that a server holds."""

    table: str
    rows: int
    row_bytes: int
    """Bytes of the value and the optimizer's state of a row."""
