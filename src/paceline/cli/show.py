"""``paceline status``: what is there to be seen of jobs, running or ended."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console, ConsoleDimensions
from rich.table import Table

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir, home, role_of
from paceline.cli.live import cut_notes, draw, node_table, worth_showing
from paceline.jobs.facts import work_out
from paceline.jobs.history import read_events, read_last_metrics
from paceline.jobs.listing import (
    MASTER_AWAY,
    JobRow,
    JobSelection,
    current_status,
    listed,
    make_row,
    read_spec,
    shown_in,
    shown_of,
    state_of,
)
from paceline.jobs.outcome import Outcome, read_outcome
from paceline.jobs.relaunches import count_relaunches, with_relaunches
from paceline.jobs.running import RunningJob
from paceline.jobs.slowness import COLUMNS as SLOW_COLUMNS
from paceline.jobs.slowness import rows as slow_rows
from paceline.jobs.why import found_about
from paceline.jobs.wording import age, clock, logged, percent, progress, seconds, speed
from paceline.terminal.options import print_json
from paceline.wire.client import (
    GetObservation,
    JobStatus,
    LastLogged,
    NodeStatus,
    Observed,
    Shown,
    SlowPart,
)
from paceline.wire.events.base import Event

NUM_EVENTS = 10
ALL_ROWS = ConsoleDimensions(80, 10_000)
COLUMNS = ("job", "state", "done", "samples", "speed", "workers", "age")
NODE_VALUES: dict[str, object] = {"sharing": None, "memory": None}
"""Values of features that ``--json`` has of every node; None: the feature has none."""
DROPPED = ("workers", "speed", "samples", "age", "done", "state")
"""Columns that a narrow terminal leaves out, in this order."""


class JobDetail(JobRow, frozen=True, kw_only=True):
    """One job as JSON: its row, its nodes and its newest events."""

    eta_s: float | None
    valid_cuts: tuple[int, ...]
    """Numbers of the cuts that can be loaded, while the job runs."""
    nodes: tuple[dict[str, object], ...]
    """Values of `NodeStatus`, and those of features beside them."""
    events: tuple[dict[str, object], ...]
    """The newest events, each as a line of ``events.jsonl``."""
    slow: tuple[SlowPart, ...]
    """Nodes and links that are slow; of a job that has ended, that were so at its end."""
    logged: tuple[LastLogged, ...]
    """The newest value of each name that the script has logged."""
    notes: tuple[str, ...]
    """Sentences of features about the job."""
    relieved: tuple[SlowPart, ...]
    """Nodes and links that were slow, and are well again."""


def show_jobs(console: Console, wanted: JobSelection, *, as_json: bool = False) -> None:
    """Print a table of jobs, or a JSON list; the newest first."""
    rows = listed(wanted)
    if as_json:
        print_json(rows)
    elif not rows and wanted != JobSelection():
        console.print("no such job; `paceline ps` lists all", markup=False)
    elif not rows:
        console.print(f"no job in {home() / 'jobs'}; start one with `paceline run`", markup=False)
    else:
        cells = [dict(zip(COLUMNS, _cells(row, time.time()), strict=True)) for row in rows]
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        columns = _fitting(cells, console.width)
        for name in columns:
            right = name in ("done", "samples", "speed", "workers", "age")
            table.add_column(name, no_wrap=True, justify="right" if right else "left")
        for row_cells in cells:
            table.add_row(*(row_cells[name] for name in columns))
        console.print(table)


def _fitting(cells: list[dict[str, str]], width: int) -> list[str]:
    """The columns for which a terminal has room: an id that is cut short is of no use."""
    columns, last = list(COLUMNS), list(DROPPED)
    widths = {name: 2 + max(len(name), *(len(row[name]) for row in cells)) for name in COLUMNS}
    while last and sum(widths[name] for name in columns) > width:
        columns.remove(last.pop(0))
    return columns


def _cells(row: JobRow, now_s: float) -> tuple[str, ...]:
    rate = row.samples_per_s
    return (
        row.job_id,
        row.state,
        percent(row.committed, row.total or 0),
        f"{row.committed:,}" if row.counts else "-",
        speed(rate).replace(" samples", ""),
        str(row.workers or "-"),
        age(now_s - row.started_s),
    )


def _print_shown(shown: Shown, console: Console) -> None:
    """Print what features show of a job."""
    for line in filter(None, (logged(shown.logged), *shown.notes)):
        console.print(f"  {line}", highlight=False, markup=False)


def _print_tables(shown: Shown, console: Console) -> None:
    """Print the tables of features."""
    for table in shown.tables:
        _print_table(table.columns, table.rows, console)


def _node_values(node: NodeStatus) -> dict[str, object]:
    """Return what ``--json`` has of a node."""
    values: dict[str, object] = msgspec.structs.asdict(node)
    del values["shown"]
    return values | NODE_VALUES | node.shown


def show_job_json(job: JobDir) -> None:
    """Print one job in detail, as JSON."""
    outcome = read_outcome(job.outcome)
    status = None if outcome else current_status(job)
    events = read_events(job.events)
    status = status and with_relaunches(status, count_relaunches(events))
    row = msgspec.structs.asdict(make_row(job, outcome, status))
    shown = shown_of(job, status)
    nodes = status.nodes if status else _nodes_last_seen(job, events, row["state"])
    print_json(_detail(row, status, nodes, events, shown))


def show_running_json(row: JobRow, status: JobStatus, events: Sequence[Event]) -> None:
    """Print a job that runs in detail, as JSON."""
    values = msgspec.structs.asdict(row)
    print_json(_detail(values, status, status.nodes, events, shown_in(status)))


def _detail(
    row: dict[str, Any],
    status: JobStatus | None,
    nodes: Sequence[NodeStatus],
    events: Sequence[Event],
    shown: Shown,
) -> JobDetail:
    return JobDetail(
        **row,
        eta_s=status.eta_s if status else None,
        valid_cuts=status.valid_cuts if status else (),
        nodes=tuple(map(_node_values, nodes)),
        events=tuple(event.line() for event in events[-NUM_EVENTS:]),
        logged=shown.logged,
        notes=shown.notes,
        slow=shown.slow,
        relieved=shown.relieved,
    )


def _nodes_last_seen(job: JobDir, events: Sequence[Event], word: str) -> tuple[NodeStatus, ...]:
    """The nodes as they were measured last; ``word``: their state."""
    last, relaunches = read_last_metrics(job.metrics), count_relaunches(events)
    return tuple(
        NodeStatus(
            node=name,
            role=role_of(name),
            state="not known" if word == MASTER_AWAY else "ended",
            restarts=relaunches[name],
            **msgspec.structs.asdict(point),
        )
        for name, point in sorted(last.nodes.items() if last else ())
    )


def show_job(job: JobDir, console: Console) -> None:
    """Print one job in detail."""
    outcome = read_outcome(job.outcome)
    status = None if outcome else current_status(job)
    all_events = read_events(job.events)
    status = status and with_relaunches(status, count_relaunches(all_events))
    events = worth_showing(all_events)[-NUM_EVENTS:]
    if status:
        show_running(status, events, console)
        return
    word = state_of(job, outcome, status)
    console.print(f"{job.job_id}  {word}", style="bold", highlight=False)
    if outcome:
        spec, took = read_spec(job), f"after {seconds(outcome.jct_s)}"
        if spec is None or spec.traits.trains:
            took = f"{progress(outcome.committed, outcome.total)} in {seconds(outcome.jct_s)}"
        console.print(f"  {took}, exit code {outcome.exit_code}", highlight=False)
        if outcome.error:
            console.print(f"  {outcome.error}", highlight=False, markup=False)
    shown = shown_of(job, status)
    _print_shown(shown, console)
    if nodes := _nodes_last_seen(job, all_events, word):
        console.print(node_table(nodes, ALL_ROWS.height, console.width))
    _print_why(job, outcome, all_events, console)
    _print_slow(job.launched_s(), shown, console)
    _print_tables(shown, console)
    _print_events(events, job.launched_s(), console)
    if word == MASTER_AWAY:
        console.print("  its master is being started again; ask again in a moment", highlight=False)
    elif not outcome:
        console.print(f"  go on with `paceline run --resume {job.job_id}`", highlight=False)
    console.print(f"  files: {job.path}", highlight=False, markup=False, soft_wrap=True)


def show_running(status: JobStatus, events: Sequence[Event], console: Console) -> None:
    """Print a job that runs, with these events."""
    console.print(draw(status, events, time.time(), ALL_ROWS._replace(width=console.width)))
    shown = shown_in(status)
    _print_notes(status.nodes, console)
    _print_slow(status.started_s, shown, console)
    _print_tables(shown, console)


def _print_notes(nodes: Sequence[NodeStatus], console: Console) -> None:
    """Print the notes of nodes for which the table has no room, each once."""
    named: dict[str, list[str]] = {}
    for node, note in cut_notes(nodes, console.width):
        named.setdefault(note, []).append(node)
    for note, names in named.items():
        console.print(f"  {', '.join(names)}: {note}", highlight=False, markup=False)


def _print_why(
    job: JobDir, outcome: Outcome | None, events: Sequence[Event], console: Console
) -> None:
    """Print why an ended job was slow, or has its size, where there is something to tell."""
    spec = read_spec(job)
    if spec is None:
        return
    facts = work_out(job, spec, outcome, events, (), launched_s=job.launched_s())
    for sentence in found_about(facts):
        console.print(f"  {sentence}", highlight=False, markup=False)


def _print_events(events: Sequence[Event], launched_s: float, console: Console) -> None:
    """Print what happened in a job, and when after its launch."""
    for event in events:
        at = clock(event.t - launched_s)
        console.print(f"{at:>7}  {event.sentence()}", highlight=False, markup=False)


def _print_slow(launched_s: float, shown: Shown, console: Console) -> None:
    """Nodes and links that are slow, or are well again, and what is done about them."""
    rows = slow_rows((*shown.slow, *shown.relieved), launched_s)
    _print_table(SLOW_COLUMNS, rows, console, wraps=SLOW_COLUMNS[-1])


def _print_table(
    columns: Sequence[str],
    rows: Sequence[tuple[str, ...]],
    console: Console,
    *,
    wraps: str = "",
) -> None:
    """Print a table, if it has any row; ``wraps``: the only column that may be wrapped."""
    if not rows:
        return
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=bool(wraps) and name != wraps)
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(table, highlight=False, markup=False)


def show_observation(job: RunningJob) -> None:
    """Print as JSON the windows, regimes and restart costs as a solution sees them.

    Raises:
        ConfigError: the job does not run, or nobody trains now.
        TransientError: no master answers.
    """
    reply = job.ask(GetObservation())
    assert isinstance(reply, Observed), reply
    if not reply.json:
        raise ConfigError(f"in job {job.job_id} nobody trains now; see `paceline status`")
    sys.stdout.write(msgspec.json.format(reply.json, indent=2) + "\n")
