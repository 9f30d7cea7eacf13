"""The picture of recovery times: the rows of 4 workers of a table in ``docs/bench.md``, drawn."""

import html
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

HEADING = "### Recovery compared with peers"
SECTION = "**4 workers**"
WIDTH, TOP, ROW, BOTTOM = 880, 104, 36, 92
MARGIN = 24
LEFT, RIGHT = 176, 520
"""Ends of the axis of times."""
AFTER, LOST = 536, 722
"""Where the columns of words begin."""
LEAST_S, MOST_S = 0.05, 100.0
TICKS_S = (0.1, 1.0, 10.0)
PATIENCE_S = 60.0
"""Seconds after which the benchmark no longer waits for a next step."""
VERSIONS = re.compile(r"^\| (torchft \d[\d.]+, and nightly [\d.]+|DLRover \d[\d.]+) ", re.MULTILINE)
NOTES = (
    "✕ no step within 60 s. torchrun and DLRover restart all workers, and the script keeps no "
    "checkpoint: all steps are lost.",
    "eager: with timeouts of 1 s and 0.5 s. fixed: DLRover as installed does not start with this "
    "torch; it was mended.",
)
STYLE = """
text { fill: #1f2328 }
text { font: 14px -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", Arial, sans-serif }
.card { fill: #ffffff; stroke: #d1d9e0 }
.title { font-size: 18px; font-weight: 600 }
.ours { font-weight: 700; fill: #1a7f37 }
.dim { fill: #59636e; font-size: 12.5px }
.grid { stroke: #d1d9e0 }
.range { stroke: #818b98; stroke-width: 3; stroke-linecap: round }
.dot { fill: #57606a }
.never { fill: none; stroke: #d1242f; stroke-width: 2.5 }
.bad { fill: #d1242f }
.ours.range { stroke: #2da44e }
.ours.dot { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .card { fill: #0d1117; stroke: #3d444d }
  .ours { fill: #3fb950 }
  .dim { fill: #9198a1 }
  .grid { stroke: #3d444d }
  .range { stroke: #656c76 }
  .dot { fill: #9198a1 }
  .never { stroke: #f85149 }
  .bad { fill: #f85149 }
  .ours.range { stroke: #238636 }
  .ours.dot { fill: #3fb950 }
}
"""
"""The card has a ground of its own, so that it can be read on a page of either scheme."""


class Arm(NamedTuple):
    """One row of the table: what kills of one worker of four led to."""

    name: str
    kills: int
    median_s: float
    low_s: float
    high_s: float
    never: int
    """Kills that no step followed."""
    lost: str
    """Steps that were lost, as the table says it."""


def read_arms(page: str) -> list[Arm]:
    """Read the arms that were measured from the text of ``docs/bench.md``, the quickest first.

    Raises:
        ValueError: the page has no such table, or a row of another form.
    """
    rows = page.partition(HEADING)[2].partition(SECTION)[2].strip(" |\n").split("\n\n")[0]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    arms = [_arm(row) for row in cells if len(row) == 7 and row[1].isdigit()]
    if not arms:
        raise ValueError(
            f"docs/bench.md has no rows after {SECTION!r} below {HEADING!r}; name both"
        )
    return sorted(arms, key=lambda arm: arm.median_s)


def _arm(cells: list[str]) -> Arm:
    name, kills, median, low, high, never, lost = cells
    median_s = float(median.split()[0])
    # Where one kill alone was followed by a step, there is no range.
    low_s, high_s = (float(low), float(high)) if low and high else (median_s, median_s)
    return Arm(name, int(kills), median_s, low_s, high_s, int(never), lost)


def draw_recovery(page: str) -> str:
    """Draw the picture, as the text of an SVG."""
    arms = read_arms(page)
    most = max(arm.kills for arm in arms)
    height = TOP + ROW * len(arms) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Seconds until the next step after one worker of four is killed</title>",
        f"<desc>{html.escape(_in_words(arms))}</desc>",
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        _text(MARGIN, 36, "One worker of four is killed: seconds until the next step", "title"),
        _text(
            MARGIN,
            58,
            f"dot: median of {most} kills, line: smallest to 95 %; logarithmic scale",
            "dim",
        ),
        _text(AFTER, TOP - 20, "next step after", "dim"),
        _text(LOST, TOP - 20, "steps lost, median", "dim"),
        *_axis(TOP + ROW * len(arms)),
    ]
    for number, arm in enumerate(arms):
        parts += _row(arm, TOP + ROW * number + ROW // 2)
    # The lowest line of words last: the source of all that is above.
    words = (*NOTES, _source(page))
    for number, line in enumerate(reversed(words)):
        parts.append(_text(MARGIN, height - 18 - 20 * number, line, "dim"))
    return "\n".join([*parts, "</svg>\n"])


def _source(page: str) -> str:
    versions = ", ".join(VERSIONS.findall(page)).replace(", and nightly", " and nightly")
    return f"{versions}; two cores, steps of 50 ms. Method and all numbers: docs/bench.md#peers"


def _in_words(arms: list[Arm]) -> str:
    return "; ".join(f"{arm.name}: {_time(arm)}, steps lost: {arm.lost}" for arm in arms)


def _axis(end_y: int) -> Iterator[str]:
    for tick_s in TICKS_S:
        x = _x(tick_s)
        yield f'<path class="grid" d="M{x},{TOP - 8}V{end_y}"/>'
        yield _text(x, TOP - 20, f"{tick_s:g} s", "dim", "middle")


def _row(arm: Arm, y: int) -> Iterator[str]:
    ours = "ours " if arm.name == "paceline" else ""
    yield _text(MARGIN, y + 5, arm.name, ours)
    if arm.high_s > arm.low_s:
        yield f'<path class="{ours}range" d="M{_x(arm.low_s)},{y}H{_x(arm.high_s)}"/>'
    yield f'<circle class="{ours}dot" cx="{_x(arm.median_s)}" cy="{y}" r="6"/>'
    if arm.never:
        x = _x(PATIENCE_S)
        yield f'<path class="never" d="M{x - 6},{y - 6}l12,12m0,-12l-12,12"/>'
    yield _text(AFTER, y + 5, _time(arm), "bad" if arm.never else ours)
    yield _text(LOST, y + 5, arm.lost, ours)


def _time(arm: Arm) -> str:
    if not arm.never:
        return f"{arm.median_s:g} s"
    return f"{arm.kills} tries: {arm.kills - arm.never} recovered"


def _x(seconds: float) -> float:
    part = math.log(seconds / LEAST_S) / math.log(MOST_S / LEAST_S)
    return round(LEFT + part * (RIGHT - LEFT), 1)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    end = "" if anchor == "start" else f' text-anchor="{anchor}"'
    marked = f' class="{kind.strip()}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{marked}{end}>{html.escape(text)}</text>'
