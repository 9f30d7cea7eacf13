"""Values that are spelled out: members of an ``Enum``, decimals, dates, ranges, dtypes, and such.

Each travels as a list whose first element says what it is. Nothing is unpickled: a member is looked
up in its class by name, which a module that is loaded holds; anything else is read from its text.
"""

import array
import datetime
import functools
import operator
import sys
from collections.abc import Callable
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import torch

MEMBER, TEXT, BYTES, NUMBERS = (
    "paceline:enum",
    "paceline:text",
    "paceline:bytearray",
    "paceline:array",
)


class NoPlainError(TypeError):
    """A value is not made of plain data alone."""


class Spelling(NamedTuple):
    """Way to write and to read values of one type."""

    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _seconds(value: datetime.timedelta) -> str:
    return f"{value.days} {value.seconds} {value.microseconds}"


def _zone(value: datetime.timezone) -> str:
    offset, name = value.utcoffset(None), value.tzname(None)
    is_default = name == datetime.timezone(offset).tzname(None)
    return _seconds(offset) + ("" if is_default else f" {name}")


def _zone_of(text: str) -> datetime.timezone:
    days, seconds, fraction, *name = text.split(" ", 3)
    offset = datetime.timedelta(int(days), int(seconds), int(fraction))
    return datetime.timezone(offset, *name)


def _moment(value: Any) -> str:
    zone = value.tzinfo
    if value.fold or not isinstance(zone, datetime.timezone | None):
        raise NoPlainError(f"a {type(value).__name__} of the zone {zone}, fold={value.fold}")
    text = str(value.replace(tzinfo=None).isoformat())
    return text if zone is None else f"{text}|{_zone(zone)}"


def _moment_of(kind: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        text, found, zone = text.partition("|")
        value = kind.fromisoformat(text)
        return value.replace(tzinfo=_zone_of(zone)) if found else value

    return read


def _of_torch(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        found = getattr(torch, text.removeprefix("torch."), None)
        if isinstance(found, kind):
            return found
        raise ValueError(f"torch has no {text}")

    return read


def _dtype(value: Any) -> str:
    if value.names is not None or value.hasobject or value.subdtype is not None:
        raise NoPlainError("a dtype of several fields")
    return str(value.str)


def _range_of(text: str) -> range:
    return range(*map(int, text.split()))


_PATH, _PURE = type(Path()), type(PurePath())
_SPELLINGS: dict[type, Spelling] = {
    int: Spelling(str, int),
    range: Spelling(lambda one: f"{one.start} {one.stop} {one.step}", _range_of),
    _PURE: Spelling(str, PurePath),
    torch.dtype: Spelling(str, _of_torch(torch.dtype)),
    torch.layout: Spelling(str, _of_torch(torch.layout)),
    torch.device: Spelling(str, torch.device),
    np.dtype: Spelling(_dtype, np.dtype),
    datetime.timezone: Spelling(_zone, _zone_of),
    Decimal: Spelling(str, Decimal),
    Fraction: Spelling(str, Fraction),
    UUID: Spelling(str, UUID),
    _PATH: Spelling(str, Path),
    datetime.date: Spelling(datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: Spelling(_moment, _moment_of(datetime.time)),
    datetime.datetime: Spelling(_moment, _moment_of(datetime.datetime)),
    datetime.timedelta: Spelling(
        _seconds, lambda text: datetime.timedelta(*map(int, text.split()))
    ),
}


def _name_of(kind: type) -> str:
    return "dtype[]" if kind is np.dtype else kind.__name__  # torch's has that name, too


_BY_NAME = {_name_of(kind): spelling for kind, spelling in _SPELLINGS.items()}


def is_spelled(value: Any) -> bool:
    """Tell whether a value is of such a kind."""
    if type(value) is int:
        return not -(2**63) <= value < 2**63
    return type(value) in _SPELLINGS or isinstance(value, Enum | bytearray | array.array | np.dtype)


def spell(value: Any) -> list[Any]:
    """Return a value of such a kind as plain data.

    Raises:
        NoPlainError: there is more to it than a text says.
    """
    match value:
        case Flag():
            flags = type(value)
            names = "|".join(str(one.name) for one in value)
            if _flags(flags, names) != value:
                raise NoPlainError(f"a {flags.__qualname__} of other bits than its members have")
            return [MEMBER, flags.__module__, flags.__qualname__, names]
        case Enum():
            kind = type(value)
            return [MEMBER, kind.__module__, kind.__qualname__, value.name]
        case bytearray():
            return [BYTES, bytes(value)]
        case array.array():
            return [NUMBERS, value.typecode, value.tobytes()]
        case np.dtype():
            return [TEXT, "dtype[]", _dtype(value)]
        case _:
            kind = type(value)
            return [TEXT, _name_of(kind), _SPELLINGS[kind].write(value)]


def read_spelled(own: Any, spelled: list[Any]) -> Any:
    """Return the value that is spelled; our own one if it can be changed in place.

    Raises:
        ValueError: nothing here has this name or text.
    """
    match spelled:
        case [str(tag), str(module), str(name), str(member)] if tag == MEMBER:
            kind = type(own) if isinstance(own, Enum) else _class_of(module, name)
            if kind.__qualname__ == name and member in kind.__members__:
                return kind[member]
            if kind.__qualname__ == name and issubclass(kind, Flag):
                return _flags(kind, member)
        case [str(tag), str(name), str(text)] if tag == TEXT and name in _BY_NAME:
            return _BY_NAME[name].read(text)
        case [str(tag), bytes(data)] if tag == BYTES:
            return _filled(own, bytearray(data))
        case [str(tag), str(typecode), bytes(data)] if tag == NUMBERS:
            return _filled(own, array.array(typecode, data))
    raise ValueError(f"no value of this program is spelled {spelled!r:.80}")


def _flags(kind: type[Flag], names: str) -> Flag:
    """The members of these names in one; raises ValueError: one is not there."""
    members = kind.__members__
    if not all(one in members for one in filter(None, names.split("|"))):
        raise ValueError(f"{kind.__qualname__} has no {names}")
    parts = (members[one] for one in filter(None, names.split("|")))
    return functools.reduce(operator.or_, parts, kind(0))


def is_spelling(data: Any) -> bool:
    """Tell whether plain data is such a value, spelled out."""
    return (
        isinstance(data, list)
        and bool(data)
        and isinstance(data[0], str)
        and data[0] in (MEMBER, TEXT, BYTES, NUMBERS)
    )


def _filled(own: Any, new: Any) -> Any:
    if type(own) is not type(new) or getattr(own, "typecode", "") != getattr(new, "typecode", ""):
        return new
    own[:] = new
    return own


def found_in(module: str, name: str) -> Any:
    """Return what a module that is loaded holds by a name, or None; nothing is computed for it."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        if not isinstance(found, type | ModuleType):
            return None
        get = type.__getattribute__ if isinstance(found, type) else object.__getattribute__
        found = get(found, "__dict__").get(part)
    return found


def _class_of(module: str, name: str) -> type[Enum]:
    found = found_in(module, name)
    if isinstance(found, type) and issubclass(found, Enum):
        return found
    raise ValueError(f"there is no Enum {module}.{name}")
