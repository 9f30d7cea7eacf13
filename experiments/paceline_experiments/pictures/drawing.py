"""Screens of terminals as a picture: a still one, or a film that plays without a script."""

import html
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

CELL_W, CELL_H, FONT_PX = 8.4, 19, 14
"""Pixels of one character, and of its font."""
PAD, BAR, GAP = 14, 30, 10
"""Pixels around a screen, of the title above it, and between two screens."""
HOLD_S = 6.0
"""Seconds for which a film shows its last frame before it begins again."""
COLOURS = {
    "default": "#d1d7e0",
    "dim": "#9198a1",
    "green": "#3fb950",
    "blue": "#4493f8",
    "magenta": "#ab7df8",
    "brown": "#d29922",
    "cyan": "#39c5cf",
    "red": "#ff7b72",
    "brightblack": "#656c76",
}
"""Colours of a terminal by the names that ``pyte`` has for them; brown is its yellow."""
FONT = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'
BLOCKS = {"█": (0.0, 1.0, 0.12, 0.76), "━": (0.0, 1.0, 0.42, 0.16)}
BLOCKS |= {"╸": (0.0, 0.5, 0.42, 0.16), "╺": (0.5, 0.5, 0.42, 0.16)}
"""Characters of bars: left edge, width, top edge and height, in parts of a cell. They are drawn as
rectangles, since the letters of many fonts leave gaps between them."""
PIECE = re.compile(r"(?P<block>[█━╸╺])(?P=block)*|[^\s█━╸╺]+(?: [^\s█━╸╺]+)*")
"""A bar, or words with single spaces between them."""


class Run(NamedTuple):
    """Characters of one line that look alike."""

    column: int
    text: str
    colour: str
    """A name of ``COLOURS``, or a hexadecimal number."""
    bold: bool


Line = tuple[Run, ...]


class Screen(NamedTuple):
    """What a terminal shows at one moment."""

    at_s: float
    lines: tuple[Line, ...]


class Pane(NamedTuple):
    """A terminal in the picture, with all that it has shown."""

    title: str
    columns: int
    rows: int
    screens: Sequence[Screen]


def draw(title: str, panes: Sequence[Pane]) -> str:
    """Draw panes, one below the other, as the text of an SVG whose frames follow each other.

    The frames lie below each other like those of a film, and a window of one frame moves over
    them in steps. Each line that was ever shown is drawn once, and used by its number. A person
    who wants no motion sees the last frame.
    """
    width = max(_size(pane)[0] for pane in panes)
    tops = [sum(_size(pane)[1] + GAP for pane in panes[:number]) for number in range(len(panes))]
    height = tops[-1] + _size(panes[-1])[1]
    times = sorted({screen.at_s for pane in panes for screen in pane.screens})
    shapes = _Shapes()
    frames = []
    for number, at_s in enumerate(times):
        frames.append(f'<g transform="translate(0,{number * height})">')
        for pane, top in zip(panes, tops, strict=True):
            frames += _rows(_shown(pane, at_s), shapes, top + BAR + PAD)
        frames.append("</g>")
    body = [
        f"<defs>{''.join(shapes.drawn())}</defs>",
        *(part for pane, top in zip(panes, tops, strict=True) for part in _window(pane, top)),
        f'<svg width="{width}" height="{height}"><g class="film">',
        *frames,
        "</g></svg>",
    ]
    return _svg(title, width, height, _motion(times, height), body)


def _motion(times: Sequence[float], height: int) -> str:
    """Return the rules of style by which the frames follow each other."""
    whole_s = times[-1] - times[0] + HOLD_S
    steps = (
        f"{100 * (at_s - times[0]) / whole_s:.2f}%{{transform:translateY({-height * number}px)}}"
        for number, at_s in enumerate(times)
    )
    if len(times) == 1:
        return ""
    last = f"translateY({-height * (len(times) - 1)}px)"
    return (
        f".film{{transform:{last};animation:play {whole_s:.1f}s step-end infinite}}"
        f"@keyframes play{{{''.join(steps)}100%{{transform:{last}}}}}"
        "@media (prefers-reduced-motion:reduce){.film{animation:none}}"
    )


def _shown(pane: Pane, at_s: float) -> tuple[Line, ...]:
    """Return the lines that a pane shows at a time; nothing before its first screen."""
    until = [screen.lines for screen in pane.screens if screen.at_s <= at_s]
    return until[-1] if until else ()


def _size(pane: Pane) -> tuple[int, int]:
    return round(pane.columns * CELL_W) + 2 * PAD, pane.rows * CELL_H + BAR + 2 * PAD


def _window(pane: Pane, top: int) -> Iterable[str]:
    """Draw the frame of a terminal, with its title."""
    width, height = _size(pane)
    yield (
        f'<rect x=".5" y="{top + 0.5}" width="{width - 1}" height="{height - 1}" rx="8" '
        'fill="#0d1117" stroke="#3d444d"/>'
    )
    for number, colour in enumerate(("#ff7b72", "#d29922", "#3fb950")):
        yield f'<circle cx="{20 + 18 * number}" cy="{top + 18}" r="5.5" fill="{colour}"/>'
    yield (
        f'<text x="{width / 2:g}" y="{top + 23}" text-anchor="middle" class="dim">'
        f"{html.escape(pane.title)}</text>"
    )


class _Shapes:
    """Lines that are drawn once, however many frames show them."""

    def __init__(self) -> None:
        self._numbers: dict[Line, int] = {}

    def number(self, line: Line) -> int:
        return self._numbers.setdefault(line, len(self._numbers))

    def drawn(self) -> Iterable[str]:
        for line, number in self._numbers.items():
            yield f'<g id="l{number}">{_line(line)}</g>'


def _rows(lines: Sequence[Line], shapes: _Shapes, top: int) -> Iterable[str]:
    for row, line in enumerate(lines):
        if line:
            yield f'<use href="#l{shapes.number(line)}" y="{top + row * CELL_H}"/>'


def _line(line: Line) -> str:
    return "".join(part for run in line for part in _run(run))


def _run(run: Run) -> Iterable[str]:
    for piece in PIECE.finditer(run.text):
        x = PAD + (run.column + piece.start()) * CELL_W
        cells = len(piece[0])
        if block := piece["block"]:
            left, part, above, tall = BLOCKS[block]
            yield (
                f'<rect x="{x + left * CELL_W:.1f}" y="{above * CELL_H:.1f}" '
                f'width="{(cells - 1 + part) * CELL_W:.1f}" height="{tall * CELL_H:.1f}" '
                f'fill="{_hex(run.colour)}"/>'
            )
        else:
            yield (
                f'<text x="{x:.1f}" y="14" textLength="{cells * CELL_W:.1f}"{_looks(run)}>'
                f"{html.escape(piece[0], quote=False)}</text>"
            )


def _looks(run: Run) -> str:
    """Return how a run differs from usual text, as attributes."""
    bold = ' font-weight="700"' if run.bold else ""
    if run.colour == "default":
        return bold
    if run.colour in COLOURS:
        return f'{bold} class="{run.colour}"'
    return f'{bold} fill="{_hex(run.colour)}"'


def _hex(colour: str) -> str:
    return COLOURS.get(colour, f"#{colour}")


def _svg(title: str, width: int, height: int, motion: str, body: Iterable[str]) -> str:
    classes = "".join(f".{name}{{fill:{colour}}}" for name, colour in COLOURS.items())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            f"<title>{html.escape(title)}</title>",
            f"<style>svg{{font:{FONT_PX}px {FONT};fill:{COLOURS['default']}}}{classes}{motion}"
            "</style>",
            *body,
            "</svg>\n",
        ]
    )
