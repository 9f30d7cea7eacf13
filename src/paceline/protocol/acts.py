"""Instructions of the master's state machine to its edge."""

import msgspec

from paceline.base.numbering import Inc
from paceline.protocol.records import CutValid, Records
from paceline.wire.messages.node import Copied, NodeDown


class Send(msgspec.Struct, frozen=True):
    """Deliver to the training process of this incarnation."""

    inc: Inc
    message: NodeDown


class WriteAhead(msgspec.Struct, frozen=True):
    """Write before anything that follows leaves."""

    record: Records


class Seal(msgspec.Struct, frozen=True):
    """All of a cut is where it says: write its manifest, then say so (`MasterState.cut_sealed`)."""

    valid: CutValid
    copies: tuple[Copied, ...]
    """Copies of which the cut is made."""


class FeedDone(msgspec.Struct, frozen=True):
    """Every sample of the feed is in the model, and in a cut on disk."""

    feed: int


class Moved(msgspec.Struct, frozen=True):
    """Buckets are where they were to go: those that leave may, those that join are in place."""

    joining: tuple[Inc, ...]
    leaving: tuple[Inc, ...]


class NotMoved(msgspec.Struct, frozen=True):
    """Nothing has moved, servers that were to join are not needed."""

    joining: tuple[Inc, ...]
    futile: bool
    """True: those servers could not take their buckets. False: an epoch has begun meanwhile."""


class WorkerRefused(msgspec.Struct, frozen=True):
    """This worker cannot train with the others, nor could its next life; they go on without it."""

    inc: Inc
    reason: str


class Fail(msgspec.Struct, frozen=True):
    """The job cannot go on; the reason is for the user."""

    reason: str


Instruction = Send | WriteAhead | Seal | FeedDone | Moved | NotMoved | WorkerRefused | Fail
