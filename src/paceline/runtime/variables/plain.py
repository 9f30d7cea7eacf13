"""Plain data as it travels to another worker or into a cut, and as it comes back.

Of the containers, lists, tuples, sets and dictionaries travel as they are, with what they hold.
A value of another type travels as a list: a mark, the name of the type, its settings (the largest
length of a deque, say), and its parts. So it comes back with its type, whether or not the worker
has had a value there. Nothing is unpickled: a class is looked up
by its name among what modules hold already, and an object of it is made without any of its code.
Keys of dictionaries and elements of sets are put there as anywhere: by ``__hash__`` and ``__eq__``
of their classes, which are those that the script has put there itself.
"""

import dataclasses
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from paceline.runtime.variables import frames
from paceline.runtime.variables.spelled import (
    NoPlainError,
    found_in,
    is_spelled,
    is_spelling,
    read_spelled,
    spell,
)

ATOMS = frozenset([NoneType, bool, int, float, complex, str, bytes])
"""Types whose values never change."""
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
NAMED, RECORD, SHAPED, NUMBER = (
    "paceline:named",
    "paceline:record",
    "paceline:shaped",
    "paceline:number",
)
OF_CLASS = "class"
"""ContainerForm of a value of a class of its own, which is one of numbers, texts or containers."""
_BASES = (dict, list, tuple, set, frozenset, deque, int, float, complex, str, bytes)


class ContainerForm(NamedTuple):
    """Rest of a type of containers beside its parts."""

    kind: type
    more: Callable[[Any], Any] = lambda value: None
    """Gives this rest, as data."""
    make: Callable[[Any, list[Any]], Any] = lambda more, parts: parts
    """Makes a value of this rest and the parts."""


def _factory(name: str) -> Any:
    if name not in _FACTORIES:
        raise ValueError("it is a defaultdict that has a function of the script's")
    return _FACTORIES[name]


_FACTORIES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (int, float, complex, bool, str, list, dict, set, tuple, Counter, OrderedDict)
} | {"deque": deque, "None": None}

_SHAPES = {
    one.kind.__name__: one
    for one in (
        ContainerForm(dict, make=lambda more, parts: dict(parts)),
        ContainerForm(OrderedDict, make=lambda more, parts: OrderedDict(parts)),
        ContainerForm(Counter, make=lambda more, parts: Counter(dict(parts))),
        ContainerForm(
            defaultdict,
            lambda value: getattr(value.default_factory, "__name__", "None"),
            lambda more, parts: defaultdict(_factory(more), parts),
        ),
        ContainerForm(list),
        ContainerForm(set, make=lambda more, parts: set(parts)),
        ContainerForm(frozenset, make=lambda more, parts: frozenset(parts)),
        ContainerForm(deque, lambda value: value.maxlen, lambda more, parts: deque(parts, more)),
        ContainerForm(torch.Size, make=lambda more, parts: torch.Size(parts)),
    )
}


def dict_of(value: dict[Any, Any]) -> type[dict[Any, Any]]:
    """Return the class whose methods fill a dictionary: a Counter's own would add."""
    return OrderedDict if isinstance(value, OrderedDict) else dict


def atom_of(value: Any) -> Any:
    """A number or text without its class."""
    return next(kind for kind in (int, float, str) if isinstance(value, kind))(value)


# ---------------------------------------------------------------------------- taken


def taken_plain(value: Any) -> Any:  # noqa: C901 - a case for each type
    """Plain data, as data and tensors that say of which types it is.

    Raises:
        NoPlainError: it is of a type that nothing can be made of again.
    """
    kind = type(value)
    if is_spelled(value):
        return spell(value)
    if kind in ATOMS:
        return value
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, np.generic):
        return _taken_number(value)
    if is_record(value) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return _taken_apart(value)
    if kind is tuple:
        return tuple(map(taken_plain, value))
    if kind is list and not _is_tagged(value):
        return [*map(taken_plain, value)]
    if kind is set and all(type(one) in ATOMS for one in value):
        return value.copy()
    if kind is dict and all(type(one) in ATOMS for one in value):
        return {key: taken_plain(one) for key, one in value.items()}
    shape = _SHAPES.get(kind.__name__)
    if shape is not None and shape.kind is kind:
        return [SHAPED, kind.__name__, shape.more(value), _parts_of(value)]
    base = next((one for one in _BASES if isinstance(value, one)), None)
    if base is None:
        return value  # an array, or what `take_apart` refuses by its type
    return [SHAPED, OF_CLASS, [kind.__module__, kind.__qualname__, _names(value)], _parts_of(value)]


def _parts_of(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = dict_of(value).items(value)
        return [[taken_plain(key), taken_plain(one)] for key, one in pairs]
    if not isinstance(value, CONTAINERS):
        return taken_plain(next(kind for kind in _BASES if isinstance(value, kind))(value))
    return [*map(taken_plain, value)]


def _names(value: Any) -> str:
    """Say what attributes a value of its own class has: nothing, some, or its own parts."""
    attributes = getattr(value, "__dict__", None)
    if isinstance(value, dict) and attributes is value:
        return "itself"
    return "some" if attributes else ""


def _taken_number(value: np.generic) -> list[Any]:
    if value.dtype.hasobject or value.dtype.names is not None:
        raise NoPlainError(f"a {type(value).__name__} of several fields")
    if isinstance(value, np.str_ | np.bytes_):
        return [NUMBER, value.dtype.kind, value.item()]
    return [NUMBER, value.dtype.str, value.tobytes()]


def _taken_apart(value: Any) -> list[Any]:
    """A named tuple, or an object of a dataclass, as the name of its class and its parts."""
    kind = type(value)
    if isinstance(value, tuple):
        return [NAMED, kind.__module__, kind.__qualname__, *map(taken_plain, value)]
    names = [one.name for one in dataclasses.fields(value) if hasattr(value, one.name)]
    fields = {name: taken_plain(getattr(value, name)) for name in names}
    return [RECORD, kind.__module__, kind.__qualname__, fields]


def is_record(value: Any) -> bool:
    """Tell whether a value is of a dataclass of the script's, as a replay buffer's transitions."""
    kind = type(value)
    return dataclasses.is_dataclass(kind) and frames.is_scripts_module(kind.__module__)


def _is_tagged(data: Any) -> bool:
    """Tell whether a list begins as one that says what it is."""
    return (
        isinstance(data, list)
        and bool(data)
        and isinstance(data[0], str)
        and data[0].startswith("paceline:")
    )


# ---------------------------------------------------------------------------- put


def put_plain(own: Any, new: Any) -> Any:  # noqa: C901 - a case for each type
    """A value of ours as another worker has it: changed in place where it can be.

    Raises:
        ValueError: this process has nothing of which it can be made.
    """
    if _is_tagged(new):
        return _put_tagged(own, new)
    match new:
        case dict() if isinstance(own, dict):
            values = {key: put_plain(own.get(key), one) for key, one in new.items()}
            return _fill(own, values)
        case list() if isinstance(own, list | deque):  # the latter: of an earlier release
            return _fill(own, _in_turn(own, new))
        case set() if isinstance(own, set):
            return _fill(own, new)
        case set() if isinstance(own, frozenset):  # of an earlier release
            return frozenset(new)
        case tuple() if isinstance(own, tuple):
            parts = _in_turn(own, new)
            is_named = _is_named(type(own), len(parts))
            return tuple.__new__(type(own) if is_named else tuple, parts)
        case Tensor() if isinstance(own, Tensor):
            return _put_tensor(own, new)
        case np.ndarray() if isinstance(own, np.ndarray):
            if (own.shape, own.dtype) == (new.shape, new.dtype) and own.flags.writeable:
                own[...] = new
                return own
            return new
        case bool() | int() | float() | str() if isinstance(own, np.generic) or _is_own(own, new):
            return type(own)(new)  # of an earlier release
        case dict():
            return {key: put_plain(None, one) for key, one in new.items()}
        case list() | tuple():
            return type(new)(put_plain(None, one) for one in new)
        case _:
            return new


def _put_tagged(own: Any, new: list[Any]) -> Any:
    if is_spelling(new):
        return read_spelled(own, new)
    match new:
        case [tag, str(module), str(name), *parts] if tag == NAMED:
            if isinstance(own, tuple):
                return put_plain(own, tuple(parts))
            made = [put_plain(None, one) for one in parts]
            return tuple.__new__(_named(module, name, len(made)), made)
        case [tag, str(module), str(name), dict(fields)] if tag == RECORD:
            return _record(module, name, fields)
        case [tag, "U" | "S", str() | bytes() as text] if tag == NUMBER:
            return np.str_(text) if isinstance(text, str) else np.bytes_(text)
        case [tag, str(dtype), bytes(data)] if tag == NUMBER:
            return np.frombuffer(data, dtype)[0]
        case [tag, str(name), more, parts] if tag == SHAPED:
            return _put_shaped(own, name, more, parts)
    raise ValueError(f"no value is written as {new!r:.80}")


def _put_shaped(own: Any, name: str, more: Any, parts: Any) -> Any:
    if name == OF_CLASS:
        kind, make = _class_of(*more[:2]), _maker(*more)
    elif name in _SHAPES:
        shape = _SHAPES[name]
        kind, make = shape.kind, lambda values: shape.make(more, values)
    else:
        raise ValueError(f"there is no type {name}")
    own = own if type(own) is kind else None
    values: Any
    if issubclass(kind, dict):
        keys = [put_plain(None, key) for key, _ in parts]
        olds = [own.get(key) if own is not None and _is_in(key, own) else None for key in keys]
        new = [put_plain(old, one) for old, (_, one) in zip(olds, parts, strict=True)]
        values = [*zip(keys, new, strict=True)]
    elif issubclass(kind, CONTAINERS):
        values = _in_turn(own if own is not None and not issubclass(kind, set) else (), parts)
    else:
        return make(put_plain(None, parts))
    is_other = kind is deque and own is not None and own.maxlen != more
    if own is None or is_other or not issubclass(kind, dict | list | set | deque):
        return make(values)
    return _fill(own, values)


def _is_in(key: Any, own: dict[Any, Any]) -> bool:
    return bool(dict_of(own).__contains__(own, key))


def _fill(own: Any, values: Any) -> Any:
    if isinstance(own, dict):
        dict_of(own).clear(own)
        dict_of(own).update(own, values)
    else:
        kind: Any = next(one for one in (list, set, deque) if isinstance(own, one))
        kind.clear(own)
        (kind.update if kind is set else kind.extend)(own, values)
    return own


def _in_turn(own: Iterable[Any], new: Any) -> list[Any]:
    olds = [*own][: len(new)]
    olds += [None] * (len(new) - len(olds))
    return [put_plain(old, one) for old, one in zip(olds, new, strict=True)]


def _is_own(own: Any, new: Any) -> bool:
    """Tell whether ours is of a class of its own among numbers or texts."""
    return type(own) not in ATOMS and isinstance(own, type(new)) and type(new) is not bool


def _put_tensor(own: Tensor, new: Tensor) -> Tensor:
    if (own.shape, own.dtype) == (new.shape, new.dtype) and own.grad_fn is None:
        with torch.no_grad():
            return own.copy_(new)
    return new.to(own.device)


# ---------------------------------------------------------------------------- classes


def _class_of(module: str, name: str) -> type:
    """A class among numbers, texts or containers, which may be one that a function has for itself.

    Raises:
        ValueError: there is none.
    """
    found = found_in(module, name)
    if not (isinstance(found, type) and issubclass(found, _BASES)):
        same = (one for base in _BASES for one in base.__subclasses__() if one.__module__ == module)
        found = next((one for one in same if one.__qualname__ == name), None)
    if isinstance(found, type):
        return found
    raise ValueError(f"there is no class {module}.{name} of numbers, texts or containers")


def _maker(module: str, name: str, names: str) -> Callable[[Any], Any]:
    kind = _class_of(module, name)
    base: Any = next(one for one in _BASES if issubclass(kind, one))

    def make(values: Any) -> Any:
        if names == "some":
            raise ValueError(f"it is a {name} that has attributes")
        if not issubclass(kind, dict | list | set | deque):
            return base.__new__(kind, values)
        made = base.__new__(kind)
        if names == "itself":
            object.__setattr__(made, "__dict__", made)
        return _fill(made, values)

    return make


def _named(module: str, name: str, size: int) -> type[tuple[Any, ...]]:
    """The class of named tuples of so many parts; of one that is not there, a tuple."""
    found = found_in(module, name)
    if not _is_named(found, size):  # one that a class or function has for itself
        same = (one for one in tuple.__subclasses__() if one.__module__ == module)
        named = (one for one in same if one.__qualname__ == name and _is_named(one, size))
        found = next(named, tuple)
    return cast(type[tuple[Any, ...]], found)


def _is_named(found: Any, size: int) -> bool:
    if not (isinstance(found, type) and issubclass(found, tuple)):
        return False
    held = (vars(one).get("_fields") for one in found.__mro__)
    fields = next((one for one in held if one is not None), None)
    return type(fields) is tuple and len(fields) == size


def _record(module: str, name: str, fields: Mapping[str, Any]) -> Any:
    """Make an object of a dataclass of the script's, without running any of its code.

    Raises:
        ValueError: there is no such class.
    """
    kind = found_in(module, name)
    is_there = isinstance(kind, type) and dataclasses.is_dataclass(kind)
    if not (is_there and frames.is_scripts_module(kind.__module__)):
        raise ValueError(f"there is no dataclass {module}.{name}")
    made = object.__new__(kind)
    for field, value in fields.items():
        object.__setattr__(made, field, put_plain(None, value))
    return made
