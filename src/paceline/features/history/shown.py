"""Tables of jobs that have ended, as the history keeps them."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

from paceline.base.errors import ConfigError
from paceline.features.history.book import PastJobs
from paceline.features.history.job import PastJob
from paceline.features.history.place import VARIABLE, HistoryPlace, history_place, place_of
from paceline.jobs.wording import age, clock, seconds, size, speed
from paceline.policy.job_size import JobSize
from paceline.terminal.options import print_json
from paceline.wire.spec import JobSpec

if TYPE_CHECKING:  # it needs the feature `sizes`, which may be missing where jobs are only listed
    from paceline.features.history.policy.warm_start import WarmStart

COLUMNS = ("job", "end", "samples", "speed", "jct", "size", "ended")


def open_history(url: str | None) -> PastJobs:
    """Open the history that a command names; None: the usual one.

    Raises:
        ConfigError: it is no URL of a database, or there is no history.
    """
    return PastJobs(usual_place(url))


def usual_place(url: str | None, spec: JobSpec | None = None) -> HistoryPlace:
    """Find the history that a command names; None: that of a job, or the usual one.

    Raises:
        ConfigError: it is no URL of a database, or there is no history.
    """
    place = history_place(spec) if url is None else place_of(url, "--history")
    if place is None:
        named = "--history" if url else f"history in the spec, or {VARIABLE}"
        raise ConfigError(f"{named}: got off, expected the URL of a database")
    return place


def show_past(jobs: Sequence[PastJob], console: Console, *, now_s: float, as_json: bool) -> None:
    """Print jobs in the order given, as a table or as JSON."""
    if as_json:
        print_json(jobs)
        return
    if not jobs:
        console.print("no job in the history; a job is kept when it ends", markup=False)
        return
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in COLUMNS:
        right = name in ("samples", "speed", "jct", "ended")
        table.add_column(name, no_wrap=True, justify="right" if right else "left")
    for job in jobs:
        rate = f"{job.samples_per_s:,.0f}/s" if job.samples_per_s else "-"
        done = f"{job.samples:,}"
        sizes = " -> ".join(dict.fromkeys((short_size(job.first), short_size(job.final))))
        ended = f"{age(now_s - job.ended_s)} ago"
        table.add_row(job.job_id, str(job.end), done, rate, seconds(job.jct_s), sizes, ended)
    console.print(table)


def show_past_job(job: PastJob, console: Console, *, as_json: bool) -> None:
    """Print one job: a row for each fact that is known."""
    if as_json:
        print_json(job)
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(job):
        table.add_row(name, value)
    console.print(table)


def show_suggestion(found: "WarmStart | None", console: Console, *, as_json: bool) -> None:
    """Print the size that a job would begin with, and where it comes from."""
    if as_json:
        print_json(found)
        return
    if found is None:
        console.print("no finished job in the history is like it", markup=False)
        return
    console.print(f"{long_size(found.size)} (confidence {found.confidence:.2f})", markup=False)
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("from", "distance", "size at its end"):
        table.add_column(name, no_wrap=True)
    for one in found.similar:
        table.add_row(one.job_id, f"{one.distance:.2f}", long_size(one.final))
    console.print(table)


def _rows(job: PastJob) -> Iterator[tuple[str, str]]:
    yield "job", job.job_id
    yield "end", f"{job.end} (exit code {job.exit_code})"
    if job.error:
        yield "error", job.error
    yield "backend", job.backend
    for name, value in msgspec.structs.asdict(job.features).items():
        if value is not None:
            yield name.replace("_", " "), _shown(name, value)
    yield "first size", long_size(job.first)
    for change in job.sizes:
        yield f"from {clock(change.since_launch_s)}", f"{long_size(change.size)}: {change.reason}"
    yield "samples", f"{job.samples:,}"
    if job.samples_per_s:
        yield "speed", speed(job.samples_per_s)
    yield "completion time", f"{seconds(job.jct_s)}, of it training {seconds(job.training_s)}"
    yield "started again", f"{job.relaunches} processes, {job.out_of_memory} ends out of memory"
    yield "restores", str(job.restores)
    for one in job.restarts:
        cured = "cured" if one.cured else "not cured"
        yield f"restart of a {one.role}", f"{one.before:.2f} -> {one.after:.2f} x usual: {cured}"


def _shown(name: str, value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {count:,}" for key, count in value.items())
    if isinstance(value, int):
        return size(value) if name.endswith("_bytes") else f"{value:,}"
    return str(value)


def short_size(size_: JobSize) -> str:
    """``4+2``: four workers and two servers; ``4``: there are no servers."""
    return f"{size_.workers}+{size_.servers}" if size_.servers else str(size_.workers)


def long_size(size_: JobSize) -> str:
    """Say what a job has, with what each node may use."""
    parts = [("worker", size_.workers, size_.worker_cpu, size_.worker_memory)]
    if size_.servers:
        parts.append(("server", size_.servers, size_.server_cpu, size_.server_memory))
    return ", ".join(_nodes(*part) for part in parts)


def _nodes(role: str, count: int, cores: float, num_bytes: int) -> str:
    unit = "core" if cores == 1 else "cores"
    limits = [f"{cores:g} {unit}"] if cores else []
    limits += [size(num_bytes)] if num_bytes else []
    each = f" of {' and '.join(limits)}" if limits else ""
    return f"{count} {role}{'' if count == 1 else 's'}{each}"
