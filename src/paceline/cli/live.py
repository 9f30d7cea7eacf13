"""A job as a picture that moves: progress, one bar per node, the newest events."""

import textwrap
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat

from rich.console import Console, ConsoleDimensions, ConsoleOptions, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from paceline.base.node_files import CHIEF
from paceline.cli.watch import Look
from paceline.jobs.why import why_now
from paceline.jobs.wording import (
    clock,
    lasting,
    logged,
    mib,
    milliseconds,
    percent,
    progress,
    speed,
)
from paceline.wire.client import JobStatus, NodeStatus
from paceline.wire.events.base import Event
from paceline.wire.events.job import FinishedEvent, LaunchedEvent
from paceline.wire.events.nodes import ProcessUpEvent

NUM_EVENTS = 6
LANDMARKS = (LaunchedEvent, ProcessUpEvent, FinishedEvent)
"""Usual events that are shown among the news; those of cuts and feeds would push the news out."""
TIME_WIDTH = 9
"""Characters for the time before an event."""
BAR_WIDTH = 24
WAITS = "·"
"""Part of a bar in which a node waits for others, or does what is not measured."""
PROGRESS_WIDTH = 30
LEAST_PROGRESS_WIDTH = 8
PARTS = (
    ("compute_s", "green"),
    ("server_s", "blue"),
    ("message_s", "magenta"),
    ("data_s", "yellow"),
)
"""Parts of a batch's time, with their colours: the worker's own work, the servers', the way there
and back, the data."""
STATES = {"running": "green", "finished": "cyan"}
STATES |= dict.fromkeys(("starting", "pending", "not known"), "yellow")
OTHER_STATE = "red"
MAX_NOTES = 3
"""Lines of features in the picture."""
HEAD_ROWS = 4
"""Lines above the nodes, with the names of their columns."""
OTHER_ROWS = 14
"""Lines of the picture that are not nodes, where there is room for all."""
COLUMNS = ("node", "state", "batch time", "batch", "samples", "restarts", "memory", "cpu", "note")
DROPPED = ("cpu", "restarts", "memory", "batch time", "samples", "batch", "state")
"""Columns that a narrow terminal leaves out, in this order."""
NUMBERS = ("batch", "samples", "restarts", "memory", "cpu")
NOTE_LEAST = 24
"""Characters of a note that are of use."""
PADDING = 2
"""Characters after a column."""
SPACE = " " * PADDING
NARROW = 76


class LiveView:
    """Draws in place; what the script says scrolls by above the picture."""

    def __init__(self, job_id: str, console: Console) -> None:
        self._job_id, self._console = job_id, console
        self._events: deque[Event] = deque(maxlen=NUM_EVENTS)
        self._status: JobStatus | None = None
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, look: Look) -> None:
        """Draw what the look has shown; while the master is away the last known state stays."""
        self._events.extend(worth_showing(look.events))
        for traceback in look.tracebacks:
            self._console.print(traceback.rstrip(), markup=False, highlight=False, soft_wrap=True)
        for line in look.said:
            said = f"{CHIEF} | {line}"
            self._console.print(said, markup=False, highlight=False, soft_wrap=True)
        self._status = look.status or self._status
        # Before the first status there is nothing, and after the last the result follows.
        if self._status and not look.outcome:
            answers = look.status is not None
            size = self._console.size
            picture = draw(self._status, list(self._events), look.now_s, size, answers=answers)
            self._live.update(picture, refresh=True)

    def say(self, text: str) -> None:
        """Print a line of ours above the picture."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Take the picture away."""
        self._live.update("", refresh=True)
        self._live.stop()


def draw(
    status: JobStatus,
    events: Sequence[Event],
    now_s: float,
    size: ConsoleDimensions,
    *,
    answers: bool = True,
) -> Group:
    """The picture of one moment, at most as large as ``size`` (columns, lines).

    What does not fit is left out: first the older events, then the legend, then nodes.
    """
    why = why_now(status)
    room = size.height - HEAD_ROWS - len(status.notes[:MAX_NOTES]) - bool(why)
    rows = max(1, min(room - 1, max(3, size.height - OTHER_ROWS)))
    room -= min(rows + 1, len(status.nodes))
    legend = [_legend()] if size.width >= NARROW and room > 0 else []
    lines = _event_lines(events, status.started_s, size.width, room - len(legend) - 1)
    return Group(
        _headline(status, now_s, answers=answers),
        # How far a script is that trains on its own, only the script knows.
        *([] if status.state == "running" else [_progress(status, size.width)]),
        *([Text(why, "yellow", no_wrap=True, overflow="ellipsis")] if why else []),
        Text(logged(status.logged, size.width), "cyan", no_wrap=True),
        *(Text(note, no_wrap=True) for note in status.notes[:MAX_NOTES]),
        node_table(status.nodes, rows, size.width),
        *legend,
        *([Text(), *lines] if lines else []),
    )


def worth_showing(events: Iterable[Event]) -> list[Event]:
    """The events that tell a person what became of the job, of processes and of the group."""
    return [event for event in events if event.is_news or isinstance(event, LANDMARKS)]


def _headline(status: JobStatus, now_s: float, *, answers: bool) -> Text:
    waits = f" ({status.waits_for})" if status.waits_for else ""
    state = f"{status.state}{waits}" if answers else "the master does not answer"
    cut = f"  newest cut {max(status.valid_cuts)}" if status.valid_cuts else ""
    return Text.assemble(
        (status.job_id, "bold"),
        f"  {state}  {clock(now_s - status.started_s)}{cut}",
        no_wrap=True,
        overflow="ellipsis",
    )


def _progress(status: JobStatus, width: int) -> Table | Text:
    done = percent(status.committed, status.total or 0) if status.total else ""
    text = progress(status.committed, status.total)
    rate = speed(status.samples_per_s)
    left = f"{lasting(status.eta_s)} left" if status.eta_s is not None else ""
    # The parts that count most, where a terminal is too narrow for all of them.
    choices = (done, text, rate, left), (done, text, left), (done, text), (done or text,)
    texts = ["  ".join(filter(None, parts)) for parts in choices]
    said = next((one for one in texts if len(one) <= width), texts[-1])
    bar_width = min(PROGRESS_WIDTH, width - len(said) - 2)
    if bar_width < LEAST_PROGRESS_WIDTH:
        return Text(said, no_wrap=True, overflow="ellipsis")
    line = Table.grid(padding=(0, 2, 0, 0))
    bar = ProgressBar(
        total=status.total or None,
        completed=status.committed,
        width=bar_width,
        pulse=status.total is None,
    )
    line.add_row(bar, Text(said, no_wrap=True))
    return line


class NodeTable:
    """A table whose cells have one line and columns have known widths.

    rich's own table takes 0.7 ms for each row, which is most of a status of thousand nodes.

    Args:
        widths: characters of each column, by its name.
        rows: cells by column.
        more: last line; empty: none.
    """

    def __init__(
        self, widths: Mapping[str, int], rows: Sequence[Mapping[str, str | Text]], more: str
    ) -> None:
        self._widths, self._rows, self._more = widths, rows, more

    def __rich_console__(self, console: Console, _: ConsoleOptions) -> Iterator[Segment]:
        """Yield the lines, as rich asks for them."""
        styles: dict[str, Style] = {}
        head = {name: Text(name, "dim") for name in self._widths}
        for cells in (head, *self._rows):
            for name, width in self._widths.items():
                for text, style in _padded(cells[name], width, right=name in NUMBERS):
                    if style not in styles:
                        styles[style] = console.get_style(style or "none")
                    yield Segment(text, styles[style])
            yield Segment.line()
        if self._more:
            yield Segment(self._more)
            yield Segment.line()


def _padded(value: str | Text, width: int, *, right: bool) -> list[tuple[str, str]]:
    """Return the parts of a cell with their styles: cut, filled up, with the space behind it."""
    text = Text(value) if isinstance(value, str) and not value.isascii() else value
    if isinstance(text, str):
        text = text if len(text) <= width else f"{text[: width - 1]}…"
        return [(text.rjust(width) + SPACE if right else text.ljust(width) + SPACE, "")]
    if text.cell_len > width:
        text = text.copy()
        text.truncate(width, overflow="ellipsis")
    parts = _styled(text)
    room = " " * (width - text.cell_len)
    return [(room, ""), *parts, (SPACE, "")] if right else [*parts, (room + SPACE, "")]


def _styled(text: Text) -> list[tuple[str, str]]:
    """Return the parts of a text with their styles: that of the whole, or of one after another."""
    if not text.spans:
        return [(text.plain, str(text.style))]
    return [(text.plain[span.start : span.end], str(span.style)) for span in text.spans]


def node_table(nodes: tuple[NodeStatus, ...], max_rows: int, width: int) -> NodeTable:
    """Draw one row per node; the bars share one scale: the longest batch fills the width."""
    slowest_s = max((node.bpt_s for node in nodes), default=0.0)
    rows = [_cells(node, slowest_s) for node in nodes[:max_rows]]
    more = f"and {len(nodes) - max_rows} more" if len(nodes) > max_rows else ""
    return NodeTable(_widths(rows, width), rows, more)


def _widths(rows: Sequence[Mapping[str, str | Text]], width: int) -> dict[str, int]:
    """Choose columns that fit, and their widths: a long note is cut, and hides no other column."""
    widths = {name: max(len(name), *(len(cells[name]) for cells in rows)) for name in COLUMNS}
    note = widths.pop("note") * any(len(cells["note"]) for cells in rows)
    last = list(DROPPED)
    while last and _total(widths) + bool(note) * (min(note, NOTE_LEAST) + PADDING) > width:
        # Before what says how fast a node is the note goes.
        if last[0] == "batch time" and note:
            note = 0
            continue
        del widths[last.pop(0)]
    left = width - _total(widths) - PADDING
    return widths | {"note": min(note, left)} if note and left > 0 else widths


def cut_notes(nodes: Sequence[NodeStatus], width: int) -> list[tuple[str, str]]:
    """Return the names of nodes, and the note of each that has no room in the table."""
    if not any(node.note for node in nodes):
        return []
    cells = [_cells(node, 0.0) for node in nodes]
    room = _widths(cells, width).get("note", 0)
    return [(node.node, node.note) for node in nodes if len(node.note) > room]


def _total(widths: Mapping[str, int]) -> int:
    return sum(columns + PADDING for columns in widths.values())


def _legend() -> Text:
    legend = Text("batch time: ", "dim")
    for name, (_, colour) in zip(("compute", "servers", "wire", "data"), PARTS, strict=True):
        legend.append("█ ", colour).append(f"{name}  ", "dim")
    return legend.append(f"{WAITS} ", "bright_black").append("waits for others, other", "dim")


def _cells(node: NodeStatus, slowest_s: float) -> dict[str, str | Text]:
    is_worker = node.role == "worker"
    return {
        "node": node.node,
        "state": Text(node.state, STATES.get(node.state, OTHER_STATE)),
        "batch time": _bar(node, slowest_s),
        "batch": milliseconds(node.bpt_s) if is_worker else "",
        "samples": f"{node.samples:,}" if node.samples else "",
        "restarts": str(node.restarts or ""),
        "memory": _of(mib(node.rss_bytes), node.limit_bytes and mib(node.limit_bytes)),
        "cpu": _of(f"{node.cpu_s:,.0f} s", node.cores and f"{node.cores:g} cores"),
        "note": Text(node.note.replace("\n", " "), "dim", overflow="ellipsis"),
    }


def _of(used: str, limit: str | int | float | None) -> str:
    """Say what is used, and of what; without a limit the first alone."""
    return f"{used} of {limit}" if limit else used


def _bar(node: NodeStatus, slowest_s: float) -> Text:
    """Draw the batch processing time, by what it was spent on; dots: anything else.

    Where all wait for each other in each step, all batches take as long. So the time in which a
    node waits is no part of its bar: the slow node has the long one.
    """
    if slowest_s <= 0 or node.bpt_s <= 0:
        return Text()
    whole = max(1, round(BAR_WIDTH * node.bpt_s / slowest_s))
    bar = Text()
    for name, colour in PARTS:
        width = round(whole * getattr(node, name) / node.bpt_s)
        bar.append("█" * min(width, whole - len(bar)), colour)
    return bar.append(WAITS * (whole - len(bar)), "bright_black")


def _event_lines(
    events: Sequence[Event], started_s: float, width: int, max_lines: int
) -> list[Text]:
    """The newest events with their times, wrapped, as many as there is room for."""
    lines: list[Text] = []
    for event in reversed(events):
        times = chain([f"{clock(event.t - started_s):>7}"], repeat(""))
        parts = textwrap.wrap(event.sentence(), max(20, width - TIME_WIDTH), break_on_hyphens=False)
        if len(lines) + len(parts) > max_lines:
            break
        lines[:0] = [
            Text.assemble((f"{at:<{TIME_WIDTH}}", "dim"), part, no_wrap=True)
            for at, part in zip(times, parts, strict=False)
        ]
    return lines
