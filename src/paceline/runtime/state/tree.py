"""Nested state as data and tensors: what ``state_dict`` returns, without pickle.

skeleton, tensors = take_apart({"step": 3, "exp_avg": tensor})
put_together(skeleton, tensors)  # of `skeleton`
"""

import base64
import math
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.base.errors import ConfigError
from paceline.runtime.data.work import Array
from paceline.runtime.state.skeleton import Skeleton

_UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
"""Bytes of an element -> what carries one whose dtype numpy lacks."""


def take_apart(value: Any, name: str = "state") -> tuple[Skeleton, list[Tensor]]:
    """Split nested state into its form and its tensors, which are not copied.

    Args:
        value: dicts, lists, tuples, sets, tensors, arrays, numbers, strings, bytes, None, in any
            nesting.
        name: what to call it in an error.

    Raises:
        ConfigError: something else is in it.
    """
    tensors: list[Tensor] = []
    return _take_apart(value, name, tensors), tensors


def _take_apart(value: Any, name: str, tensors: list[Tensor]) -> Skeleton:  # noqa: C901
    match value:
        case Tensor():
            tensors.append(_movable(value, name))
            return ["tensor", len(tensors) - 1]
        case None | bool() | int():
            return value
        case str():
            return _text(value, name)
        case float() if math.isfinite(value):
            return float(value)  # numpy's are floats, too
        case float():  # which JSON does not know
            return ["float", repr(float(value))]
        case complex():
            return ["complex", repr(complex(value))]
        case bytes():
            return ["bytes", base64.b85encode(value).decode()]
        case dict():
            kind = "counter" if isinstance(value, Counter) else "dict"
            return [
                kind,
                *(
                    [_take_apart(key, name, tensors), _take_apart(one, f"{name}[{key!r}]", tensors)]
                    for key, one in value.items()
                ),
            ]
        case list() | tuple() | set():
            kind = next(kind.__name__ for kind in (list, tuple, set) if isinstance(value, kind))
            parts = [_take_apart(one, f"{name}[{k}]", tensors) for k, one in enumerate(value)]
            return [kind, *parts]
        case np.generic():
            return _take_apart(value.item(), name, tensors)
        case np.ndarray() if value.dtype.kind in "biufc":
            return ["array", _take_apart(torch.from_numpy(value.copy()), name, tensors)]
        case _:
            raise ConfigError(
                f"{name} is a {type(value).__name__}, which cannot be handed to another worker; "
                "state is made of tensors, arrays, numbers, strings, bytes, None, lists, tuples, "
                "sets and dicts"
            )


def _text(text: str, name: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{name} cannot be handed to another worker: the text {text!a} is no valid "
            "Unicode; set it to valid text, or remove it"
        ) from error
    return text


def why_unmovable(tensor: Tensor) -> str | None:
    """Say why the bytes of a tensor are not all of it; None: they are."""
    if tensor.is_nested:
        return "a nested tensor; keep its values and offsets as two tensors"
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return (
            f"a tensor of layout {layout}; keep its indices and values as two tensors, or "
            "register it with persistent=False, and build it in every worker"
        )
    if tensor.is_quantized:
        return "a quantized tensor; train in floating point, and quantize the exported model"
    # A DTensor is one, too, whose own part is plain; not by its type, whose import takes a second.
    if hasattr(tensor, "__tensor_flatten__") and not hasattr(tensor, "device_mesh"):
        return f"a {type(tensor).__name__}, made of several tensors; use plain ones"
    return None


def _movable(tensor: Tensor, name: str) -> Tensor:
    why = why_unmovable(tensor)
    if why is not None:
        raise ConfigError(f"{name} cannot be handed to another worker: it is {why}")
    return tensor.detach().resolve_conj().resolve_neg()


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor in this machine's memory, ``[n]`` uint8; shared where it can be."""
    if not tensor.numel():  # whose strides may be any
        return torch.empty(0, dtype=torch.uint8)
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def as_array(tensor: Tensor) -> Array:
    """Return a tensor as an array, whose dtype is the tensor's where numpy has it."""
    plain = tensor.detach().cpu().contiguous()
    try:
        return plain.numpy()
    except TypeError:
        return plain.view(_UNSIGNED[plain.element_size()]).numpy()
