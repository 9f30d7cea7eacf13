"""Single values of a job spec: from text to a checked value, and back to text.

The keys, types, ranges and units are those of ``paceline.wire.spec``, whose fields are walked here
once; there is no second list of them. Scalars are read from their text by the type wanted, not by
YAML's guesses, so ``encryption: off`` is a word, ``010`` is no octal number and script arguments
keep their spelling. Nothing is ever constructed from a YAML tag.
"""

import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec import inspect
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from paceline.base.backends import choices, installed
from paceline.wire.spec import JobSpec

_TAG = "tag:yaml.org,2002:"
SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?(|[Bb]|[KMGTkmgt][Ii]?[Bb])")
DURATION = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?(|ms|s|m|min|h)")
_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DAY_S = 86_400.0
_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,30}(?:_[0-9]{1,3}){0,10})")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_BOOLEAN = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_PATHS = ("script", "cwd", "checkpoint.dir")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""Pattern of how a URL begins, also one that is misspelt."""

FREE_SECTIONS = ("env", "solution_args", "resources_args", "log_to")
"""Sections whose keys are the user's, or those of a solution, or of packages."""
_LATER = {
    "mode": ("hybrid",),
    "backend": ("kubernetes", "k8s"),
}
"""Values that will come: refused, but not as if they were misspelt."""


class Wrong(Exception):
    """A value that cannot be read; the caller knows its place and adds it."""

    def __init__(self, got: str, expected: str = "") -> None:
        super().__init__(got)
        self.got, self.expected = got, expected


class SpecField(msgspec.Struct, frozen=True, kw_only=True):
    """One value a user may set: a field of ``JobSpec`` or of a section of it."""

    key: str
    """Dotted, as in ``workers.memory``."""
    type: object
    """The field's annotation, with its ranges."""
    default: object
    optional: bool = False
    """Whether it may be none."""
    read: Callable[[str], object]
    """Text to value; None: not of this kind."""
    is_list: bool = False
    expected: str
    example: str


def parse_size_bytes(text: str) -> int | None:
    """Bytes of ``512MiB``, ``2GB`` or a plain number; None when it is no size."""
    match = SIZE.fullmatch(text)
    if match is None:
        return None
    unit = match[2].upper()
    power = "BKMGT".index(unit[0]) if unit else 0
    base = 1024 if "I" in unit else 1000
    return round(float(match[1]) * math.pow(base, power))


def parse_duration_s(text: str) -> float | None:
    """Seconds of ``30s``, ``5m``, ``200ms`` or a plain number; None when it is no duration."""
    match = DURATION.fullmatch(text)
    return float(match[1]) * _SECONDS[match[2]] if match else None


def parse_ago_s(text: str) -> float | None:
    """Seconds of ``30s``, ``5m``, ``2h``, ``7d``; None when it is no duration with a unit."""
    number, days, rest = text.partition("d")
    if days and not rest and number.replace(".", "", 1).isdigit():
        return float(number) * _DAY_S
    return parse_duration_s(text) if text and text[-1].isalpha() else None


def parse_trace(text: str) -> tuple[tuple[float, float], ...] | None:
    """Steps of ``0s 5s, 10m 0s``: from when, how long; None when it is no trace in order."""
    found: list[tuple[float, float]] = []
    for part in text.split(","):
        times_s = [parse_duration_s(word) for word in part.split()]
        match times_s:
            case [float(from_s), float(wait_s)] if not found or found[-1][0] < from_s:
                found.append((from_s, wait_s))
            case _:
                return None
    return tuple(found)


def parse_cores(text: str) -> tuple[float, ...] | None:
    """Numbers of ``2, 0.5``; None when one is none."""
    values = [_number(word.strip()) for word in text.split(",")]
    return tuple(value for value in values if value is not None) if None not in values else None


def _integer(text: str) -> int | None:
    return int(text) if _INTEGER.fullmatch(text) else None


def _number(text: str) -> float | None:
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None


def _boolean(text: str) -> bool | None:
    return _BOOLEAN.get(text.lower())


_READERS: dict[type[inspect.Type], tuple[Callable[[str], object], str]] = {
    inspect.IntType: (_integer, "an integer"),
    inspect.FloatType: (_number, "a number"),
    inspect.BoolType: (_boolean, "true or false"),
    inspect.VarTupleType: (str, "a list of words"),
}


def _reader(name: str, kind: inspect.Type) -> tuple[Callable[[str], object], str]:
    """Find how the text of a field is read, and in words what is expected of it."""
    if name.endswith("_bytes"):
        return parse_size_bytes, "a size like 512MiB"
    if name.endswith("_trace"):
        return parse_trace, "pairs of durations in order, like 0s 5s, 10m 0s"
    if name == "cpu":
        return parse_cores, "a number above 0, or one for each node in turn"
    if name.endswith("_s"):
        return parse_duration_s, f"a duration like 30s or 5m{_bounds(kind)}"
    if isinstance(kind, inspect.LiteralType):
        return str, " or ".join(map(str, kind.values))
    read, words = _READERS.get(type(kind), (str, "text"))
    return read, words + _bounds(kind)


def _bounds(kind: inspect.Type) -> str:
    """Say the range of a number; upper bounds that only guard against overflow stay unsaid."""
    if not isinstance(kind, inspect.IntType | inspect.FloatType):
        return ""
    most = kind.le if kind.le is not None and kind.le <= 1_000_000 else None
    if kind.gt is not None:
        return f" above {kind.gt}" + (f" and at most {most}" if most is not None else "")
    return f" from {kind.ge} to {most}" if most is not None else f" of at least {kind.ge}"


def _leaf(key: str, field: msgspec.structs.FieldInfo) -> SpecField:
    info, notes = inspect.type_info(field.type), {}
    optional = isinstance(info, inspect.UnionType)  # value or None
    if isinstance(info, inspect.UnionType):
        info = info.types[0]
    if isinstance(info, inspect.Metadata):
        notes, info = info.extra_json_schema or {}, info.type
    examples = notes.get("examples")
    read, expected = _reader(field.name, info)
    return SpecField(
        key=key,
        type=field.type,
        default=field.default,
        optional=optional,
        read=read,
        is_list=isinstance(info, inspect.VarTupleType) and read is str,
        expected=str(notes.get("description", expected)),
        example=show(key, examples[0] if isinstance(examples, list) else field.default),
    )


def _leaves(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[SpecField]:
    for field in msgspec.structs.fields(struct):
        key = prefix + field.encode_name
        if key in {"sources", "surroundings", *FREE_SECTIONS}:
            continue
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _leaves(field.type, f"{key}.")
        else:
            yield _leaf(key, field)


def find_leaf(key: str) -> SpecField | None:
    """Look up a dotted key; every name in a free section is one."""
    if key.partition(".")[0] in FREE_SECTIONS and "." in key:
        return SpecField(key=key, type=str, default=None, read=str, expected="text", example='"1"')
    return LEAVES.get(key)


def show(key: str, value: object) -> str:
    """Write a value as one would in the YAML file, with the unit that ``key`` has."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and key.endswith("memory"):
        power = next(p for p in (3, 2, 1, 0) if p == 0 or (value and value % 1024**p == 0))
        return f"{value // 1024**power}{('B', 'KiB', 'MiB', 'GiB')[power]}"
    if isinstance(value, float):
        return f"{value:g}s" if key.endswith("_s") else f"{value:g}"
    if isinstance(value, tuple | list) and key.endswith("_trace"):
        return ", ".join(f"{from_s:g}s {wait_s:g}s" for from_s, wait_s in value)
    if isinstance(value, tuple | list) and key.endswith(".cpu"):
        return ", ".join(f"{cores:g}" for cores in value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(value)}]"
    return str(value)


LEAVES = {leaf.key: leaf for leaf in _leaves(JobSpec)}
"""All keys but those of free sections, in the order of the spec."""


def describe(node: Node) -> str:
    """Say what was got, shortly."""
    match node:
        case MappingNode():
            return "a mapping"
        case SequenceNode():
            return "a list"
        case ScalarNode() if node.tag == f"{_TAG}null":
            return "nothing"
        case _:
            text = node.value if len(node.value) <= 60 else node.value[:57] + "..."
            return f"{text!r} in quotes" if _is_quoted(node) else repr(text)


def read_value(leaf: SpecField, node: Node, folder: Path) -> object:
    """Read ``node`` as the value of ``leaf``; paths are relative to ``folder``.

    Raises:
        Wrong: it is of another type or out of range.
    """
    if node.tag == f"{_TAG}null" and leaf.optional:
        return None
    if leaf.is_list:
        if not isinstance(node, SequenceNode):
            raise Wrong(describe(node))
        return tuple(_word(item) for item in node.value)
    if leaf.read is parse_cores and isinstance(node, SequenceNode):
        text = ", ".join(_word(item) for item in node.value)
    else:
        text = _word(node)
    _check_known(leaf.key, text)
    if leaf.key == "checkpoint.dir" and _URL.match(text):
        return text
    if leaf.key in _PATHS or (leaf.key.startswith("log_to.") and not _URL.match(text)):
        return _path(text, folder)
    is_quoted_number = _is_quoted(node) and leaf.read in {_integer, _number, _boolean, parse_cores}
    value = None if is_quoted_number else leaf.read(text)
    if value is None:
        raise Wrong(describe(node))
    try:
        return msgspec.convert(value, leaf.type)
    except msgspec.ValidationError:
        raise Wrong(describe(node)) from None


def _check_known(key: str, text: str) -> None:
    """Refuse a word that names nothing that is installed."""
    if key == "backend" and text in installed():
        return
    if text in _LATER.get(key, ()):
        raise Wrong(f"{text!r}, which comes in a later version of paceline")
    if key == "backend":
        raise Wrong(repr(text), choices())


def _is_quoted(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.style in {"'", '"'}


def _word(node: Node) -> str:
    """Take the text of a plain value; a foreign tag is refused, never followed."""
    tag = node.tag.removeprefix(_TAG)
    if not isinstance(node, ScalarNode) or tag == "null":
        raise Wrong(describe(node))
    if tag not in {"str", "int", "float", "bool", "timestamp", "value", "merge"}:
        raise Wrong(f"a value with the tag {tag}", "a plain value")
    if not _is_storable(node.value):
        raise Wrong(ascii(node.value), "valid Unicode without NUL")
    return str(node.value)


def _is_storable(text: str) -> bool:
    """Tell whether a file name, an argument and the job's JSON file can all hold ``text``."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _path(text: str, folder: Path) -> str:
    if "://" in text or not text:
        raise Wrong(repr(text), "a path on this machine")
    return os.path.abspath(folder / text)
