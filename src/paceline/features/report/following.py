"""A job as its files and its master show it, read as they grow."""

import os
from pathlib import Path

from msgspec import structs

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.base.processes import is_locked
from paceline.features.report.content import LogTail, Page, page_of
from paceline.jobs.curves import Curves, decode_curves
from paceline.jobs.facts import Facts, work_out
from paceline.jobs.history import MetricsPoint, Tail, decode_metrics
from paceline.jobs.jsonl import before
from paceline.jobs.listing import current_status
from paceline.jobs.outcome import Outcome, read_outcome
from paceline.jobs.relaunches import count_relaunches, with_relaunches
from paceline.wire import spec as specs
from paceline.wire.client import JobStatus
from paceline.wire.events.lines import AnyEvent, decode_events

TAIL_BYTES = 16 << 10
TAIL_LINES = 40
MOST_LOGS = 8
"""Most logs whose newest lines are shown: those that were written to last."""
CUT_OFF = ".1"
"""Ends the stem of what is kept of a log that became too long."""


class FollowedJob:
    """Reads what was added to a job's files since it looked last."""

    def __init__(self, job: JobDir) -> None:
        self._job = job
        self._spec = specs.load(job.spec)
        self._events: list[AnyEvent] = []
        self._event_tail = Tail(job.events)
        self._points: list[MetricsPoint] = decode_metrics(Tail(before(job.metrics)).lines())
        self._point_tail = Tail(job.metrics)
        self._curves, self._curve_tail, self._curve_file = Curves(), Tail(job.curves), 0

    def look(self) -> Page:
        """Return the job's page as of now.

        Raises:
            PacelineError, OSError: the job was removed, or its files cannot be read.
        """
        return page_of(self.facts(), self._status, log_tails(self._job))

    def facts(self) -> Facts:
        """Return what is known of the job now."""
        outcome = read_outcome(self._job.outcome)
        status = None if outcome else current_status(self._job)
        self._events += decode_events(self._event_tail.lines())
        self._status = status and with_relaunches(status, count_relaunches(self._events))
        self._points += decode_metrics(self._point_tail.lines())
        self._read_curves()
        return self._work_out(outcome)

    _status: JobStatus | None = None

    def _work_out(self, outcome: Outcome | None) -> Facts:
        job = self._job
        facts = work_out(
            job, self._spec, outcome, self._events, self._points, launched_s=job.launched_s()
        )
        stacks = sorted((path.stem, path.read_text()) for path in job.logs.glob("*.stacks"))
        runs = outcome is None and is_locked(job.supervisor_lock)
        return structs.replace(facts, stacks=tuple(stacks), runs=runs, curves=self._curves.points)

    def _read_curves(self) -> None:
        """Read what was logged since; all of it, if the file was thinned out."""
        try:
            file_no = self._job.curves.stat().st_ino
        except FileNotFoundError:
            return
        if file_no != self._curve_file:
            self._curves, self._curve_tail = Curves(), Tail(self._job.curves)
            self._curve_file = file_no
        decode_curves(self._curve_tail.lines(), self._curves)


def log_tails(job: JobDir) -> tuple[LogTail, ...]:
    """Read the newest lines of the logs of a job's nodes."""
    found = [path for path in job.logs.glob("*.log") if not path.stem.endswith(CUT_OFF)]
    try:
        newest = sorted(found, key=lambda path: path.stat().st_mtime)[-MOST_LOGS:]
    except FileNotFoundError:  # it is being put aside
        newest = found[-MOST_LOGS:]
    shown = sorted(newest, key=lambda path: (not path.stem.startswith("worker"), path.stem))
    return tuple(LogTail(node=_readable(path.stem), lines=_last_lines(path)) for path in shown)


def _readable(name: str) -> str:
    """A name without bytes that are no text, which no page could hold."""
    return os.fsencode(name).decode(errors="replace")


def _last_lines(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ()
    # The first line may have lost its beginning; a progress bar rewrites its line.
    lines = text.splitlines()[1 if size > TAIL_BYTES else 0 :]
    return tuple(line.rpartition("\r")[2] for line in lines[-TAIL_LINES:])


def find_job(job_id: str) -> JobDir:
    """Find a job of this user by its whole id.

    Raises:
        PacelineError: there is none.
    """
    found = next((job for job in JobDir.all() if job.job_id == job_id), None)
    if found is None:
        raise PacelineError(f"there is no job {job_id}")
    return found
