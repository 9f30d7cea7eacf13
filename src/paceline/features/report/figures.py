"""The report's drawings: SVG text that takes the colour of the text around it.

Matplotlib draws; ink becomes ``currentColor``, so that one page serves light, dark and print.
"""

import io
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

from paceline.base.optional import extra_for
from paceline.features.report.size_curve import has_changed, size_curve
from paceline.jobs.curves import CurvePoint
from paceline.jobs.facts import Facts, speeds
from paceline.jobs.history import MetricsPoint, NodePoint
from paceline.jobs.sections import Plot, marks_of

with extra_for("the page of `paceline report`"):
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#010203"
"""Stands for the page's text colour; no colour that anything else would have."""
COLOURS = ("#3b82c4", "#d9822b", "#3a9d5d", "#b565b0", "#c0504d", "#2aa5a0", "#98904a", "#7f7f9f")
ENDED = {
    "finished": "#3a9d5d",
    "running": "#3b82c4",
    "stopped": "#7f8c9b",
    "killed": "#c0504d",
    "out of memory": "#b565b0",
    "failed": "#d9822b",
    "unreachable": "#98904a",
}
WIDTH_IN, HEIGHT_IN, SIZE_IN = 9.0, 2.8, 1.1
"""Inches: width and height of a drawing, and the height of a row about the job's size below it."""
SMOOTH_S = 5.0
MAX_CURVES, MAX_DRAWN, FEW = 12, 600, 30
"""Drawings of what was logged, points of one, and points that are marked."""
GAP = 5.0
"""Points that are so many times as far apart as usual have a gap between them."""
MAX_NODES = 40
"""Rows that can still be read; of a larger job the first ones are drawn."""
_Lines = list[tuple[str, str, list[tuple[float, float]]]]
"""Name, colour and points of each line."""
STYLE: Any = {  # its key type is a list of 200 literals
    "svg.fonttype": "none",
    "svg.hashsalt": "paceline",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "legend.frameon": False,
}


def throughput(facts: Facts) -> str:
    """Samples per second over time, with what went wrong marked; below it the size that changed."""
    rows = _size_rows(facts) if has_changed(facts) else []
    heights = [HEIGHT_IN, *[SIZE_IN] * len(rows)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, sum(heights)), layout="constrained")
        grid = figure.subplots(len(heights), squeeze=False, sharex=True, height_ratios=heights)
        axes, *below = grid[:, 0]
        seen = _joined(speeds(part) for part in stretches(facts.points))
        axes.step(
            [t - facts.started_s for t, _ in seen],
            [value for _, value in seen],
            where="pre",
            color=COLOURS[0],
            alpha=0.45,
            linewidth=1,
            label="each second",
        )
        smooth = _joined(speeds(part, SMOOTH_S) for part in stretches(facts.points))
        axes.plot(
            [t - facts.started_s for t, _ in smooth],
            [value for _, value in smooth],
            color=COLOURS[0],
            linewidth=2,
            label=f"mean of {SMOOTH_S:.0f} s",
        )
        _mark_incidents(facts, axes)
        _mark_sizes(facts, axes)
        _finish(axes, facts, "samples/s", bottom=0)
        _legend(axes)
        for row, (label, lines) in zip(below, rows, strict=True):
            _size_row(facts, row, label, lines)
        for upper in (axes, *below)[:-1]:
            upper.label_outer()
        return _svg(figure, "throughput")


def _size_rows(facts: Facts) -> list[tuple[str, _Lines]]:
    """The rows about a job's size: the label of each, and its lines by name and colour."""
    parts = [size_curve(part) for part in stretches(facts.points)]
    roles = {
        "workers": _joined([(one.t, one.workers) for one in part] for part in parts),
        "servers": _joined([(one.t, one.servers) for one in part] for part in parts),
    }
    present = {name: line for name, line in roles.items() if any(n > 0 for _, n in line)}
    nodes = [(name, COLOURS[1 + at], line) for at, (name, line) in enumerate(present.items())]
    granted = _joined([(one.t, one.cores) for one in part] for part in parts)
    cores = [("of all nodes", COLOURS[3], granted)]
    has_quotas = any(math.isfinite(value) for _, value in granted)
    rows = [("nodes", nodes if present else []), ("cores granted", cores if has_quotas else [])]
    return [(label, lines) for label, lines in rows if lines]


def _size_row(facts: Facts, axes: "Axes", label: str, lines: _Lines) -> None:
    """Steps of the job's size, whose changes have their letters in the plot above."""
    for name, colour, line in lines:
        axes.step(
            [t - facts.started_s for t, _ in line],
            [value for _, value in line],
            where="post",
            color=colour,
            linewidth=1.5,
            label=name,
        )
    for _, at_s in _changes(facts):
        axes.axvline(at_s, color="0.5", linewidth=1, linestyle=(0, (1, 2)))
    _finish(axes, facts, label)
    most = max(n for _, _, line in lines for _, n in line if math.isfinite(n))
    axes.set_ylim(0, 1.15 * most)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=label == "nodes"))
    axes.yaxis.set_major_formatter("{x:g}")
    _legend(axes)


def batch_times(facts: Facts) -> str:
    """Batch processing time per worker over time."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(HEIGHT_IN)
        for name, colour in _named(facts):
            seen = _of_node(facts, name, lambda node: node.bpt_s * 1e3 or math.nan)
            axes.plot(
                [t - facts.started_s for t, _ in seen],
                [value for _, value in seen],
                color=colour,
                label=name,
                linewidth=1.5,
            )
        _mark_incidents(facts, axes)
        _mark_sizes(facts, axes)
        # First steps take a hundred times as long, and a straggler a few times.
        axes.set_yscale("log")
        _finish(axes, facts, "batch processing time (ms)")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        _legend(axes)
        return _svg(figure, "bpt")


def plot(facts: Facts, told: Plot) -> str:
    """A value over time that a feature tells of, with spans and marks."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(HEIGHT_IN)
        dates = [[p.t - facts.started_s for p in part] for part in stretches(facts.points)]
        line = _joined([(t, told.values.get(t, math.nan)) for t in part] for part in dates)
        axes.plot([t for t, _ in line], [value for _, value in line], color=COLOURS[0])
        begin_s = 0.0
        for one in told.spans:
            axes.axvspan(one.since_s, one.until_s, color=ENDED["killed"], alpha=0.12)
            if one.usual is not None:
                style: Any = {"color": ENDED["finished"], "linewidth": 1.2, "linestyle": "--"}
                label = told.usual_label if not begin_s else None
                axes.plot([begin_s, one.until_s], [one.usual] * 2, label=label, **style)
            begin_s = one.until_s
        _mark_moments(told, axes)
        _finish(axes, facts, told.label, bottom=0)
        axes.set_ylim(0, told.top)
        axes.yaxis.set_major_formatter("{x:,g}")
        _legend(axes)
        return _svg(figure, told.name)


def _mark_moments(told: Plot, axes: "Axes") -> None:
    """Set one mark for each moment, near the upper edge."""
    for row, marks in enumerate(told.marks):
        if not marks.times_s:
            continue
        axes.scatter(
            marks.times_s,
            [1.0 - 0.05 * row] * len(marks.times_s),  # a verdict follows its onset within seconds
            marker=marks.shape,
            color=marks.colour,
            label=marks.label,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            zorder=3,
        )
        for at_s in marks.times_s:
            axes.axvline(at_s, color=marks.colour, linewidth=1, linestyle=(0, (3, 2)))


def samples(facts: Facts) -> str:
    """Samples handed to each worker, over time."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(HEIGHT_IN)
        for name, colour in _named(facts):
            seen = _of_node(facts, name, lambda node: node.samples)
            axes.plot(
                [t - facts.started_s for t, _ in seen],
                [value for _, value in seen],
                color=colour,
                label=name,
                linewidth=1.5,
            )
        _finish(axes, facts, "samples so far", bottom=0)
        _legend(axes)
        return _svg(figure, "samples")


def stretches(points: Sequence[MetricsPoint]) -> list[Sequence[MetricsPoint]]:
    """Divide measurements where none was made for much longer than usual."""
    widths = [later.t - sooner.t for sooner, later in pairwise(points)]
    usual = statistics.median(widths) if widths else 0.0
    begins = [at for at, width in enumerate(widths, start=1) if width > GAP * usual > 0.0]
    edges = [0, *begins, len(points)]
    return [points[start:stop] for start, stop in pairwise(edges)]


def _joined(lines: Iterable[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """One line with a gap between its parts."""
    return [point for line in lines for point in (*line, (math.nan, math.nan))]


def _of_node(
    facts: Facts, name: str, value: Callable[[NodePoint], float]
) -> list[tuple[float, float]]:
    """A value of a node over time, with gaps where it was not measured."""
    return _joined(
        [(p.t, value(p.nodes[name]) if name in p.nodes else math.nan) for p in part]
        for part in stretches(facts.points)
    )


def curves(facts: Facts) -> str:
    """What the script has logged, a small drawing for each name."""
    found = [(name, points) for name, points in facts.curves.items() if points][:MAX_CURVES]
    rows = -(-len(found) // 2)
    end = max(1, *(points[-1].samples for _, points in found))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 0.3 + 1.8 * rows), layout="constrained")
        for number, (name, points) in enumerate(found):
            axes = figure.add_subplot(rows, 2, number + 1)
            _curve(axes, points, COLOURS[number % len(COLOURS)])
            axes.set_title(name, fontsize=9, loc="left", color=INK)
            axes.set_xlim(0, 1.02 * end)  # a curve without a finite value has crosses only
            axes.xaxis.set_major_formatter("{x:,g}")
            axes.xaxis.set_major_locator(MaxNLocator(4))
        figure.supxlabel("samples in the model", fontsize=9)
        return _svg(figure, "curves")


def _curve(axes: "Axes", points: Sequence[CurvePoint], colour: str) -> None:
    drawn = broken(thinned(points, MAX_DRAWN))
    marker = "o" if len(drawn) <= FEW else ""
    axes.plot(
        [samples for samples, _ in drawn],
        [value if math.isfinite(value) else math.nan for _, value in drawn],
        color=colour,
        linewidth=1.5,
        marker=marker,
        markersize=3,
    )
    odd = thinned([point for point in points if not math.isfinite(point.value)], MAX_DRAWN)
    axes.scatter(
        [point.samples for point in odd],
        [0.04] * len(odd),
        marker="x",
        color=ENDED["killed"],
        transform=axes.get_xaxis_transform(),
        clip_on=False,
        zorder=3,
    )
    if any(math.isfinite(value) for _, value in drawn):
        axes.ticklabel_format(axis="y", useOffset=False)  # numbers as they were logged
    else:
        axes.set_yticks([])


def thinned(points: Sequence[CurvePoint], most: int) -> Sequence[CurvePoint]:
    """At most so many points, the first and the last among them."""
    if len(points) <= most:
        return points
    last = len(points) - 1
    return [points[last * k // (most - 1)] for k in range(most)]


def broken(points: Sequence[CurvePoint]) -> list[tuple[float, float]]:
    """Samples and value of each point, with one that is no number in each gap."""
    widths = [later.samples - sooner.samples for sooner, later in pairwise(points)]
    usual = statistics.median(widths) if widths else 0
    found: list[tuple[float, float]] = []
    for point, width in zip_longest(points, widths, fillvalue=0):
        assert isinstance(point, CurvePoint)
        found.append((point.samples, point.value))
        if width > GAP * usual > 0:
            found.append((point.samples + width / 2, math.nan))
    return found


def lives(facts: Facts) -> str:
    """One bar per incarnation of each node, coloured by how it ended."""
    names = list(dict.fromkeys(life.node for life in facts.lives))
    names = sorted(names, key=_place)[:MAX_NODES]
    with mpl.rc_context(STYLE):
        figure, axes = _figure(0.7 + 0.3 * max(1, len(names)))
        for life in facts.lives:
            if life.node not in names:
                continue
            start_s = life.start_s - facts.started_s
            axes.barh(
                names.index(life.node),
                max(life.end_s - life.start_s, 0.05),
                left=start_s,
                height=0.66,
                color=ENDED[life.how],
                edgecolor="#ffffff",  # where two lives touch that ended alike
                linewidth=0.8,
            )
            axes.text(start_s, names.index(life.node), f" {life.inc}", va="center", color="#ffffff")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        _finish(axes, facts, "")
        return _svg(figure, "lives")


def _place(name: str) -> tuple[str, int]:
    role, _, index = name.rpartition("-")
    return role, int(index)


def _named(facts: Facts) -> list[tuple[str, str]]:
    workers = facts.workers[:MAX_NODES]
    return [(worker.node, COLOURS[i % len(COLOURS)]) for i, worker in enumerate(workers)]


def _figure(height_in: float) -> "tuple[Figure, Axes]":
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    return figure, figure.subplots()


def _mark_incidents(facts: Facts, axes: "Axes") -> None:
    for number, incident in enumerate(facts.incidents, start=1):
        at_s = incident.t - facts.started_s
        axes.axvline(at_s, color=ENDED["killed"], linewidth=1, linestyle=(0, (3, 2)))
        axes.annotate(
            str(number),
            (at_s, 1.0),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=8,
            color=ENDED["killed"],
        )


def _mark_sizes(facts: Facts, axes: "Axes") -> None:
    for letter, at_s in _changes(facts):
        axes.axvline(at_s, color="0.5", linewidth=1, linestyle=(0, (1, 2)))
        axes.annotate(
            letter,
            (at_s, 1.0),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=8,
            color="0.5",
        )


def _changes(facts: Facts) -> list[tuple[str, float]]:
    """The letter of each change of size, and when it was in effect, in seconds after the start."""
    return [(letter, t - facts.started_s) for letter, t in marks_of(facts)]


def _finish(axes: "Axes", facts: Facts, label: str, bottom: float | None = None) -> None:
    for sooner, later in pairwise(stretches(facts.points)):
        since_s, until_s = sooner[-1].t - facts.started_s, later[0].t - facts.started_s
        axes.axvspan(since_s, until_s, color="0.5", alpha=0.15, linewidth=0, zorder=0)
    axes.set_xlim(0, max(1.0, facts.ended_s - facts.started_s))
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel(label)
    if bottom is not None:
        axes.set_ylim(bottom=bottom)
        axes.yaxis.set_major_formatter("{x:,.0f}")


def _legend(axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)


def legend_of_ends(hows: Sequence[str]) -> str:
    """The meaning of the colours in `lives`, as HTML."""
    shown = [how for how in ENDED if how in hows]
    return " ".join(f'<span class="key" style="--key:{ENDED[how]}">{how}</span>' for how in shown)


def _svg(figure: Figure, prefix: str) -> str:
    """The figure as an element that fills its place; ids are made unique in the page."""
    out = io.StringIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None}
    figure.savefig(out, format="svg", transparent=True, metadata=metadata)
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    # Without a size of its own it takes that of its place.
    text = re.sub(r' (?:width|height)="[^"]*pt"', "", text, count=2)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    return re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", text)
