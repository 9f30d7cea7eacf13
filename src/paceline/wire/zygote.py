"""Between an agent and its zygote: one datagram per message, over two connected sockets.

They keep message boundaries (``SOCK_SEQPACKET``), so no framing is needed. A zygote that the agent
starts inherits its end, so nobody else can speak on it. One that the job's template forks has the
connection that the agent made to the template's socket, in a directory for this user alone.
"""

import socket

import msgspec

from paceline.base.numbering import Inc
from paceline.wire.messages.base import Message

MAX_BYTES = 65536


class BecomeZygote(Message, frozen=True):
    """agent -> fork of the template: be the zygote of my node; the first message, if any."""

    node: str
    environment: str
    """`environment_digest` of what the node's zygote must have; with another one it ends."""
    join: tuple[str, ...]
    """Control groups to enter: files to write ``0`` to."""
    log: str
    """File that stdout and stderr are appended to."""
    job_dir: str
    """Directory of the job, or of the node where it has one of its own."""


class Warm(Message, frozen=True):
    """zygote -> agent: everything is imported; a fork is a matter of milliseconds now."""

    pid: int
    import_s: float
    """Seconds that the imports took, or that becoming the zygote did."""
    shared_bytes: int = 0
    """Memory that it shares with the template, and that no control group of its node counts."""


class Fork(Message, frozen=True):
    """agent -> zygote: fork one training process."""

    inc: Inc
    env: dict[str, str]
    """Added to the zygote's environment."""
    log: str
    """File that stdout and stderr are appended to."""


class Forked(Message, frozen=True):
    """zygote -> agent: the process exists."""

    inc: Inc
    pid: int


class Died(Message, frozen=True):
    """zygote -> agent: the process has ended and is reaped; its group got SIGKILL."""

    inc: Inc
    pid: int
    status: int
    """Status as waitpid gives it."""


FromZygote = Warm | Forked | Died

_from_zygote = msgspec.msgpack.Decoder(FromZygote)
_fork = msgspec.msgpack.Decoder(Fork)
_become = msgspec.msgpack.Decoder(BecomeZygote)


def send(pair: socket.socket, message: BecomeZygote | Fork | FromZygote) -> None:
    """Send one message.

    Raises:
        OSError: the other side is gone, or its queue is full.
    """
    pair.send(msgspec.msgpack.encode(message))


def receive_node(pair: socket.socket) -> BecomeZygote | None:
    """Receive what a fork of the template must become; None: the agent is gone."""
    data = pair.recv(MAX_BYTES)
    return _become.decode(data) if data else None


def receive_fork(pair: socket.socket) -> Fork | None:
    """The next request; None: the agent is gone."""
    data = pair.recv(MAX_BYTES)
    return _fork.decode(data) if data else None


def receive_from_zygote(pair: socket.socket) -> FromZygote | None:
    """The next report; None: the zygote is gone."""
    data = pair.recv(MAX_BYTES)
    return _from_zygote.decode(data) if data else None
