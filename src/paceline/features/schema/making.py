"""The JSON Schema of a job spec, made from the keys that the loader reads.

A scalar of a spec is read by the type that its key wants (``jobs/spec_values.py``): ``512MiB``,
``30s`` and ``yes`` are values. So each key gets the types that YAML makes of its spellings, with
the loader's own patterns and ranges. The schema knows single values only: what the loader compares
(``staleness`` without mode ssp) or looks for on this machine (the script) is not in it.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.inspect import Metadata, StrType, Type, UnionType, type_info

from paceline.jobs.field_docs import field_docs
from paceline.jobs.flags import SHORT
from paceline.jobs.spec_values import (
    DURATION,
    FREE_SECTIONS,
    LEAVES,
    SIZE,
    SpecField,
    parse_cores,
    parse_duration_s,
    parse_size_bytes,
    parse_trace,
    show,
)
from paceline.wire.spec import JobSpec

DRAFT = "http://json-schema.org/draft-07/schema#"
"""The newest version of JSON Schema that editors of YAML understand wholly."""
WORD = {"type": ["string", "number", "boolean"]}
"""A value that is read as text: YAML takes ``1`` for a number and ``on`` for true or false."""
_NUMBER = r"\+?(\d+\.?\d*|\.\d+)"
_CORES = rf"^\s*{_NUMBER}\s*(,\s*{_NUMBER}\s*)*$"
_GROUPED = r"^\+?[1-9][0-9]*(_[0-9]{1,3})+$"
"""An integer with underscores, as ``1_000_000``, which is text in YAML 1.2."""

_CHOSEN = frozenset({"strategy", "name", "cwd"})
"""Keys whose default the loader chooses: by the script, or by where it was called."""

Schema = dict[str, Any]


def json_schema() -> Schema:
    """Make the schema of a YAML file with a job spec."""
    made = {"$schema": DRAFT, "title": "Job spec of paceline", **_section(JobSpec, "")}
    return made | {"required": ["script"]}


def _section(struct: type[msgspec.Struct], prefix: str) -> Schema:
    return {
        "description": _plain(inspect.getdoc(struct) or ""),
        "type": "object",
        "additionalProperties": False,
        "properties": dict(_properties(struct, prefix)),
    }


def _properties(struct: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, Schema]]:
    notes = field_docs(struct)
    for field in msgspec.structs.fields(struct):
        name, key = field.encode_name, f"{prefix}{field.encode_name}"
        about = {"description": _plain(notes[field.name])}
        if key in FREE_SECTIONS:
            yield name, about | {"type": "object", "additionalProperties": WORD}
        elif key in LEAVES:
            yield name, about | _leaf(LEAVES[key])
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield name, _maybe_short(key, _section(field.type, f"{key}.")) | about


def _maybe_short(key: str, section: Schema) -> Schema:
    """A section, or the value of the one key that its name may stand for: ``workers: 4``."""
    if key not in SHORT:
        return section
    return {"anyOf": [_leaf(LEAVES[SHORT[key]]), section]}


def _leaf(leaf: SpecField) -> Schema:
    ways = list(_ways(leaf)) + [{"type": "null"}] * leaf.optional
    made: Schema = ways[0] if len(ways) == 1 else {"anyOf": ways}
    if leaf.default is not msgspec.NODEFAULT and leaf.key not in _CHOSEN:
        made = made | {"default": _default(leaf)}
    return made


def _ways(leaf: SpecField) -> Iterator[Schema]:
    """Yield the ways to write a value of a key, in the types of YAML."""
    kind, own = _bare(type_info(leaf.type)), _range_of(leaf)
    if leaf.is_list:
        yield {"type": "array", "items": WORD}
    elif leaf.read is parse_size_bytes:
        yield own | {"type": "number"}
        yield {"type": "string", "pattern": f"^({SIZE.pattern})$", "examples": ["512MiB"]}
    elif leaf.read is parse_duration_s:
        yield own | {"type": "number"}
        yield {"type": "string", "pattern": f"^({DURATION.pattern})$", "examples": ["30s"]}
    elif leaf.read is parse_trace:
        yield {"type": "string", "examples": [leaf.example]}
    elif leaf.read is parse_cores:
        yield {"type": "number", "exclusiveMinimum": 0}
        yield {"type": "array", "minItems": 1, "items": {"type": "number", "exclusiveMinimum": 0}}
        yield {"type": "string", "pattern": _CORES}
    else:
        yield from _plain_ways(kind, own)


def _plain_ways(kind: Type, own: Schema) -> Iterator[Schema]:
    match kind:
        case msgspec.inspect.LiteralType():
            yield {"enum": list(kind.values)}
        case msgspec.inspect.BoolType():
            yield {"type": "boolean"}
            yield {"enum": ["yes", "no", "on", "off"]}
        case msgspec.inspect.IntType():
            yield own | {"type": "integer"}
            yield {"type": "string", "pattern": _GROUPED}
        case msgspec.inspect.FloatType():
            yield own | {"type": "number"}
        case StrType(pattern=str(pattern)):
            yield WORD | {"pattern": pattern.replace(r"\Z", "$")}
        case _:
            yield WORD


def _range_of(leaf: SpecField) -> Schema:
    """Take the bounds of a number from its type."""
    kind = _bare(type_info(leaf.type))
    names = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
    found = {to: getattr(kind, name, None) for name, to in names.items()}
    return {name: bound for name, bound in found.items() if bound is not None}


def _bare(kind: Type) -> Type:
    """The type of a value that is there, without what is noted of it."""
    if isinstance(kind, UnionType):
        kind = kind.types[0]
    return kind.type if isinstance(kind, Metadata) else kind


def _default(leaf: SpecField) -> object:
    """The default as one would write it."""
    if leaf.read is parse_size_bytes and leaf.default is not None:
        return show("workers.memory", leaf.default)  # the writer of sizes knows those of nodes
    return list(leaf.default) if isinstance(leaf.default, tuple) else leaf.default


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")
