"""``paceline failslow``: whether a script that trains on its own is slow, since when, and why."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from paceline.base.jobdir import JobDir
from paceline.jobs.history import read_events, read_last_metrics
from paceline.jobs.listing import read_spec
from paceline.jobs.slowness import FailSlowEvent, colour_of, headline, slownesses
from paceline.jobs.wording import clock
from paceline.wire.events.base import Event
from paceline.wire.events.failslow import (
    ComparedPart,
    DiagnosedEvent,
    FollowsEvent,
    StartUnseenEvent,
)

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
    events, launched_s = read_events(job.events), job.launched_s()
    told = [event for event in events if isinstance(event, Told)]
    head = _headline(job, events)
    console.print(head, style="bold", highlight=False, markup=False, soft_wrap=True)
    for event in told:
        at = clock(event.t - launched_s)
        console.print(f"  {at:>7}  {event.sentence()}", highlight=False, markup=False)
    diagnosed = [event for event in told if isinstance(event, DiagnosedEvent) and event.parts]
    if diagnosed:
        for table in _tables(diagnosed[-1].parts):
            console.print(table)


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
