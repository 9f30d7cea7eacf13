"""Whether a script that trains on its own is slow, since when, why, and what was advised."""

import io
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from paceline.base.jobdir import JobDir
from paceline.features.failslow.cures import cures_of, stories
from paceline.features.failslow.events import (
    ComparedPart,
    DiagnosedEvent,
    FollowsEvent,
    StartUnseenEvent,
    read,
)
from paceline.features.failslow.slowness import FailSlowEvent, colour_of, slownesses
from paceline.jobs.history import read_events, read_last_metrics
from paceline.jobs.listing import read_spec
from paceline.jobs.slowness import headline
from paceline.jobs.wording import clock, counted
from paceline.wire.events.base import Event

WHAT = {
    "computing": "its own part of a step",
    "product": "a matrix product",
    "link": "a transfer between two",
}
Told = FailSlowEvent | StartUnseenEvent | FollowsEvent


def is_script(job: JobDir) -> bool:
    """Whether the job's script trains on its own."""
    spec = read_spec(job) if job.spec.exists() else None
    return spec is not None and not spec.traits.trains


def tell_script(job: JobDir, console: Console) -> None:
    """Say what was found out about a script's pace."""
    head, *lines = _story(job)
    console.print(head, style="bold", highlight=False, markup=False, soft_wrap=True)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for table in _tables_of(job):
        console.print(table)


def explain(job: JobDir, tell: Callable[[Sequence[str | tuple[str, str]]], object]) -> None:
    """Tell what was slow in a script, and what the planner did about it."""
    if not is_script(job):
        return
    tables = Console(file=io.StringIO(), color_system=None)
    for table in _tables_of(job):
        tables.print(table)
    assert isinstance(tables.file, io.StringIO)
    tell((*_story(job), *tables.file.getvalue().splitlines()))
    if lines := cures_of(job):
        head = f"{job.job_id}: the planner for scripts"
        tell((head, f"  {counted(len(lines), 'decision')} written"))
        for story in stories(lines, job.launched_s()):
            tell(story)


def _story(job: JobDir) -> list[str]:
    """Write a heading about a script's pace, and a line for each event."""
    events, launched_s = read(read_events(job.events)), job.launched_s()
    told = [event for event in events if isinstance(event, Told)]
    lines = [f"  {clock(event.t - launched_s):>7}  {event.sentence()}" for event in told]
    return [_headline(job, events), *lines]


def _tables_of(job: JobDir) -> list[Table]:
    """Tables of the newest diagnosis."""
    events = read(read_events(job.events))
    diagnosed = [one for one in events if isinstance(one, DiagnosedEvent) and one.parts]
    return _tables(diagnosed[-1].parts) if diagnosed else []


def _headline(job: JobDir, events: Sequence[Event]) -> str:
    if found := slownesses(events):
        last = found[-1]
        if last.until_s is None:
            return f"{job.job_id}: {headline(last.parts, job.launched_s())}"
        if last.unseen_end:
            at = clock(last.until_s - job.launched_s())
            return (
                f"{job.job_id}: slow until {at}, when {last.unseen_end}; since then steps are "
                "compared with those after that"
            )
        return f"{job.job_id}: well again"
    metrics = read_last_metrics(job.metrics)
    steps = max((node.step for node in metrics.nodes.values()), default=0) if metrics else 0
    if not steps:
        return f"{job.job_id}: no step was seen so far, so nothing is known"
    return f"{job.job_id}: no slowness was found in {steps:,} steps"


def _tables(parts: Sequence[ComparedPart]) -> list[Table]:
    found = []
    for what, title in WHAT.items():
        rows = [part for part in parts if part.what == what]
        if not rows:
            continue
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for heading in ("", "at the start", "when it was slow", ""):
            table.add_column(heading, justify="left" if not heading else "right")
        for part in rows:
            table.add_row(" - ".join(part.nodes), *_values(part))
        found.append(table)
    return found


def _values(part: ComparedPart) -> tuple[str, str, str]:
    # Only of a step are the seconds of interest: the other times are of no fixed amount.
    now = f"{part.now_s * 1e3:.3g} ms" if part.what == "computing" else ""
    if not part.start_s or part.ratio is None:
        return "-", now, ""
    ratio, colour = part.ratio, colour_of(part.ratio)
    start = f"{part.start_s * 1e3:.3g} ms" if part.what == "computing" else ""
    return start, now, f"[{colour}]{ratio:.2f} times[/]"
