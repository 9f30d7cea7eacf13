"""The kinds of values that a script's variables have, and what can be done with each.

A kind is a row: how a value is copied so that it can be put back, how it travels to another worker,
and how an object of the script becomes what has arrived. What no row fits is left alone.
"""

import dataclasses
import json
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import islice
from types import NoneType
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
from paceline.runtime.variables.spelled import is_spelled, is_spelling, read_spelled, spell

ATOMS = frozenset([NoneType, bool, int, float, complex, str, bytes])
"""Types whose values never change."""
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
MOST_SEEN = 1 << 16
"""Elements of a container that are all compared."""
MOST_BYTES = 16 << 20
"""Of one variable, to be handed to another worker or kept in a cut."""
SAMPLE_BYTES = 1 << 14
"""So much of each tensor of an object with a state is looked at, to see whether it changed."""


class NoPlainError(TypeError):
    """A value is not made of plain data alone."""


class Kind(NamedTuple):
    """What can be done with values of one kind."""

    name: str
    fits: Callable[[Any], bool]
    """Whether a value is of this kind."""
    seen: Callable[[Any], Any]
    """What tells it from another, as plain data."""
    taken: Callable[[Any], Any]
    """It as data and tensors, for `paceline.runtime.state.tree`."""
    put: Callable[[Any, Any], Any]
    """Own value, what was taken -> the value from now on; the own one where it can be changed."""


# ---------------------------------------------------------------------------- plain data


def is_plain(value: Any) -> bool:
    """Whether a value is a container of plain data, or such data."""
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
            return spell(value)
        case int() | float() | str():  # of a class of its own
            return [type(value).__qualname__, _atom_of(value)]
        case _:
            raise NoPlainError(type(value).__name__)


def _atom_of(value: Any) -> Any:
    """A number or text without its class."""
    return next(kind for kind in (int, float, str) if isinstance(value, kind))(value)


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
        return spell(value)
    if isinstance(value, OrderedDict):  # whose order is not that of the dictionary within
        return [*OrderedDict.items(value)]
    if not isinstance(value, list | tuple | deque | dict | set) or _size(value) <= MOST_SEEN:
        return value
    if isinstance(value, dict | set):
        return len(value)
    parts = [*value]
    return [len(parts), parts[:16], parts[-16:]]


def _size(value: Any) -> int:
    """About how many elements a container has, with those of its own."""
    if isinstance(value, dict):
        value = dict_of(value).values(value)
    first = [*islice(value, 8)]
    inner = sum(len(one) for one in first if isinstance(one, CONTAINERS))
    return len(value) + inner * len(value) // max(1, len(first))


def _taken_plain(value: Any) -> Any:
    match value:
        case Tensor():
            return value.detach().cpu().clone()
        case _ if is_spelled(value):
            return spell(value)
        case _ if is_record(value) or (isinstance(value, tuple) and hasattr(value, "_fields")):
            return _taken_apart(value)
        case bool() | None | complex() | bytes():
            return value
        case int() | float() | str() if not isinstance(value, np.generic):
            return value if type(value) in ATOMS else _atom_of(value)
        case dict():
            return {key: _taken_plain(one) for key, one in dict_of(value).items(value)}
        case list() | tuple() | set():
            kind = next(kind for kind in (list, tuple, set) if isinstance(value, kind))
            return kind(_taken_plain(one) for one in value)
        case frozenset():
            return {_taken_plain(one) for one in value}
        case deque():
            return [_taken_plain(one) for one in value]
        case _:
            return value


_NAMED, _RECORD = "paceline:named", "paceline:record"


def _taken_apart(value: Any) -> list[Any]:
    """A named tuple, or an object of a dataclass, as the name of its class and its parts."""
    kind = type(value)
    if isinstance(value, tuple):
        return [_NAMED, kind.__module__, kind.__qualname__, *map(_taken_plain, value)]
    names = [one.name for one in dataclasses.fields(value) if hasattr(value, one.name)]
    fields = {name: _taken_plain(getattr(value, name)) for name in names}
    return [_RECORD, kind.__module__, kind.__qualname__, fields]


def _is_taken_apart(data: Any) -> bool:
    return (
        isinstance(data, list)
        and len(data) > _CLASS
        and isinstance(data[0], str)
        and data[0] in (_NAMED, _RECORD)
    )


_CLASS = 2
"""Place of the class's name."""


def _together(own: Any, data: list[Any]) -> Any:
    tag, module, name, *parts = data
    if tag == _RECORD:
        return _record(module, name, *parts)
    if isinstance(own, tuple):
        return put_plain(own, tuple(parts))
    return _named(module, name)(map(_fresh, parts))


def put_plain(own: Any, new: Any) -> Any:  # noqa: C901 - a case for each type
    """A value of ours as another worker has it: changed in place where it can be."""
    if is_spelling(new):
        return read_spelled(own, new)
    if _is_taken_apart(new):
        return _together(own, new)
    match new:
        case dict() if isinstance(own, dict):
            values = {key: put_plain(own.get(key), one) for key, one in new.items()}
            dict_of(own).clear(own)
            dict_of(own).update(own, values)
            return own
        case list() if isinstance(own, list | deque):
            parts = _in_turn(own, new)
            own.clear()
            own.extend(parts)
            return own
        case set() if isinstance(own, set):
            own.clear()
            own.update(new)
            return own
        case set() if isinstance(own, frozenset):
            return frozenset(new)
        case tuple() if isinstance(own, tuple):
            parts = _in_turn(own, new)
            return own._make(parts) if hasattr(own, "_make") else tuple(parts)
        case Tensor() if isinstance(own, Tensor):
            return _put_tensor(own, new)
        case np.ndarray() if isinstance(own, np.ndarray):
            if (own.shape, own.dtype) == (new.shape, new.dtype) and own.flags.writeable:
                own[...] = new
                return own
            return new
        case bool() | int() | float() | str() if isinstance(own, np.generic) or _is_own(own, new):
            return type(own)(new)
        case list() | dict() | tuple():
            return _fresh(new)
        case _:
            return new


def dict_of(value: dict[Any, Any]) -> type[dict[Any, Any]]:
    """Return the class whose methods fill a dictionary: a Counter's own would add."""
    return OrderedDict if isinstance(value, OrderedDict) else dict


def _is_own(own: Any, new: Any) -> bool:
    """Whether ours is of a class of its own among numbers or texts."""
    return type(own) not in ATOMS and isinstance(own, type(new)) and type(new) is not bool


def _in_turn(own: Any, new: Any) -> list[Any]:
    olds = [*own][: len(new)] + [None] * max(0, len(new) - len(own))
    return [put_plain(old, one) for old, one in zip(olds, new, strict=True)]


def _fresh(new: Any) -> Any:
    """What arrived as it was, where nothing of ours is in its place."""
    if is_spelling(new):
        return read_spelled(None, new)
    if _is_taken_apart(new):
        return _together(None, new)
    match new:
        case dict():
            return {key: _fresh(one) for key, one in new.items()}
        case list() | tuple():
            return type(new)(map(_fresh, new))
        case _:
            return new


def _named(module: str, name: str) -> Callable[[Any], tuple[Any, ...]]:
    """What makes a named tuple of its parts; of a class that is not there, a tuple."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not _is_named(found):  # one that a class or function has for itself
        same = (one for one in tuple.__subclasses__() if one.__module__ == module)
        found = next((one for one in same if one.__qualname__ == name and _is_named(one)), None)
    return tuple if found is None else found._make


def is_record(value: Any) -> bool:
    """Whether a value is of a dataclass of the script's, as the transitions of a replay buffer."""
    kind = type(value)
    return dataclasses.is_dataclass(kind) and frames.is_scripts_module(kind.__module__)


def _record(module: str, name: str, fields: Mapping[str, Any]) -> Any:
    """Make an object of a dataclass of the script's, without running any of its code.

    Raises:
        ValueError: there is no such class.
    """
    kind: Any = sys.modules.get(module)
    for part in name.split("."):
        kind = getattr(kind, part, None)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise ValueError(f"there is no dataclass {module}.{name}")
    made = object.__new__(kind)
    for field, value in fields.items():
        object.__setattr__(made, field, _fresh(value))
    return made


def _is_named(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_make")


def _put_tensor(own: Tensor, new: Tensor) -> Tensor:
    if (own.shape, own.dtype) == (new.shape, new.dtype) and own.grad_fn is None:
        with torch.no_grad():
            return own.copy_(new)
    return new.to(own.device)


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
    Kind("plain", is_plain, _seen_plain, _taken_plain, put_plain),
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
