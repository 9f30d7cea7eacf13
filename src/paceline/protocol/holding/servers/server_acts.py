"""Instructions of `ServerState`, which the edge of a parameter server carries out."""

import msgspec

from paceline.base.numbering import Inc
from paceline.protocol.holding.servers.worker_acts import ToMaster
from paceline.wire.messages.base import Server, ServerMap
from paceline.wire.messages.data import Data, Piece, Pull
from paceline.wire.messages.node import Copied, JoinServers, Restore

Key = tuple[Inc, int]
"""(inc, seq): names one contribution within an epoch."""


class Reply(msgspec.Struct, frozen=True):
    """Send a message to a worker."""

    inc: Inc
    message: Data


class Tell(msgspec.Struct, frozen=True):
    """Send a message to another server, named by its incarnation."""

    inc: Inc
    message: Data


class Keep(msgspec.Struct, frozen=True):
    """Keep the tensors of the part just handled."""

    key: Key


class Apply(msgspec.Struct, frozen=True):
    """Apply these contributions as one update, summed in this order, and drop their tensors."""

    keys: tuple[Key, ...]
    factor: float = 1.0
    """Factor on the learning rates."""


class Forget(msgspec.Struct, frozen=True):
    """Drop the tensors of contributions that will never be applied."""

    keys: tuple[Key, ...]


class AnswerPull(msgspec.Struct, frozen=True):
    """Send the parameters as they are now."""

    pull: Pull


class CopyState(msgspec.Struct, frozen=True):
    """Copy the tensors as they are now; say `copied` when the copy survives the node."""

    copied: Copied


class Load(msgspec.Struct, frozen=True):
    """Load a cut, then call `loaded`."""

    restore: Restore


class MakeRoom(msgspec.Struct, frozen=True):
    """Get ready, as a fresh server, for parts and pieces of what this map copies here."""

    join: JoinServers


class SendBuckets(msgspec.Struct, frozen=True):
    """Set all buckets aside as they are now, and send them until the receivers have them."""

    to: tuple[tuple[Server, Piece], ...]
    """Each receiver, and what goes with each piece."""


class MapInForce(msgspec.Struct, frozen=True):
    """This map is in force: keep what it copies here, drop what it does not give to this server."""

    map: ServerMap


Instruction = (
    Reply
    | Tell
    | ToMaster
    | Keep
    | Apply
    | Forget
    | AnswerPull
    | CopyState
    | Load
    | MakeRoom
    | SendBuckets
    | MapInForce
)
