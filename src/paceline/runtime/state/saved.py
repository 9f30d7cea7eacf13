"""The script's part of training as servers keep it beside the model, and as a cut holds it.

Never imports torch: the command line reads the buffers of a model that it does not load.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from paceline.base.errors import PermanentError
from paceline.runtime.data.work import Array
from paceline.runtime.state.skeleton import Skeleton, put_together
from paceline.wire.messages.feeds import ScriptPlace

BUFFERS, LEFT_OUT = "buffers", "left_out"
"""Keys of the state: the model's buffers by name, and names of those that are not in it."""


class Tree(msgspec.Struct, frozen=True, array_like=True):
    """Nested state as it travels."""

    skeleton: Skeleton
    tensors: tuple[tuple[str, tuple[int, ...], bytes], ...] = ()
    """dtype, shape, bytes."""


class Saved(msgspec.Struct, frozen=True, array_like=True):
    """The script's state as it travels."""

    now: Tree
    begun: bytes
    """A `Tree`: what the script had prepared when the job began."""
    feed: int = -1
    """The training feed that it is of; -1: before the first."""
    base: int = 0
    """The position at which that feed began."""
    kinds: tuple[str, ...] | None = None
    """Names of the schedulers' classes; None: written before they were kept."""
    place: ScriptPlace | None = None
    """See `Outside.place`."""


class SavedBuffers(NamedTuple):
    """Buffers of a model in a cut of servers: those of the worker that was furthest."""

    held: Mapping[str, tuple[str, Array]]
    """Name -> torch's name of the dtype, and the values; an array of unsigned numbers of the same
    size where numpy lacks the dtype."""
    left_out: tuple[str, ...] = ()
    """Large ones that have not changed since ``job.prepare``: the script makes them again."""


def decode_saved(data: bytes) -> Saved:
    """Read what a worker has handed in.

    Raises:
        PermanentError: it is no such state.
    """
    try:
        return msgspec.msgpack.decode(data, type=Saved)
    except msgspec.MsgspecError as error:
        raise PermanentError(f"the state of schedulers cannot be read: {error}") from error


def buffers_in(data: bytes) -> SavedBuffers:
    """The buffers in what a worker has handed in.

    Raises:
        PermanentError: it is no such state.
    """
    tree = decode_saved(data).now
    places = range(len(tree.tensors))
    state: Any = put_together(tree.skeleton, list(places))
    found: dict[str, int] = state.get(BUFFERS, {})
    held = {name: _array(*tree.tensors[place]) for name, place in found.items()}
    return SavedBuffers(held, tuple(state.get(LEFT_OUT, ())))


def _array(dtype: str, shape: tuple[int, ...], data: bytes) -> tuple[str, Array]:
    count = int(np.prod(shape, dtype=np.int64))
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(f"u{len(data) // count if count else 1}")
    return dtype, np.frombuffer(data, kind).reshape(shape)
