"""A script's values as plain leaves, by path: what two runs can be compared by.

Numbers and texts are kept as they are. Of a tensor some elements and the norm are kept. Containers
and the script's own objects are walked to a depth, and up to a number of leaves.
"""

import hashlib
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.features.rehearse.plan import Leaves, PlainLeaf

DEPTH = 4
MOST = 200
"""Leaves of one variable; and elements of a container from its beginning and from its end."""
ENDS = 16
ELEMENTS = 32
BIG = 1 << 22
"""Elements of a tensor above which only some are looked at, and no norm is computed."""
_PARTS = {"_parameters", "_buffers", "_modules"}


def leaves_of(name: str, value: Any, mine: tuple[str, ...] = (), most: int = MOST) -> Leaves:
    """Take a value apart.

    Args:
        name: of the variable.
        value: what it holds.
        mine: modules whose classes are the script's own.
        most: leaves that are kept.
    """
    found: Leaves = {}
    for path, leaf in _walk(name, value, DEPTH, mine, set()):
        found[path] = leaf
        if len(found) >= most:
            break
    return found


def _walk(
    path: str, value: Any, depth: int, mine: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[str, PlainLeaf]]:
    leaf = _leaf(value)
    if leaf is not None:
        yield path, leaf
        return
    if depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    for key, part in _parts(value, mine):
        yield from _walk(path + key, part, depth - 1, mine, seen)


def _leaf(value: Any) -> PlainLeaf | None:
    for kinds, leaf in _LEAVES:
        if isinstance(value, kinds):
            return leaf(value)
    return None


def _of_tensor(value: Tensor) -> PlainLeaf | None:
    if value.is_meta or value.is_sparse or type(value) not in (Tensor, nn.Parameter):
        return None
    plain = value.detach()
    if plain.is_quantized or plain.is_complex():
        return None
    shape = f"{str(plain.dtype).removeprefix('torch.')}{list(plain.shape)}"
    flat = plain.reshape(-1)
    if flat.numel() > BIG:
        flat = flat[:: flat.numel() // ELEMENTS]
    return _of_flat(shape, flat.to(torch.float64).cpu().numpy())


def _of_array(value: Any) -> PlainLeaf | None:
    if value.dtype.kind not in "fiub":
        return None
    flat = value.reshape(-1)
    if flat.size > BIG:
        flat = flat[:: flat.size // ELEMENTS]
    return _of_flat(f"{value.dtype}{list(value.shape)}", flat.astype(np.float64))


def _of_flat(shape: str, flat: Any) -> PlainLeaf:
    if not np.isfinite(flat).all():  # JSON has no such numbers
        shape, flat = f"{shape} with nan or inf", np.nan_to_num(flat, posinf=0.0, neginf=0.0)
    places = np.unique(np.linspace(0, max(flat.size - 1, 0), ELEMENTS).astype(np.int64))
    some = flat[places].tolist() if flat.size else []
    return PlainLeaf(text=shape, some=(*some, float(np.linalg.norm(flat))))


def _of_float(value: float) -> PlainLeaf:
    return PlainLeaf(number=value) if math.isfinite(value) else PlainLeaf(text=str(value))


def _of_generator(state: bytes) -> PlainLeaf:
    return PlainLeaf(text=f"generator at {_digest(state)}")


_LEAVES: tuple[tuple[Any, Callable[[Any], PlainLeaf | None]], ...] = (
    (type(None), lambda _: PlainLeaf(text="None")),
    ((bool, int, np.integer, np.bool_), lambda one: PlainLeaf(number=float(one), whole=True)),
    ((float, np.floating), lambda one: _of_float(float(one))),
    (str, lambda one: PlainLeaf(text=f"'{one[:200]}'")),
    (bytes, lambda one: PlainLeaf(text=f"bytes {_digest(one)}")),
    (Tensor, _of_tensor),
    (np.ndarray, _of_array),
    (torch.Generator, lambda one: _of_generator(one.get_state().numpy().tobytes())),
    (random.Random, lambda one: _of_generator(repr(one.getstate()).encode())),
    (np.random.Generator, lambda one: _of_generator(repr(one.bit_generator.state).encode())),
)
"""Kinds of leaves, and how to make each; the first row that fits counts."""


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=4).hexdigest()


def _parts(value: Any, mine: tuple[str, ...]) -> Iterable[tuple[str, Any]]:
    match value:
        case Optimizer():
            return _groups(value)
        case LRScheduler():
            return [(".last_epoch", value.last_epoch)]
        case nn.Module():
            own = vars(value).items()
            return [(f".{k}", v) for k, v in own if k not in _PARTS and not k.startswith("_")]
        case Mapping():
            return [(f"[{key!r}]", part) for key, part in value.items()]
        case list() | tuple() | deque():
            return _listed([*value])
        case set() | frozenset():
            return _listed([*value][:ENDS])
        case type() | ModuleType() | FunctionType() | MethodType():
            return []
        case _:
            pass
    if type(value).__module__ in mine and hasattr(value, "__dict__"):
        return [(f".{name}", part) for name, part in vars(value).items()]
    return []


def _groups(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    for number, group in enumerate(optimizer.param_groups):
        for key in ("lr", "weight_decay", "momentum"):
            if key in group:
                yield f".param_groups[{number}]['{key}']", group[key]


def _listed(values: list[Any]) -> Iterator[tuple[str, Any]]:
    yield ".len()", len(values)
    for number, part in enumerate(values):
        if number < ENDS or number >= len(values) - ENDS:
            yield f"[{number}]", part
