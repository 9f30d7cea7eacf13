"""Instructions of `WorkerState`, which the edge of a worker of servers carries out."""

import msgspec

from paceline.base.numbering import Inc
from paceline.wire.messages.base import Server
from paceline.wire.messages.data import AskMap, Part, Pull, Ready
from paceline.wire.messages.node import NodeUp


class ToServer(msgspec.Struct, frozen=True):
    """Send to a server, named by its incarnation; the edge adds the tensors."""

    server: Inc
    message: Part | Ready | Pull | AskMap


class ToMaster(msgspec.Struct, frozen=True):
    """Send to the master."""

    message: NodeUp


class PullDone(msgspec.Struct, frozen=True):
    """All servers have answered the pull, at one step."""

    ticket: int


class DropWork(msgspec.Struct, frozen=True):
    """A new epoch: leases and contributions are void, gradients can go."""


class Withdraw(msgspec.Struct, frozen=True):
    """Order to drop what was taken and not offered: its step was decided without it."""


class EndProcess(msgspec.Struct, frozen=True):
    """This incarnation is fenced: nothing of it counts any more. End the process."""


class ConnectServer(msgspec.Struct, frozen=True):
    """Connect to this server, if there is no connection yet."""

    server: Server


class Remapped(msgspec.Struct, frozen=True):
    """The map is another one: meet its servers, leave the others, cut tensors by it."""

    pull: Pull | None
    """The one that was under way, under a new ticket: send it to all owners."""


class OfferAgain(msgspec.Struct, frozen=True):
    """The contribution ``seq`` is void; the same gradients are offered as ``part`` to all."""

    seq: int
    part: Part


Instruction = (
    ToServer
    | ToMaster
    | PullDone
    | DropWork
    | Withdraw
    | EndProcess
    | ConnectServer
    | Remapped
    | OfferAgain
)
