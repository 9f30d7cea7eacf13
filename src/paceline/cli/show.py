"""``paceline status`` and ``logs``: what is there to be seen of jobs, running or ended."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console, ConsoleDimensions
from rich.table import Table

from paceline.base.errors import ConfigError, PacelineError
from paceline.base.jobdir import JobDir, home, role_of
from paceline.cli import checks
from paceline.cli.history import Event, Tail, read_events, read_last_metrics, sentence
from paceline.cli.launch import ask, ask_running, is_supervised
from paceline.cli.live import draw, node_table
from paceline.cli.wording import clock, percent, progress, speed
from paceline.wire import spec as specs
from paceline.wire.client import GetObservation, GetStatus, JobStatus, NodeStatus, Observed
from paceline.wire.outcome import Outcome, read_outcome
from paceline.wire.spec import JobSpec

ASK_S = 2.0
FOLLOW_S = 0.3
NUM_EVENTS = 10
ALL_ROWS = ConsoleDimensions(80, 10_000)
COLUMNS = ("job", "state", "done", "samples", "speed", "workers", "started")


def all_jobs() -> list[JobDir]:
    """All jobs of this user, the oldest first."""
    found = (home() / "jobs").glob("*/job.json")
    return [JobDir(path.parent) for path in sorted(found, key=lambda p: p.stat().st_mtime_ns)]


def current_status(job: JobDir) -> JobStatus | None:
    """What the master says; None: nobody answers."""
    try:
        reply = ask(job, GetStatus(), ASK_S)
    except (PacelineError, FileNotFoundError):
        return None
    return reply if isinstance(reply, JobStatus) else None


def state_of(job: JobDir, outcome: Outcome | None, status: JobStatus | None) -> str:
    """One word or two."""
    if outcome:
        return str(outcome.how) if outcome.state == "finished" else outcome.state
    if status:
        return status.state
    return "master away" if is_supervised(job) else "interrupted"


# --------------------------------------------------------------------------- status


def show_jobs(console: Console) -> None:
    """A table of all jobs."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in COLUMNS:
        right = name in ("done", "samples", "speed", "workers")
        table.add_column(name, no_wrap=True, justify="right" if right else "left")
    jobs = all_jobs()
    for job in jobs:
        table.add_row(*_job_row(job))
    if jobs:
        console.print(table)
    else:
        console.print(f"no job in {home() / 'jobs'}; start one with `paceline run`", markup=False)


def _job_row(job: JobDir) -> tuple[str, ...]:
    outcome = read_outcome(job.outcome)
    status = None if outcome else current_status(job)
    started = time.strftime("%d %b %H:%M", time.localtime(job.spec.stat().st_mtime))
    committed, total = _counts(job, outcome, status)
    spec = _spec(job)
    if status:
        rate, workers = status.samples_per_s, sum(n.role == "worker" for n in status.nodes)
    else:
        jct_s = outcome.jct_s if outcome else 0.0
        rate, workers = (committed / jct_s if jct_s else 0.0), spec.workers.count if spec else 0
    return (
        job.job_id,
        state_of(job, outcome, status),
        percent(committed, total or 0),
        "-" if spec and spec.strategy == "script" else f"{committed:,}",
        speed(rate).removesuffix(" samples/s") + "/s" if rate else "-",
        str(workers or "-"),
        started,
    )


def _counts(
    job: JobDir, outcome: Outcome | None, status: JobStatus | None
) -> tuple[int, int | None]:
    if outcome:
        return outcome.committed, outcome.total
    if status:
        return status.committed, status.total
    last = read_last_metrics(job.metrics)
    return (last.committed if last else 0), None


def _spec(job: JobDir) -> JobSpec | None:
    try:
        return specs.load(job.spec)
    except PacelineError:
        return None  # of another version: still a job to be listed


def show_job(job: JobDir, console: Console) -> None:
    """One job in detail."""
    outcome = read_outcome(job.outcome)
    status = None if outcome else current_status(job)
    all_events = read_events(job.events)
    events = all_events[-NUM_EVENTS:]
    if status:
        console.print(draw(status, events, time.time(), ALL_ROWS._replace(width=console.width)))
        _print_checks(all_events, console)
        return
    console.print(f"{job.job_id}  {state_of(job, outcome, status)}", style="bold", highlight=False)
    if outcome:
        spec, took = _spec(job), f"after {clock(outcome.jct_s)}"
        if spec is None or spec.strategy != "script":
            took = f"{progress(outcome.committed, outcome.total)} in {clock(outcome.jct_s)}"
        console.print(f"  {took}, exit code {outcome.exit_code}", highlight=False)
        if outcome.error:
            console.print(f"  {outcome.error}", highlight=False, markup=False)
    last = read_last_metrics(job.metrics)
    if last:
        nodes = tuple(
            NodeStatus(
                node=name,
                role=role_of(name),
                state="ended",
                **msgspec.structs.asdict(point),
            )
            for name, point in sorted(last.nodes.items())
        )
        console.print(node_table(nodes, ALL_ROWS.height, console.width))
    _print_checks(all_events, console)
    for event in events:
        at = time.strftime("%H:%M:%S", time.localtime(event.t))
        console.print(f"  {at}  {sentence(event)}", highlight=False, markup=False)
    if not outcome:
        console.print(f"  go on with `paceline run --resume {job.job_id}`", highlight=False)
    console.print(f"  files: {job.path}", highlight=False, markup=False, soft_wrap=True)


def _print_checks(events: list[Event], console: Console) -> None:
    """What the nodes' checks found before the first step."""
    if rows := checks.rows(events):
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for name in checks.COLUMNS:
            table.add_column(name)
        for row in rows:
            table.add_row(*row)
        console.print()
        console.print(table, highlight=False, markup=False)


def show_observation(job: JobDir) -> None:
    """JSON to stdout: windows, regimes and restart costs as a solution sees them.

    Raises:
        ConfigError: the job does not run, or nobody trains now.
        TransientError: no master answers.
    """
    reply = ask_running(job, GetObservation())
    assert isinstance(reply, Observed), reply
    if not reply.json:
        raise ConfigError(f"in job {job.job_id} nobody trains now; see `paceline status`")
    sys.stdout.write(msgspec.json.format(reply.json, indent=2) + "\n")


# --------------------------------------------------------------------------- logs


def show_logs(job: JobDir, node: str | None, *, follow: bool) -> None:
    """Print logs, and go on while the job runs if asked to.

    Raises:
        ConfigError: no log of that name.
    """
    if node and not (job.logs / f"{node}.log").exists():
        there = ", ".join(path.stem for path in _logs(job)) or "none"
        raise ConfigError(f"no log of {node!r} in job {job.job_id}; there are: {there}")
    tails: dict[Path, Tail] = {}
    while True:
        # Before the reading: what is written before the end is read after it.
        goes_on = follow and not job.outcome.exists() and is_supervised(job)
        paths = [job.logs / f"{node}.log"] if node else _logs(job)
        for path in paths:
            for line in tails.setdefault(path, Tail(path)).lines():
                prefix = "" if node else f"{path.stem} | "
                print(f"{prefix}{line.decode(errors='replace')}")
        sys.stdout.flush()
        if not goes_on:
            return
        time.sleep(FOLLOW_S)


def _logs(job: JobDir) -> list[Path]:
    return sorted(_all_logs(job), key=lambda path: (not path.stem.startswith("worker"), path.stem))


def _all_logs(job: JobDir) -> Iterator[Path]:
    return job.logs.glob("*.log")
