"""Nested data and tensors as one piece that a message carries."""

from typing import Any

import msgspec
import torch
from torch import Tensor

from paceline.base.errors import PermanentError
from paceline.runtime.state.saved import Tree
from paceline.runtime.state.skeleton import put_together
from paceline.runtime.state.tree import as_bytes, take_apart


def pack(state: Any, name: str = "the state of a scheduler") -> Tree:
    """Nested data and tensors, which are copied.

    Raises:
        ConfigError: something else is in it, which is called ``name``.
    """
    skeleton, tensors = take_apart(state, name)
    packed = (
        (str(one.dtype).removeprefix("torch."), tuple(one.shape), as_bytes(one).numpy().tobytes())
        for one in tensors
    )
    return Tree(skeleton, tuple(packed))


def unpack(tree: Tree) -> Any:
    """Return the value that was packed.

    Raises:
        PermanentError: it is damaged.
    """
    return put_together(tree.skeleton, [_tensor(*one) for one in tree.tensors])


def _tensor(dtype: str, shape: tuple[int, ...], data: bytes) -> Tensor:
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise PermanentError(f"the state of schedulers cannot be read: {dtype!r} is no dtype")
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(kind).reshape(shape)


def packed(value: Any, name: str) -> bytes:
    """A value as bytes; see `pack`."""
    return msgspec.msgpack.encode(pack(value, f"{name}(value)"))


def unpacked(data: bytes) -> Any:
    """Return the value that was packed as bytes; see `unpack`."""
    return unpack(msgspec.msgpack.decode(data, type=Tree))
