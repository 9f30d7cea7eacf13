"""Values that are spelled out: members of an ``Enum``, decimals, dates, arrays, large integers.

Each travels as a list whose first element says what it is. Nothing is unpickled: a member is looked
up in its class by name, anything else is read from its text.
"""

import array
import datetime
import sys
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

MEMBER, TEXT, BYTES, NUMBERS = (
    "paceline:enum",
    "paceline:text",
    "paceline:bytearray",
    "paceline:array",
)


class Spelling(NamedTuple):
    """How values of one type are written and read."""

    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _seconds(value: datetime.timedelta) -> str:
    return f"{value.days} {value.seconds} {value.microseconds}"


_PATH = type(Path())
_SPELLINGS: dict[type, Spelling] = {
    int: Spelling(str, int),
    Decimal: Spelling(str, Decimal),
    Fraction: Spelling(str, Fraction),
    UUID: Spelling(str, UUID),
    _PATH: Spelling(str, Path),
    datetime.date: Spelling(datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: Spelling(datetime.time.isoformat, datetime.time.fromisoformat),
    datetime.datetime: Spelling(datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.timedelta: Spelling(
        _seconds, lambda text: datetime.timedelta(*map(int, text.split()))
    ),
}
_BY_NAME = {kind.__name__: spelling for kind, spelling in _SPELLINGS.items()}


def is_spelled(value: Any) -> bool:
    """Whether a value is of such a kind."""
    if type(value) is int:
        return not -(2**63) <= value < 2**63
    return type(value) in _SPELLINGS or isinstance(value, Enum | bytearray | array.array)


def spell(value: Any) -> list[Any]:
    """Return a value of such a kind as plain data."""
    match value:
        case Enum():
            kind = type(value)
            return [MEMBER, kind.__module__, kind.__qualname__, value.name]
        case bytearray():
            return [BYTES, bytes(value)]
        case array.array():
            return [NUMBERS, value.typecode, value.tobytes()]
        case _:
            kind = type(value)
            return [TEXT, kind.__name__, _SPELLINGS[kind].write(value)]


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
        case [str(tag), str(name), str(text)] if tag == TEXT and name in _BY_NAME:
            return _BY_NAME[name].read(text)
        case [str(tag), bytes(data)] if tag == BYTES:
            return _filled(own, bytearray(data))
        case [str(tag), str(typecode), bytes(data)] if tag == NUMBERS:
            return _filled(own, array.array(typecode, data))
    raise ValueError(f"no value of this program is spelled {spelled!r:.80}")


def is_spelling(data: Any) -> bool:
    """Whether plain data is such a value, spelled out."""
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


def _class_of(module: str, name: str) -> type[Enum]:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, Enum):
        return found
    raise ValueError(f"there is no Enum {module}.{name}")
