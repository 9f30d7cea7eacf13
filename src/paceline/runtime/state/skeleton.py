"""The form of nested state without its tensors, as it travels and as a cut holds it.

A skeleton is made of lists, strings, numbers and None only, so any codec carries it. Never imports
torch: the command line reads the form of a cut that it does not load.
"""

import base64
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from paceline.base.errors import PermanentError

Skeleton = Any
"""A plain value, or ``[kind, ...]``."""
LAYOUT = "layout"
"""The name of a `Layout` in a cut."""


class Layout(msgspec.Struct, frozen=True):
    """The form of the state, and of each of its tensors."""

    skeleton: Skeleton
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    """dtype and shape of each tensor."""
    part: tuple[int, int] = (0, 1)
    """Number of this shard of the state, and the number of shards."""
    rows: tuple[int | None, ...] = ()
    """Rows of the whole for each tensor that is in shards; None: the tensor is whole."""


def rows_of_part(num_rows: int, part: tuple[int, int]) -> range:
    """The rows of a tensor that a shard has: chunks along the first axis, as ``torch.chunk``'s."""
    number, count = part
    chunk = -(-num_rows // count)
    return range(min(number * chunk, num_rows), min((number + 1) * chunk, num_rows))


def read_layout(data: bytes) -> Layout:
    """A layout as it was encoded.

    Raises:
        PermanentError: it is none.
    """
    try:
        return msgspec.json.decode(data, type=Layout)
    except msgspec.MsgspecError as error:
        raise PermanentError(f"a state cannot be read: {error}") from error


def put_together(skeleton: Skeleton, tensors: Sequence[Any]) -> Any:  # noqa: C901
    """The state again, on these tensors, or on what stands for them.

    Raises:
        PermanentError: the skeleton is damaged.
    """
    match skeleton:
        case None | bool() | int() | float() | str():
            return skeleton
        case ["float", str(text)]:
            return float(text)
        case ["complex", str(text)]:
            return complex(text)
        case ["bytes", str(text)]:
            return base64.b85decode(text)
        case ["tensor", int(index)] if 0 <= index < len(tensors):
            return tensors[index]
        case ["dict", *pairs]:
            return {put_together(key, tensors): put_together(one, tensors) for key, one in pairs}
        case ["counter", *pairs]:
            return Counter(put_together(["dict", *pairs], tensors))
        case ["array", tensor]:
            found = put_together(tensor, tensors)
            return found.numpy() if hasattr(found, "numpy") else found
        case ["list", *parts]:
            return [put_together(one, tensors) for one in parts]
        case ["tuple", *parts]:
            return tuple(put_together(one, tensors) for one in parts)
        case ["set", *parts]:
            return {put_together(one, tensors) for one in parts}
        case _:
            raise PermanentError(f"damaged state: {str(skeleton)[:100]} is no part of one")


def names_of(skeleton: Skeleton, name: str = "") -> list[str]:
    """A name for each tensor, by its place: ``optimizers.0.state.3.exp_avg``."""
    match skeleton:
        case ["tensor", _]:
            return [name]
        case ["array", tensor]:
            return names_of(tensor, name)
        case ["dict" | "counter", *pairs]:
            parts = [(put_together(key, ()), one) for key, one in pairs]
        case ["list" | "tuple" | "set", *ones]:
            parts = list(enumerate(ones))
        case _:
            return []
    return [
        found
        for key, one in parts
        for found in names_of(one, f"{name}.{key}" if name else f"{key}")
    ]
