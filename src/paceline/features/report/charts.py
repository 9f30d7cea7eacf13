"""Charts of a job's page as plain data, which uPlot draws in the browser: pure.

However long the job, a line has at most `MOST_POINTS` points. They are taken at a stride that is a
power of two, so that new measurements leave nearly all of the drawn points as they are.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from paceline.features.report.size_curve import has_changed_quota, size_curve
from paceline.jobs.curves import CurvePoint
from paceline.jobs.facts import Facts, speeds
from paceline.jobs.history import MetricsPoint, NodePoint
from paceline.jobs.sections import Plot, Section

SMOOTH_S = 5.0
MOST_POINTS = 1200
"""Most points of one line; more than a wide screen has columns."""
MOST_NODES = 40
"""Most nodes whose lines can be told apart; of a larger job the first ones are drawn."""
GAP = 5.0
"""Points that are so many times as far apart as usual have a gap between them."""
GAP_S = 0.001
"""Seconds after a point at which a gap begins."""
BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, OLIVE, GREY = (
    "#3b82c4", "#d9822b", "#3a9d5d", "#b565b0", "#c0504d", "#2aa5a0", "#98904a", "#7f7f9f",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, OLIVE, GREY)
"""Colours of lines, which can be told apart on white and on black."""
BY_NAME = ("loss", "nll", "perplexity", "err", "acc", "auc")
"""Beginnings or parts of the names of curves that are drawn first, in this order."""
Line = list[tuple[float, float]]
"""Points of a line; a value that is no number is a gap."""


class Series(Struct, frozen=True, kw_only=True):
    """A line of a chart."""

    name: str
    colour: str
    width: float = 1.5
    steps: str = ""
    """``before``, ``after``: a value holds until its point, or from it on; empty: lines."""
    dash: tuple[int, ...] = ()
    faint: bool = False


class ChartMark(Struct, frozen=True, kw_only=True):
    """A moment on the time axis, with its number or letter."""

    at: float
    label: str
    colour: str
    dash: tuple[int, ...] = (3, 2)


class Band(Struct, frozen=True, kw_only=True):
    """A stretch of the x axis in which something was the case."""

    since: float
    until: float
    colour: str


class Dots(Struct, frozen=True, kw_only=True):
    """Moments of one kind, each a small shape near the upper or the lower edge."""

    name: str
    shape: str
    """``v``, ``^``, ``D``, ``s``, ``o`` or ``x``."""
    colour: str
    at: tuple[float, ...]
    low: bool = False
    """True: at the lower edge."""


class Chart(Struct, frozen=True, kw_only=True):
    """A drawing over time or over samples."""

    name: str
    """Name that no other chart of the page has."""
    title: str
    caption: str
    over: str = "time"
    """Unit of the x axis: ``time`` (seconds since the launch) or ``samples``."""
    unit: str
    """Name of what is drawn, with its unit."""
    series: tuple[Series, ...]
    log: bool = False
    zero: bool = False
    """True: the y axis begins at 0."""
    top: float | None = None
    """Values above it are cut off."""
    whole: bool = False
    """True: values are whole numbers."""
    joined: bool = False
    """True: a line goes straight on where it has no value."""
    small: bool = False
    """True: two of them have room beside each other."""
    until: float
    """End of the x axis."""
    marks: tuple[ChartMark, ...] = ()
    bands: tuple[Band, ...] = ()
    dots: tuple[Dots, ...] = ()
    columns: tuple[list[float | None], ...]
    """The x values, then the values of each line; None: a gap."""


def charts_of(facts: Facts, sections: Sequence[Section]) -> list[Chart]:
    """Make all charts of a job: what its script logged first, then how it ran."""
    found = [*curve_charts(facts)]
    marks = [mark for section in sections for mark in section.marks]
    drawn = _Drawn(facts, marks)
    if facts.points and facts.spec.traits.trains and any(map(_counts_samples, facts.points)):
        found += [drawn.throughput(), *drawn.sizes()]
        found += [drawn.batch_times()] if drawn.is_timed() else []
        found += [drawn.samples()]
    found += [drawn.of_section(one.plot) for one in sections if one.plot is not None]
    return found


# --------------------------------------------------------------------------- over samples


def curve_charts(facts: Facts) -> Iterator[Chart]:
    """Yield a small chart for each name that the script has logged."""
    found = {name: points for name, points in facts.curves.items() if points}
    end = max((points[-1].samples for points in found.values()), default=0)
    for number, name in enumerate(sorted(found, key=_rank)):
        points = found[name]
        line = broken(envelope(points, MOST_POINTS))
        odd = [float(one.samples) for one in points if not math.isfinite(one.value)]
        cross = Dots(name="no finite number", shape="x", colour=RED, low=True, at=_some(odd))
        yield Chart(
            name=f"curve-{name}",
            title=name,
            caption="",
            over="samples",
            unit=name,
            series=(Series(name=name, colour=COLOURS[number % len(COLOURS)]),),
            small=True,
            until=float(max(end, 1)),
            dots=(cross,) if odd else (),
            columns=_columns([line]),
        )


def _rank(name: str) -> tuple[int, int]:
    """Sort curves: those of which people ask first, training before validation."""
    low = name.lower()
    found = next((at for at, part in enumerate(BY_NAME) if part in low), len(BY_NAME))
    return found, "/" in low


def _some(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(values[:: 1 + len(values) // MOST_POINTS])


def envelope(points: Sequence[CurvePoint], most: int) -> list[CurvePoint]:
    """Take the lowest and the highest point of each stretch, so that no spike is lost.

    Args:
        points: of one curve.
        most: number of points that are returned at most.
    """
    sound = [point for point in points if math.isfinite(point.value)]
    stride = stride_of(2 * len(sound), most)
    if stride == 1:
        return sound
    found: list[CurvePoint] = []
    for first in range(0, len(sound), stride):
        part = sound[first : first + stride]
        ends = {min(part, key=_value), max(part, key=_value)}
        found += sorted(ends)
    return found


def _value(point: CurvePoint) -> float:
    return point.value


def stride_of(count: int, most: int) -> int:
    """Return the least power of two by which ``count`` points become at most ``most``."""
    return 1 << max(0, math.ceil(math.log2(count / most))) if count > most else 1


def broken(points: Sequence[CurvePoint]) -> Line:
    """Samples and value of each point, with one that is no number in each gap."""
    widths = [later.samples - sooner.samples for sooner, later in pairwise(points)]
    usual = statistics.median(widths) if widths else 0
    found: Line = []
    for point, width in zip(points, [*widths, 0], strict=False):
        found.append((point.samples, point.value))
        if width > GAP * usual > 0:
            found.append((point.samples + width / 2, math.nan))
    return found


# --------------------------------------------------------------------------- over time


class _Drawn:
    """The measurements of a job, thinned, and what is marked in all charts over time."""

    def __init__(self, facts: Facts, letters: Sequence[tuple[str, float]]) -> None:
        self._facts = facts
        whole = stretches(facts.points)
        stride = stride_of(len(facts.points), MOST_POINTS)
        self._parts = [thinned(part, stride) for part in whole]
        self._bands = tuple(
            Band(since=self._at(sooner[-1].t), until=self._at(later[0].t), colour=GREY)
            for sooner, later in pairwise(whole)
            if sooner and later
        )
        numbers = [
            (str(n), one.t, RED if one.went_wrong else BLUE)
            for n, one in enumerate(facts.incidents, start=1)
        ]
        dated = [*numbers, *((letter, t, GREY) for letter, t in letters)]
        self._marks = tuple(
            ChartMark(at=self._at(t), label=label, colour=colour) for label, t, colour in dated
        )
        self._letters = self._marks[len(numbers) :]
        self._until = max(1.0, facts.ended_s - facts.started_s)
        self._nodes = [worker.node for worker in facts.workers[:MOST_NODES]]

    def _at(self, t: float) -> float:
        return round(t - self._facts.started_s, 3)

    def is_timed(self) -> bool:
        """Whether any batch was timed."""
        return any(one.bpt_s > 0 for point in self._facts.points for one in point.nodes.values())

    def throughput(self) -> Chart:
        """Samples per second."""
        each = Series(name="each second", colour=BLUE, width=1, steps="before", faint=True)
        mean = Series(name=f"mean of {SMOOTH_S:.0f} s", colour=BLUE, width=2)
        lines = [self._joined(speeds(part) for part in self._parts)]
        if len(self._facts.points) <= MOST_POINTS:
            lines.append(self._joined(speeds(part, SMOOTH_S) for part in self._parts))
            series: tuple[Series, ...] = (each, mean)
        else:  # each point is a mean over a longer time
            series = (replace(mean, name="mean"),)
        caption = "samples into the model"
        return self._chart("throughput", "Throughput", caption, "samples/s", series, lines)

    def sizes(self) -> Iterator[Chart]:
        """Yield the numbers of nodes and of cores, if they have changed."""
        if not (self._letters or has_changed_quota(self._facts.points)):
            return
        parts = [size_curve(part) for part in self._parts]
        roles = {
            "workers": self._joined([(one.t, one.workers) for one in part] for part in parts),
            "servers": self._joined([(one.t, one.servers) for one in part] for part in parts),
        }
        there = {name: line for name, line in roles.items() if any(n > 0 for _, n in line)}
        granted = self._joined([(one.t, one.cores) for one in part] for part in parts)
        rows = [("nodes", there), ("cores", {"of all nodes": granted})]
        for name, lines in rows:
            if not any(math.isfinite(n) for line in lines.values() for _, n in line):
                continue
            yield self._chart(
                f"size-{name}",
                "Nodes" if name == "nodes" else "Cores granted",
                "size of the job",
                name,
                tuple(
                    Series(name=each, colour=COLOURS[1 + at], steps="after")
                    for at, each in enumerate(lines)
                ),
                [*lines.values()],
                whole=name == "nodes",
                small=True,
                marks=self._letters,
            )

    def batch_times(self) -> Chart:
        """Batch processing time per worker."""
        return self._chart(
            "batch-times",
            "Batch processing time",
            "mean of the newest steps; log scale",
            "ms per batch",
            self._series(),
            [self._of_node(name, lambda one: one.bpt_s * 1e3 or math.nan) for name in self._nodes],
            log=True,
            zero=False,
        )

    def samples(self) -> Chart:
        """Samples handed to each worker."""
        return self._chart(
            "samples",
            "Samples per worker",
            "handed to the loop, over all lives",
            "samples",
            self._series(),
            [self._of_node(name, lambda one: one.samples) for name in self._nodes],
            marks=(),
        )

    def of_section(self, told: Plot) -> Chart:
        """A value over time that a feature tells of, with spans and marks."""
        since_s = self._facts.started_s
        line = self._joined(
            [(p.t, told.values.get(p.t - since_s, math.nan)) for p in part] for part in self._parts
        )
        line = [(self._at(t), value) for t, value in line]
        usual = [(at, _usual_at(told, at)) for at, _ in line]
        expected = Series(name=told.usual_label or "usual", colour=GREEN, dash=(6, 4))
        shown = any(math.isfinite(value) for _, value in usual)
        return Chart(
            name=f"section-{told.name}",
            title="",
            caption=told.caption,
            unit=told.label,
            series=(Series(name=told.label, colour=BLUE), *((expected,) if shown else ())),
            zero=True,
            top=told.top,
            until=self._until,
            bands=(
                *self._bands,
                *(Band(since=one.since_s, until=one.until_s, colour=RED) for one in told.spans),
            ),
            dots=tuple(
                Dots(name=one.label, shape=one.shape, colour=one.colour, at=tuple(one.times_s))
                for one in told.marks
                if one.times_s
            ),
            columns=_columns([line, usual] if shown else [line]),
        )

    def _chart(
        self,
        name: str,
        title: str,
        caption: str,
        unit: str,
        series: tuple[Series, ...],
        lines: Sequence[Line],
        **more: object,
    ) -> Chart:
        given: dict[str, object] = {"zero": True, "marks": self._marks} | more
        note = "; grey: nothing was measured" if self._bands else ""
        dated = [[(self._at(t), value) for t, value in line] for line in lines]
        return Chart(
            name=name,
            title=title,
            caption=caption + note,
            unit=unit,
            series=series,
            until=self._until,
            bands=self._bands,
            columns=_columns(dated),
            **given,  # type: ignore[arg-type]
        )

    def _series(self) -> tuple[Series, ...]:
        return tuple(
            Series(name=name, colour=COLOURS[at % len(COLOURS)])
            for at, name in enumerate(self._nodes)
        )

    def _of_node(self, name: str, value: Callable[[NodePoint], float]) -> Line:
        """A value of a node over time, with gaps where it was not measured."""
        return self._joined(
            [(p.t, value(p.nodes[name]) if name in p.nodes else math.nan) for p in part]
            for part in self._parts
        )

    def _joined(self, lines: Iterable[Line]) -> Line:
        """One line with a gap between its parts."""
        found: Line = []
        for line in lines:
            if found and line:
                found.append((found[-1][0] + GAP_S, math.nan))
            found += line
        return found


def _usual_at(told: Plot, at: float) -> float:
    """The value that is usual at a moment, had nothing been wrong; no number: not known."""
    level = next((one.usual for one in told.spans if at <= one.until_s), None)
    return math.nan if level is None else level


def _counts_samples(point: MetricsPoint) -> bool:
    return bool(point.committed or any(node.samples for node in point.nodes.values()))


def stretches(points: Sequence[MetricsPoint]) -> list[Sequence[MetricsPoint]]:
    """Divide measurements where none was made for much longer than usual."""
    widths = [later.t - sooner.t for sooner, later in pairwise(points)]
    usual = statistics.median(widths) if widths else 0.0
    begins = [at for at, width in enumerate(widths, start=1) if width > GAP * usual > 0.0]
    edges = [0, *begins, len(points)]
    return [points[start:stop] for start, stop in pairwise(edges)]


def thinned(points: Sequence[MetricsPoint], stride: int) -> Sequence[MetricsPoint]:
    """Take the first point, each one a stride after it, and the last."""
    return points if stride == 1 else [*points[:-1:stride], *points[-1:]]


def _columns(lines: Sequence[Line]) -> tuple[list[float | None], ...]:
    """The common x values of the lines, then the values of each."""
    dates = [at for at, _ in lines[0]] if lines else []
    values = ([_short(value) for _, value in line] for line in lines)
    return ([*dates], *values)


def _short(value: float) -> float | None:
    """A value to as many digits as anybody can see."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def changes(before: Chart, after: Chart) -> int | None:
    """Say how many points of a chart are as they were; None: something else has changed.

    Args:
        before: what a browser has.
        after: the same chart, later.
    """
    if replace(after, columns=(), until=0.0) != replace(before, columns=(), until=0.0):
        return None
    same = len(before.columns[0])
    for old, new in zip(before.columns, after.columns, strict=True):
        while old[:same] != new[:same]:
            same = _first_other(old, new, same)
    return same


def _first_other(old: Sequence[object], new: Sequence[object], most: int) -> int:
    """The place of the first value that differs, at most ``most``."""
    pairs = enumerate(zip(old[:most], new[:most], strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(most, len(old), len(new)))
