"""msgpack in and out, and one error for everything that bytes from a peer can do to a decoder."""

from collections.abc import Callable
from typing import Any

import msgspec

from paceline.base.errors import PermanentError

MAX_REASON = 200
"""Characters of msgspec's message that are kept: it may quote what the peer sent."""

encode = msgspec.msgpack.Encoder().encode


class Garbage(PermanentError):
    """These bytes are not the message that was expected."""


def decoder(kind: Any) -> Callable[[Any], Any]:
    """A function from a buffer to a ``kind`` (a type as msgspec takes it); it raises Garbage."""
    inner = msgspec.msgpack.Decoder(kind).decode

    def decode(data: Any) -> Any:
        try:
            return inner(data)
        # RecursionError: a field that we do not know, nested thousands deep.
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Garbage(f"{type(error).__name__}: {error}"[:MAX_REASON]) from error

    return decode
