"""The curves of a job: what its script has logged, step by step, as the file ``curves.jsonl``.

A line has what was logged for one step: the mean over the workers, by name. Steps that come again,
since the job went back to a cut, do so in a newer attempt, whose lines take the place of those of
older attempts from its first step on. So each curve has each step once.
"""

import contextlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from paceline.base.disk import is_refusal
from paceline.jobs.history import Tail
from paceline.jobs.jsonl import LineFile
from paceline.wire.client import LastLogged
from paceline.wire.messages.base import Attempt

MAX_BYTES = 4 << 20
"""Bytes of a file beyond which it is thinned out to half of that."""
LEAST_POINTS = 256
"""Number of points up to which a curve stays as it is."""
NEWEST_S = 60.0
"""Lines of so many seconds may not have reached other places when a master dies."""

_encode = msgspec.json.Encoder().encode


class CurveLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Values that were logged for one step."""

    t: float
    """Unix time at which the first value came."""
    epoch_no: int = 0
    group: int = 0
    step: int
    samples: int
    """Samples in the model with that step."""
    between: bool = False
    """Whether they were logged between loops: the step was in the model."""
    values: dict[str, float | str]
    """``nan``, ``inf`` and ``-inf`` as text, for which JSON has no number."""

    @property
    def attempt(self) -> Attempt:
        """The attempt at the step."""
        return Attempt(self.epoch_no, self.group)


class CurvePoint(NamedTuple):
    """One point of one curve."""

    step: int
    samples: int
    t: float
    value: float


def as_json(value: float) -> float | str:
    """Return the number, or its name if JSON has no such number."""
    return value if math.isfinite(value) else str(value)


class CurveOrder:
    """The order of points: which follow the present ones, and which replace some of them."""

    def __init__(self) -> None:
        self.attempt = Attempt()
        self._from = 0
        """The first step that the newest attempt does."""
        self._last: dict[str, int] = {}

    def is_void(self, attempt: Attempt, step: int) -> bool:
        """Tell whether a newer attempt does this step."""
        return attempt < self.attempt and step >= self._from

    def begins(self, line: CurveLine) -> int | None:
        """Take in whose turn a line is; the step from which older points are void, if any are."""
        if line.attempt <= self.attempt:
            return None
        self.attempt, self._from = line.attempt, line.step + line.between
        self._last = {name: min(step, self._from - 1) for name, step in self._last.items()}
        return self._from

    def takes(self, name: str, line: CurveLine) -> bool:
        """Tell whether a value belongs to the curve; it is its last one then."""
        if self.is_void(line.attempt, line.step):
            return False
        if line.step <= self._last.get(name, -1):
            return False
        self._last[name] = line.step
        return True


class Curves:
    """All curves of a job, as far as its lines are read."""

    def __init__(self) -> None:
        self.points: dict[str, list[CurvePoint]] = {}
        """Points of each curve by name, in the order in which names came."""
        self.order = CurveOrder()

    def add(self, line: CurveLine) -> None:
        """Add a line that follows those before."""
        void_from = self.order.begins(line)
        if void_from is not None:
            for points in self.points.values():
                while points and points[-1].step >= void_from:
                    points.pop()
        for name, value in line.values.items():
            if self.order.takes(name, line):
                point = CurvePoint(line.step, line.samples, line.t, float(value))
                self.points.setdefault(name, []).append(point)


def decode_curves(lines: Iterable[bytes], curves: Curves) -> None:
    """Add the lines of a file, but for those that are torn."""
    for text in lines:
        with contextlib.suppress(msgspec.DecodeError, ValueError):
            curves.add(msgspec.json.decode(text, type=CurveLine))


def read_curves(path: Path) -> Curves:
    """Read what a job has logged so far."""
    curves = Curves()
    decode_curves(Tail(path).lines(), curves)
    return curves


def last_of(name: str, point: CurvePoint) -> LastLogged:
    """The newest value of a curve, as people and programs see it."""
    return LastLogged(name, as_json(point.value), point.step)


def last_logged(path: Path) -> tuple[LastLogged, ...]:
    """Read the newest value of each name that a job has logged."""
    points = read_curves(path).points
    return tuple(last_of(name, found[-1]) for name, found in points.items() if found)


class CurveFile:
    """The file as the master writes it: bounded, and each curve as dense in all of its parts."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, LineFile(path)
        curves = read_curves(path)
        self.order = curves.order
        self.newest = _newest(curves)
        """The newest lines that were there at the beginning."""
        self.names = set(curves.points)
        self.last = {name: points[-1] for name, points in curves.points.items() if points}
        """The newest point of each curve, in the file or left out of it."""
        #: Fewest steps between two points, the last point in the file, and those that were
        # left out for it, by name.
        self._gaps: dict[str, int] = {}
        self._kept = {name: point.step for name, point in self.last.items()}
        self._left_out: dict[str, CurveLine] = {}

    def add(self, line: CurveLine) -> CurveLine | None:
        """Keep a line for the next `flush`; return what of it belongs to the curves."""
        void_from = self.order.begins(line)
        if void_from is not None:
            self._kept = {name: min(step, void_from - 1) for name, step in self._kept.items()}
            self._left_out.clear()
            self.last = {name: one for name, one in self.last.items() if one.step < void_from}
        taken = {name: value for name, value in line.values.items() if self.order.takes(name, line)}
        if not taken:
            return None
        for name, value in taken.items():
            self.last[name] = CurvePoint(line.step, line.samples, line.t, float(value))
        self.names |= set(taken)
        line = msgspec.structs.replace(line, values=taken)
        due = {name: value for name, value in taken.items() if self._is_due(name, line)}
        if due or void_from is not None:  # what is void is so by a line of the newer attempt
            self._file.add(msgspec.structs.replace(line, values=due))
        return line

    def _is_due(self, name: str, line: CurveLine) -> bool:
        if name in self._kept and line.step < self._kept[name] + self._gaps.get(name, 0):
            self._left_out[name] = line
            return False
        self._kept[name] = line.step
        self._left_out.pop(name, None)
        return True

    def flush(self) -> None:
        """Write what was added, and thin the file out if it has grown large."""
        self._file.flush()
        if self._file.num_bytes > MAX_BYTES:
            # Without room for it the next try comes when it has grown by half.
            self._file.num_bytes = 0 if self._thin() else MAX_BYTES // 2

    def close(self) -> None:
        """Write the end of each curve, if it was left out."""
        for name, line in self._left_out.items():
            self._file.add(msgspec.structs.replace(line, values={name: line.values[name]}))
        self._left_out.clear()
        self._file.flush()

    def _thin(self) -> bool:
        """Thin the file out to half as much; False: the disk has no room for the new one."""
        points = {name: found for name, found in read_curves(self._path).points.items() if found}
        gaps = dict(self._gaps)
        while True:
            text = self._text(points)
            long = {name: found for name, found in points.items() if len(found) > LEAST_POINTS}
            if len(text) <= MAX_BYTES // 2 or not long:
                break
            for name, found in long.items():
                span = found[-1].step - found[0].step
                gap = max(1, -(-2 * span // len(found)))
                gaps[name], points[name] = gap, _spaced(found, gap)
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(text)
        except OSError as error:
            if not is_refusal(error):
                raise
            fresh.unlink(missing_ok=True)
            return False
        fresh.replace(self._path)
        self._gaps = gaps
        return True

    def _text(self, points: Mapping[str, list[CurvePoint]]) -> bytes:
        """Make the lines of these curves, all of the newest attempt."""
        return b"".join(_encode(line) + b"\n" for line in _lines_of(points, self.order.attempt))


def _newest(curves: Curves) -> list[CurveLine]:
    last_s = max((points[-1].t for points in curves.points.values() if points), default=0.0)
    newest = {
        name: [point for point in points if point.t > last_s - NEWEST_S]
        for name, points in curves.points.items()
    }
    return _lines_of(newest, curves.order.attempt)


def _lines_of(points: Mapping[str, list[CurvePoint]], attempt: Attempt) -> list[CurveLine]:
    steps: dict[tuple[int, int, float], dict[str, float | str]] = {}
    for name, found in points.items():
        for point in found:
            steps.setdefault(point[:3], {})[name] = as_json(point.value)
    return [
        CurveLine(
            t=t,
            epoch_no=attempt.epoch_no,
            group=attempt.group,
            step=step,
            samples=samples,
            values=values,
        )
        for (step, samples, t), values in sorted(steps.items())
    ]


def _spaced(points: list[CurvePoint], gap: int) -> list[CurvePoint]:
    """The first point, and those that are so many steps after the one before."""
    found = points[:1]
    for point in points:
        if point.step >= found[-1].step + gap:
            found.append(point)
    return found
