"""Nested state as data and tensors: what ``state_dict`` returns, without pickle.

skeleton, tensors = take_apart({"step": 3, "exp_avg": tensor})
put_together(skeleton, tensors)  # of `skeleton`
"""

import math
from typing import Any

import torch
from torch import Tensor

from paceline.base.errors import ConfigError
from paceline.runtime.data.work import Array
from paceline.runtime.replica.skeleton import Skeleton


def take_apart(value: Any, name: str = "state") -> tuple[Skeleton, list[Tensor]]:
    """Split nested state into its form and its tensors, which are not copied.

    Args:
        value: dicts, lists, tuples, tensors, numbers, strings, None, in any nesting.
        name: what to call it in an error.

    Raises:
        ConfigError: something else is in it.
    """
    tensors: list[Tensor] = []
    return _take_apart(value, name, tensors), tensors


def _take_apart(value: Any, name: str, tensors: list[Tensor]) -> Skeleton:
    match value:
        case float() if not math.isfinite(value):  # which JSON does not know
            return ["float", repr(value)]
        case None | bool() | int() | float() | str():
            return value
        case Tensor():
            tensors.append(value.detach())
            return ["tensor", len(tensors) - 1]
        case dict():
            return [
                "dict",
                *(
                    [_take_apart(key, name, tensors), _take_apart(one, f"{name}[{key!r}]", tensors)]
                    for key, one in value.items()
                ),
            ]
        case list() | tuple():
            kind = "list" if isinstance(value, list) else "tuple"
            parts = [_take_apart(one, f"{name}[{k}]", tensors) for k, one in enumerate(value)]
            return [kind, *parts]
        case _ if hasattr(value, "item") and getattr(value, "shape", None) == ():
            return value.item()
        case _:
            raise ConfigError(
                f"{name} is a {type(value).__name__}, which cannot be handed to another worker; "
                "state is made of tensors, numbers, strings, None, lists, tuples and dicts"
            )


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor in this machine's memory, ``[n]`` uint8; shared where it can be."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def as_array(tensor: Tensor) -> Array:
    """The same as an array, whose dtype is the tensor's where numpy has it."""
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        plain = plain.view(torch.uint16)
    return plain.numpy()
