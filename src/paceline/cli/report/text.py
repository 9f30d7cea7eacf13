"""The report for a terminal, and the paragraph at the end of a run."""

from textwrap import indent

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from paceline.cli.report import size_story, slow
from paceline.jobs import checks
from paceline.jobs.curves import last_of
from paceline.jobs.facts import Facts, Incident
from paceline.jobs.outcome import End, Outcome
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

MAX_TOLD = 5
LOGGED_WIDTH = 160


def headline(facts: Facts) -> str:
    """How the job ended."""
    outcome = facts.outcome
    if outcome is None:
        if facts.runs:
            return "running"
        return f"interrupted: all its processes died; `paceline run --resume {facts.job_id}`"
    return f"{outcome.how}: {outcome.error}" if outcome.error else str(outcome.how)


def paragraph(facts: Facts) -> str:
    """The result of a job in a few sentences."""
    slowed = slow.sentence(facts)
    told = (_result(facts), _not_kept(facts), slowed, _troubles(facts, slowed=bool(slowed)))
    return " ".join(filter(None, told))


_ENDED = {
    None: "Not ended",
    End.FINISHED: "Finished",
    End.NOT_TRAINED: "Nothing was trained",
    End.STOPPED_EARLY: "Stopped early by the script",
    End.STOPPED: "Stopped by `paceline stop`",
    End.INTERRUPTED: "Stopped by Ctrl-C",
    End.TERMINATED: "Stopped by SIGTERM",
    End.WARNED: "Stopped by SIGUSR1",
    End.SCRIPT_FAILED: "Failed by an error of the script",
    End.FAILED: "Failed",
}


def _result(facts: Facts) -> str:
    """How the job ended, what it has trained, and what that took."""
    outcome = facts.outcome
    total = outcome.total if outcome else None
    took_s = outcome.jct_s if outcome and outcome.jct_s else facts.ended_s - facts.started_s
    how = outcome.how if outcome else None
    ended, took = _ENDED[how], seconds(took_s)
    if not facts.spec.traits.trains:
        return f"{ended} after {took}."
    if outcome is not None and how is End.NOT_TRAINED:
        loop = "ran no loop over job.batches" if outcome.joined else "never called pl.init()"
        return f"{ended}: the script {loop}; it returned after {took}."
    trained, rate = progress(facts.committed, total), speed(facts.samples_per_s)
    training = f"{seconds(facts.training_s)} of it training ({rate})"
    if how in (None, End.FINISHED):
        return f"{ended}: {trained} in the model after {took}, {training}."
    if not facts.committed:
        return f"{ended} after {took}, with {trained} in the model."
    return f"{ended} after {trained}, in {took}, {training}."


def _not_kept(facts: Facts) -> str:
    """What of the model is lost with the job's processes."""
    outcome = facts.outcome
    if outcome is None or outcome.kept is None or outcome.kept >= outcome.committed:
        return ""
    return f"No cut on disk holds the last {outcome.committed - outcome.kept:,} of them."


def _troubles(facts: Facts, *, slowed: bool) -> str:
    if not facts.incidents:
        well = facts.outcome is not None and facts.outcome.how is End.FINISHED and not slowed
        return "Nothing went wrong." if well else ""
    told = [describe(incident, facts.started_s) for incident in facts.incidents[:MAX_TOLD]]
    more = len(facts.incidents) - MAX_TOLD
    told += [f"{more} more in the report"] if more > 0 else []
    counts = f"{facts.num_relaunches} {'relaunch' if facts.num_relaunches == 1 else 'relaunches'}"
    if facts.spec.traits.trains:
        counts += f", {counted(facts.num_restores, 'restore')}"
    return f"{counts}: {'; '.join(told)}."


def describe(incident: Incident, started_s: float) -> str:
    """One incident in a clause."""
    cost = costs(incident)
    what = f"at {clock(incident.t - started_s)} {incident.what}, {incident.done}"
    return f"{what} ({', '.join(cost)})" if cost else what


def costs(incident: Incident) -> list[str]:
    """What an incident cost, as far as it was measured."""
    found = []
    if incident.away_s is not None:
        found.append(f"back after {seconds(incident.away_s)}")
    if incident.idle_s is not None:
        found.append(f"had samples again within {seconds(incident.idle_s)}")
    if incident.stalled_s is not None:
        # Counts are taken once per second: they may have grown up to a second earlier.
        found.append(f"the job went on within {seconds(incident.stalled_s)}")
    if incident.undone:
        found.append(f"{incident.undone:,} samples trained again")
    return found


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
            ("relaunches of all workers", str(facts.num_relaunches)),
        ]
    return [
        ("result", headline(facts)),
        ("script", " ".join((spec.script, *spec.args))),
        ("asked for", f"{sizes}, mode {mode}, {spec.samples}, backend {spec.backend}"),
        ("job completion time", _completed(facts)),
        ("of it training", seconds(facts.training_s)),
        ("samples in the model", progress(facts.committed, outcome.total if outcome else None)),
        ("throughput", f"{speed(facts.samples_per_s)} (mean over the training)"),
        ("relaunches", str(facts.num_relaunches)),
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
INCIDENT_COLUMNS = ("at", "what went wrong", "what was done", "what it cost")


def incident_rows(facts: Facts) -> list[tuple[str, ...]]:
    """Per incident: when, what, what was done, what it cost."""
    return [
        (clock(i.t - facts.started_s), i.what, i.done, "; ".join(costs(i)) or "-")
        for i in facts.incidents
    ]


DECISION_COLUMNS = ("at", "decided against stragglers", "why", "what came of it")


def decision_rows(facts: Facts) -> list[tuple[str, ...]]:
    """Per action: when, what, why, what came of it."""
    return [
        (
            clock(story.t - facts.started_s),
            story.what,
            "; ".join(filter(None, (story.seen, story.rule))),
            "; ".join(filter(None, (story.became, story.outcome))) or "-",
        )
        for story in facts.decisions
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
    if facts.decisions:
        _table(console, DECISION_COLUMNS, decision_rows(facts))
    if changes := size_story.table_rows(facts):
        _table(console, size_story.COLUMNS, changes)
    if slowed := slow.rows(facts):
        _table(console, slow.COLUMNS, slowed)
    elif well := slow.well(facts):
        console.print(f"\n  {well}", highlight=False)
    _table(console, WORKER_COLUMNS, worker_rows(facts))
    if checked := checks.rows(facts.events):
        _table(console, checks.COLUMNS, checked)


def _table(console: Console, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    # Nothing is padded at the right edge: so the row of a killed worker fits the width of a pipe.
    table = Table(box=None, header_style="dim", padding=(0, 4, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(Padding(table, (0, 0, 0, 2), expand=False), highlight=False, markup=False)
