"""Between an agent and its zygote: one datagram per message over a socket pair.

The pair keeps message boundaries (``SOCK_SEQPACKET``), so no framing is needed; it is inherited,
so nobody else can speak on it.
"""

import socket

import msgspec

from paceline.base.numbering import Inc
from paceline.wire.messages.base import Message

MAX_BYTES = 65536


class Warm(Message, frozen=True):
    """zygote -> agent: everything is imported; a fork is a matter of milliseconds now."""

    import_s: float


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
    """As waitpid gives it."""


FromZygote = Warm | Forked | Died

_from_zygote = msgspec.msgpack.Decoder(FromZygote)
_fork = msgspec.msgpack.Decoder(Fork)


def send(pair: socket.socket, message: Fork | FromZygote) -> None:
    """Send one message.

    Raises:
        OSError: the other side is gone, or its queue is full.
    """
    pair.send(msgspec.msgpack.encode(message))


def receive_fork(pair: socket.socket) -> Fork | None:
    """The next request; None: the agent is gone."""
    data = pair.recv(MAX_BYTES)
    return _fork.decode(data) if data else None


def receive_from_zygote(pair: socket.socket) -> FromZygote | None:
    """The next report; None: the zygote is gone."""
    data = pair.recv(MAX_BYTES)
    return _from_zygote.decode(data) if data else None
