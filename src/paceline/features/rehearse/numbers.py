"""Comparison of values, texts or sets of weights of two runs, but for rounding. Pure.

A `Tolerance` says how much rounding may change. Numbers in texts may differ in their last digit as
well. Times, dates and speeds in texts are ignored, and so are addresses of objects in memory.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from paceline.features.rehearse.plan import Leaves, PlainLeaf

_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b", re.IGNORECASE)
_TIMES = re.compile(
    r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)?"
    r"|\d{1,3}:\d\d(?::\d\d)?(?:\.\d+)?"
    r"|\d[\d.,]*(?:e[-+]?\d+)?\s*(?:[a-z]+/s(?:ec)?|ms|us|s|sec|secs|seconds|min|minutes|hours|h)\b"
    r"|\b(?:time|took|elapsed|eta|duration|seconds|speed|sps|fps|rate/s|\w+_per_s|\w+_s)\b['\"]?\s*[:=]?\s*"
    r"\d[\d.,]*(?:e[-+]?\d+)?",
    re.IGNORECASE,
)
FLOOR = 1e-9
"""Size below which numbers differ by rounding alone."""


class Tolerance(Struct, frozen=True, kw_only=True):
    """Tolerance for what rounding may change."""

    values: float
    """Tolerance of a number, relative."""
    weights: float
    """Tolerance of weights, relative to how far training moved them."""


class SpokenText(NamedTuple):
    """A text as its words, and its numbers with the worth of their last digits."""

    words: str
    numbers: tuple[tuple[float, float], ...]


def said(text: str) -> SpokenText:
    """Divide a text into words and numbers; times become one word."""
    plain = _TIMES.sub("<time>", _ADDRESS.sub("<address>", text.strip()))
    numbers = tuple((float(found), _last_digit(found)) for found in _NUMBER.findall(plain))
    return SpokenText(_NUMBER.sub("#", plain), numbers)


def _last_digit(number: str) -> float:
    mantissa, _, exponent = number.lower().partition("e")
    _, point, decimals = mantissa.partition(".")
    if not point:
        return 0.0
    return float(10.0 ** (int(exponent or 0) - len(decimals)))


def alike(one: SpokenText, other: SpokenText, tolerance: Tolerance) -> bool:
    """Tell whether two texts say the same."""
    pairs = zip(one.numbers, other.numbers, strict=False)
    return one.words == other.words and all(
        close(a, b, tolerance.values, room=1.001 * max(unit_a, unit_b))
        for (a, unit_a), (b, unit_b) in pairs
    )


def close(one: float, other: float, relative: float, *, room: float = 0.0) -> bool:
    """Tell whether two numbers are equal but for rounding."""
    if math.isnan(one) or math.isnan(other) or math.isinf(one) or math.isinf(other):
        return repr(one) == repr(other)
    return abs(one - other) <= max(relative * max(abs(one), abs(other)), room, FLOOR * relative)


def same(one: PlainLeaf, other: PlainLeaf, tolerance: Tolerance) -> bool:
    """Tell whether two leaves are equal but for rounding."""
    if one.number is not None and other.number is not None:
        if one.whole and other.whole:
            return one.number == other.number
        return close(one.number, other.number, tolerance.values)
    if one.text != other.text or len(one.some) != len(other.some):
        return False
    largest = max(map(abs, (*one.some, *other.some)), default=0.0)
    room = tolerance.values * largest
    return all(close(a, b, tolerance.values, room=room) for a, b in zip(one.some, other.some))


def differing(one: Leaves, other: Leaves, tolerance: Tolerance) -> list[str]:
    """Paths that both have, and under which they differ."""
    return [path for path in one if path in other and not same(one[path], other[path], tolerance)]


def shown(leaf: PlainLeaf) -> str:
    """A leaf, for people."""
    if leaf.number is None:
        if leaf.some and leaf.text.count("#") == len(leaf.some):  # a line, without its numbers
            numbers = iter(leaf.some)
            return re.sub("#", lambda _: f"{next(numbers):.6g}", leaf.text)
        return f"{leaf.text} of norm {leaf.some[-1]:.6g}" if leaf.some else leaf.text
    return f"{leaf.number:.0f}" if leaf.whole else f"{leaf.number:.6g}"


def moved_apart(
    one: Mapping[str, Any], other: Mapping[str, Any], began: Mapping[str, Any]
) -> dict[str, float]:
    """Return how far apart weights of two runs are, relative to how far training moved them.

    A name of one run alone, or of another shape, is infinitely far.
    """
    found = {}
    for name in sorted({*one, *other}):
        a, b = one.get(name), other.get(name)
        if a is None or b is None or a.shape != b.shape:
            found[name] = math.inf
            continue
        a, b = (np.asarray(value, np.float64) for value in (a, b))
        start = began.get(name)
        moved = a - np.asarray(start, np.float64) if start is not None else a
        size = max(float(np.linalg.norm(moved)), 1e-7 * float(np.linalg.norm(a)), 1e-30)
        apart = float(np.linalg.norm(a - b))
        found[name] = apart / size if math.isfinite(apart) else math.inf
    return found
