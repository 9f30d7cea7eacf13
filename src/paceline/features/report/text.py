"""The report for a terminal."""

from collections.abc import Sequence
from textwrap import indent

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from paceline.jobs.curves import last_of
from paceline.jobs.facts import Facts
from paceline.jobs.in_words import headline
from paceline.jobs.incidents import costs
from paceline.jobs.outcome import Outcome
from paceline.jobs.sections import Section, sections_of
from paceline.jobs.wording import (
    clock,
    counted,
    logged,
    milliseconds,
    percent,
    progress,
    seconds,
    speed,
)
from paceline.wire.events.job import ScaledEvent
from paceline.wire.events.state import CutValidEvent

LOGGED_WIDTH = 160


def figures(facts: Facts) -> list[tuple[str, str]]:
    """The job in numbers: (name, value)."""
    spec, outcome = facts.spec, facts.outcome
    mode = f"{spec.mode} (staleness {spec.staleness})" if spec.mode == "ssp" else spec.mode
    sizes = _asked_for(facts, "worker", spec.workers.count)
    sizes += (
        f", {_asked_for(facts, 'server', spec.num_servers)}"
        if spec.num_servers
        else f", {spec.strategy}"
    )
    if not spec.traits.trains:
        return [
            ("result", headline(facts)),
            ("script", " ".join((spec.script, *spec.args))),
            ("asked for", f"{sizes}, backend {spec.backend}"),
            ("job completion time", _completed(facts)),
            ("restarts of all workers", str(facts.num_relaunches)),
        ]
    return [
        ("result", headline(facts)),
        ("script", " ".join((spec.script, *spec.args))),
        ("asked for", f"{sizes}, mode {mode}, {spec.samples}, backend {spec.backend}"),
        ("job completion time", _completed(facts)),
        ("of it training", seconds(facts.training_s)),
        ("samples in the model", progress(facts.committed, outcome.total if outcome else None)),
        ("throughput", f"{speed(facts.samples_per_s)} (mean over the training)"),
        ("restarts", str(facts.num_relaunches)),
        ("restores from a cut", str(facts.num_restores)),
        ("valid cuts made", str(sum(isinstance(event, CutValidEvent) for event in facts.events))),
        *_short_steps(outcome),
        *_logged(facts),
    ]


def _asked_for(facts: Facts, role: str, first: int) -> str:
    """``2 workers``, ``2 workers, then 3``: a resume and `paceline scale` may ask for others."""
    scaled = [one for one in facts.events if isinstance(one, ScaledEvent) and not one.host]
    last = next((one.count for one in reversed(scaled) if one.role == role), first)
    return counted(first, role) + (f", then {last}" if last != first else "")


def _completed(facts: Facts) -> str:
    if facts.outcome:
        return seconds(facts.outcome.jct_s)
    return f"{seconds(facts.ended_s - facts.started_s)} so far"


def _short_steps(outcome: Outcome | None) -> list[tuple[str, str]]:
    if outcome is None or not outcome.short_steps:
        return []
    told = f"{outcome.short_steps:,} ({outcome.left_out:,} samples came later in their epoch)"
    return [("steps declared short", told)]


def _logged(facts: Facts) -> list[tuple[str, str]]:
    last = [last_of(name, points[-1]) for name, points in facts.curves.items() if points]
    return [("logged last", logged(last, LOGGED_WIDTH))] if last else []


def worker_rows(facts: Facts) -> list[tuple[str, ...]]:
    """Per worker: name, lives, samples, share, batch time, wait for data, cpu time."""
    handed = sum(worker.samples for worker in facts.workers)
    return [
        (
            worker.node,
            str(worker.lives),
            f"{worker.samples:,}" if worker.samples else "-",
            percent(worker.samples, handed),
            milliseconds(worker.bpt_s),
            milliseconds(worker.data_s),
            f"{worker.cpu_s:,.1f} s",
        )
        for worker in facts.workers
    ]


WORKER_COLUMNS = ("worker", "lives", "samples", "share", "batch (median)", "data wait", "cpu time")
INCIDENT_COLUMNS = ("at", "what happened", "what was done", "what it cost")


def incident_rows(facts: Facts) -> list[tuple[str, ...]]:
    """Per incident: when, what, what was done, what it cost."""
    return [
        (clock(i.t - facts.started_s), i.what, i.done, "; ".join(costs(i)) or "-")
        for i in facts.incidents
    ]


def show(facts: Facts, console: Console) -> None:
    """Print the report."""
    console.print(facts.job_id, style="bold", highlight=False)
    if facts.outcome is not None and facts.outcome.traceback:
        trace = facts.outcome.traceback.rstrip()
        console.print(indent(trace, "    "), highlight=False, markup=False, soft_wrap=True)
    grid = Table.grid(padding=(0, 2))
    for name, value in figures(facts):
        grid.add_row(f"  {name}", value)
    console.print(grid, highlight=False, markup=False)
    if facts.incidents:
        _table(console, INCIDENT_COLUMNS, incident_rows(facts))
    for node, stacks in facts.stacks:
        console.print(f"\n  what the threads of {node} did when it hung", highlight=False)
        console.print(indent(stacks.rstrip(), "    "), highlight=False, markup=False)
    sections = sections_of(facts)
    for section in sections:
        if not section.ends:
            _show_section(console, section)
    _table(console, WORKER_COLUMNS, worker_rows(facts))
    for section in sections:
        if section.ends:
            _show_section(console, section)


def _show_section(console: Console, section: Section) -> None:
    if section.line:
        console.print(f"\n  {section.line}", highlight=False, markup=False)
    if section.rows:
        _table(console, section.columns, section.rows)


def _table(console: Console, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    # Nothing is padded at the right edge: so the row of a killed worker fits the width of a pipe.
    table = Table(box=None, header_style="dim", padding=(0, 4, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(Padding(table, (0, 0, 0, 2), expand=False), highlight=False, markup=False)
