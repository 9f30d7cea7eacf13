"""The lives of a job's nodes as an SVG: one bar per incarnation, coloured by how it ended."""

from collections.abc import Sequence
from html import escape

from paceline.base.jobdir import number_of, role_of
from paceline.features.report.charts import BLUE, GREEN, MOST_NODES, OLIVE, ORANGE, PURPLE, RED
from paceline.jobs.facts import Facts, LifeFacts
from paceline.jobs.wording import clock

ENDED = {
    "finished": GREEN,
    "running": BLUE,
    "stopped": "#7f8c9b",
    "killed": RED,
    "out of memory": PURPLE,
    "failed": ORANGE,
    "unreachable": OLIVE,
}
"""Colours of `paceline.jobs.facts.ENDS`."""
WIDTH, LEFT, ROW, AXIS = 900, 76, 22, 22
"""Pixels: width of the drawing and of the names in it, height of a row and of the time axis."""
NUM_TICKS = 6
LEAST_WIDTH = 2.0
NUMBER_WIDTH = 14.0
"""Least width of a bar that its number fits into."""
MOST_BARS = 2000
NICE_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)


def lives_as_html(facts: Facts) -> str:
    """Draw the lives of the nodes with a key of the colours; empty: there were none."""
    names = sorted({life.node for life in facts.lives}, key=lambda n: (role_of(n), number_of(n)))
    if not names:
        return ""
    drawn = names[:MOST_NODES]
    lives = [life for life in facts.lives if life.node in drawn][-MOST_BARS:]
    until_s = max(1.0, facts.ended_s - facts.started_s)
    height = ROW * len(drawn) + AXIS
    parts = [
        *_axis(until_s, height - AXIS),
        *(_bar(life, drawn.index(life.node), facts.started_s, until_s) for life in lives),
        *(_name(name, row) for row, name in enumerate(drawn)),
    ]
    about = f"{len(lives)} lives of {len(drawn)} nodes; the table of workers says how many each had"
    size = f'viewBox="0 0 {WIDTH} {height}"'
    svg = f'<svg {size} role="img" aria-label="{about}">{"".join(parts)}</svg>'
    caption = f"One bar per life, numbered by incarnation; its end: {_key(lives)}"
    if len(names) > len(drawn):
        caption += f". Drawn: the first {MOST_NODES} nodes."
    return f'<div class="scroll">{svg}</div><p class="faint">{caption}</p>'


def _bar(life: LifeFacts, row: int, started_s: float, until_s: float) -> str:
    scale = (WIDTH - LEFT) / until_s
    x = LEFT + (life.start_s - started_s) * scale
    width = max((life.end_s - life.start_s) * scale - 1.0, LEAST_WIDTH)
    y = ROW * row
    since, until = clock(life.start_s - started_s), clock(life.end_s - started_s)
    told = f"{life.node}, life {life.inc}, {since} to {until}: {life.how}"
    told += f" ({life.reason})" if life.reason else ""
    number = ""
    if width >= NUMBER_WIDTH:
        number = f'<text x="{x + 4:.1f}" y="{y + 15}" class="on">{life.inc}</text>'
    return (
        f'<g><title>{escape(told)}</title><rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" '
        f'height="{ROW - 6}" rx="2" fill="{ENDED[life.how]}"/>{number}</g>'
    )


def _name(name: str, row: int) -> str:
    return f'<text x="{LEFT - 8}" y="{ROW * row + 15}" text-anchor="end">{escape(name)}</text>'


def _axis(until_s: float, height: int) -> list[str]:
    """Lines at round times, with the times below."""
    step_s = next((one for one in NICE_S if until_s / one <= NUM_TICKS), NICE_S[-1])
    found = []
    for k in range(int(until_s // step_s) + 1):
        x = LEFT + k * step_s * (WIDTH - LEFT) / until_s
        at = "end" if x > WIDTH - 20 else "middle"
        found.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" class="grid"/>'
            f'<text x="{x:.1f}" y="{height + 16}" text-anchor="{at}">{clock(k * step_s)}</text>'
        )
    return found


def _key(lives: Sequence[LifeFacts]) -> str:
    """The meaning of the colours."""
    hows = {life.how for life in lives}
    return " ".join(
        f'<span class="key" style="--key:{colour}">{how}</span>'
        for how, colour in ENDED.items()
        if how in hows
    )
