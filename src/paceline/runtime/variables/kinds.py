"""The kinds of values that a script's variables have, and what can be done with each.

A kind is a row: how a value is copied so that it can be put back, how it travels to another worker,
and how an object of the script becomes what has arrived. What no row fits is left alone.
"""

import json
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import xxhash
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from paceline.base.errors import ConfigError
from paceline.runtime.state.restoring import restore_module
from paceline.runtime.state.tree import as_bytes, take_apart, why_unmovable
from paceline.runtime.variables import frames
from paceline.runtime.variables.opaque import is_opaque, seen_opaque
from paceline.runtime.variables.plain import (
    ATOMS,
    CONTAINERS,
    atom_of,
    dict_of,
    put_plain,
    taken_plain,
)
from paceline.runtime.variables.spelled import NoPlainError, is_spelled, spell

MOST_SEEN = 1 << 16
"""Elements of a container that are all compared."""
MOST_BYTES = 16 << 20
"""Bytes of one variable that are handed to another worker or kept in a cut, at most."""
SAMPLE_BYTES = 1 << 14
"""Bytes of each tensor of an object with a state that are looked at, to see whether it changed."""


class Kind(NamedTuple):
    """Ways to handle values of one kind."""

    name: str
    fits: Callable[[Any], bool]
    """Whether a value is of this kind."""
    seen: Callable[[Any], Any]
    """Function to plain data by which one value is told from another."""
    taken: Callable[[Any], Any]
    """Function to the value as data and tensors, for `paceline.runtime.state.tree`."""
    put: Callable[[Any, Any], Any]
    """Function (own value, what was taken) -> the value from now on: the own one, if it can
    change."""


# ---------------------------------------------------------------------------- plain data


def is_plain(value: Any) -> bool:
    """Tell whether a value is a container of plain data, or such data."""
    kind = type(value)
    if kind in ATOMS or isinstance(value, (*CONTAINERS, Tensor, np.ndarray, np.generic)):
        return True
    return isinstance(value, int | float | str) or is_spelled(value)


def _seen_tensor(tensor: Tensor) -> list[Any]:
    # A loss counts as the number that it is, also if the script adds up losses as they are.
    is_of_computation = tensor.grad_fn is not None and tensor.numel() != 1
    if is_of_computation or why_unmovable(tensor) is not None:
        raise NoPlainError("a tensor of a computation")
    if isinstance(tensor, nn.Parameter):
        raise NoPlainError("a parameter, which a model has")
    if tensor.nbytes > MOST_BYTES:
        raise NoPlainError("a tensor of more than 16 MiB")
    plain = tensor.detach().resolve_conj().resolve_neg()
    digest = xxhash.xxh3_64_digest(as_bytes(plain).numpy().data)
    return ["tensor", str(tensor.dtype), list(tensor.shape), digest]


def _seen_inside(value: Any) -> Any:
    """Plain data in place of what msgspec does not know."""
    match value:
        case Tensor():
            return _seen_tensor(value)
        case np.ndarray() if value.dtype.kind in "biufc":
            if value.nbytes > MOST_BYTES:
                raise NoPlainError("an array of more than 16 MiB")
            digest = xxhash.xxh3_64_digest(np.ascontiguousarray(value).data)
            return ["array", value.dtype.str, list(value.shape), digest]
        case np.generic():
            return ["number", value.dtype.str, value.tobytes()]
        case complex():
            return ["complex", repr(value)]
        case deque():
            return list(value)
        case _ if is_spelled(value):
            return _seen_spelled(value)
        case int() | float() | str():  # of a class of its own
            return [type(value).__qualname__, atom_of(value)]
        case _:
            raise NoPlainError(type(value).__name__)


def _seen_spelled(value: Any) -> Any:
    """Return a value as text; also one that does not travel, so that its change can be named."""
    try:
        return spell(value)
    except NoPlainError:
        return [type(value).__qualname__, repr(value)]


_encoder = msgspec.msgpack.Encoder(enc_hook=_seen_inside)
_of_sets = msgspec.msgpack.Encoder(enc_hook=_seen_inside, order="deterministic")


def encoded(value: Any) -> bytes:
    """Plain data as bytes, by which it is compared.

    Raises:
        NoPlainError: something else is in it.
    """
    try:
        if isinstance(value, set | frozenset):
            return _of_sets.encode(value)
        return _encoder.encode(value)
    except NoPlainError:
        raise
    except OverflowError:
        return repr(value).encode()
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise NoPlainError(str(error)) from error


def digest_of(seen: Any) -> int:
    """A number that tells plain data apart, of 63 bits."""
    return xxhash.xxh3_64_intdigest(encoded(seen)) >> 1


def _seen_plain(value: Any) -> Any:
    """Plain data; of much of it, its size and both ends."""
    if isinstance(value, Enum):  # whatever its members are made of
        return _seen_spelled(value)
    if isinstance(value, OrderedDict):  # whose order is not that of the dictionary within
        return [*OrderedDict.items(value)]
    if not isinstance(value, list | tuple | deque | dict | set) or _size(value) <= MOST_SEEN:
        return value
    if isinstance(value, dict | set):
        return len(value)
    parts = [*value]
    return [len(parts), parts[:16], parts[-16:]]


def _size(value: Any) -> int:
    """Estimate how many elements a container has, with those of its own."""
    if isinstance(value, dict):
        value = dict_of(value).values(value)
    first = [*islice(value, 8)]
    inner = sum(len(one) for one in first if isinstance(one, CONTAINERS))
    return len(value) + inner * len(value) // max(1, len(first))


# ---------------------------------------------------------------------------- generators


def _as_text(state: Any) -> str:
    """The state of a generator of numpy, whose numbers may have 128 bits."""
    return json.dumps(state, default=lambda one: one.tolist())


def _put_torch(own: torch.Generator, state: Tensor) -> torch.Generator:
    own.set_state(state)
    return own


def _put_numpy(own: np.random.Generator, text: str) -> np.random.Generator:
    own.bit_generator.state = _with_arrays(own.bit_generator.state, json.loads(text))
    return own


def _with_arrays(own: Any, new: Any) -> Any:
    if isinstance(own, np.ndarray):
        return np.asarray(new, own.dtype)
    if isinstance(own, dict) and isinstance(new, dict):
        return {key: _with_arrays(own.get(key), one) for key, one in new.items()}
    return new


def _put_legacy(own: np.random.RandomState, text: str) -> np.random.RandomState:
    own.set_state(_with_arrays(own.get_state(legacy=False), json.loads(text)))
    return own


def _put_python(own: random.Random, text: str) -> random.Random:
    version, numbers, gauss = json.loads(text)
    own.setstate((version, tuple(numbers), gauss))
    return own


# ---------------------------------------------------------------------------- objects with a state


def _has_state(value: Any) -> bool:
    kind = type(value)
    return callable(getattr(kind, "state_dict", None)) and callable(
        getattr(kind, "load_state_dict", None)
    )


def _seen_state(value: Any) -> Any:
    """A state, of whose tensors a part tells whether they changed."""
    return _sampled(value.state_dict())


def _sampled(state: Any) -> Any:
    if isinstance(state, Tensor):
        flat = state.detach().reshape(-1)[: SAMPLE_BYTES // max(1, state.element_size())]
        return [list(state.shape), _seen_tensor(flat)]
    if isinstance(state, Mapping):
        return {str(key): _sampled(one) for key, one in state.items()}
    if isinstance(state, list | tuple):
        return [*map(_sampled, state)]
    return state


def _taken_state(value: Any) -> Any:
    state = value.state_dict()
    try:
        take_apart(state)
    except ConfigError as error:
        raise NoPlainError(str(error)) from error
    return state


def _put_state(own: Any, state: Any) -> Any:
    if isinstance(own, nn.Module):
        restore_module(own, state)
    else:
        own.load_state_dict(state)
    return own


def _put_dataset(own: TensorDataset, tensors: Any) -> TensorDataset:
    own.tensors = tuple(put_plain(list(own.tensors), list(tensors)))
    return own


def _put_iterator(own: Any, at: list[Any]) -> Any:
    if not frames.reach(own, frames.IteratorAt(*at), back=True):
        raise ValueError(f"the iterator cannot go to {at}")
    return own


def _seen_opaque(value: Any) -> Any:
    try:
        return seen_opaque(value, lambda one: digest_of(_seen_plain(one)))
    except TypeError as error:
        raise NoPlainError(str(error)) from error


def _taken_opaque(value: Any) -> Any:
    raise NoPlainError(f"nobody can make a {type(value).__qualname__} go on")


KINDS = (
    Kind("plain", is_plain, _seen_plain, taken_plain, put_plain),
    Kind(
        "torch.Generator",
        lambda value: isinstance(value, torch.Generator),
        lambda value: value.get_state(),
        lambda value: value.get_state(),
        _put_torch,
    ),
    Kind(
        "numpy.random.Generator",
        lambda value: isinstance(value, np.random.Generator),
        lambda value: _as_text(value.bit_generator.state),
        lambda value: _as_text(value.bit_generator.state),
        _put_numpy,
    ),
    Kind(
        "numpy.random.RandomState",
        lambda value: isinstance(value, np.random.RandomState),
        lambda value: _as_text(value.get_state(legacy=False)),
        lambda value: _as_text(value.get_state(legacy=False)),
        _put_legacy,
    ),
    Kind(
        "random.Random",
        lambda value: isinstance(value, random.Random),
        lambda value: _as_text(value.getstate()),
        lambda value: _as_text(value.getstate()),
        _put_python,
    ),
    Kind(
        "TensorDataset",
        lambda value: type(value) is TensorDataset,
        lambda value: list(value.tensors),
        lambda value: [one.detach().cpu().clone() for one in value.tensors],
        _put_dataset,
    ),
    Kind("state", _has_state, _seen_state, _taken_state, _put_state),
    Kind(
        "iterator",
        lambda value: frames.reached(value) is not None,
        lambda value: [*(frames.reached(value) or ())],
        lambda value: [*(frames.reached(value) or ())],
        _put_iterator,
    ),
    Kind("opaque", is_opaque, _seen_opaque, _taken_opaque, lambda own, new: own),
)
GENERATORS = frozenset(
    ["torch.Generator", "numpy.random.Generator", "numpy.random.RandomState", "random.Random"]
)
"""Names of the kinds that are generators of random numbers."""
BY_NAME = {kind.name: kind for kind in KINDS}


def kind_of(value: Any) -> Kind | None:
    """The kind of a value; None: it is left alone."""
    return next((kind for kind in KINDS if kind.fits(value)), None)
