"""The page of all jobs: those of this user, what waits in queues, and those of the past."""

import time
from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from paceline.base.errors import PacelineError
from paceline.base.features import call_parts
from paceline.base.jobdir import JobDir, home
from paceline.features.report.content import Page, PageBlock, table_as_html
from paceline.jobs.listing import JobRow, read_rows
from paceline.jobs.overview import OverviewTable
from paceline.jobs.wording import age, clock, percent, speed

MOST_JOBS = 500
"""Most jobs on the page: the newest."""
BAD = ("failed", "interrupted", "unreadable", "script failed")


class AllJobs:
    """Reads all jobs; those that have ended only once."""

    def __init__(self) -> None:
        self._ended: dict[str, JobRow] = {}

    def look(self) -> Page:
        """Return the page as of now."""
        jobs = JobDir.all()[: -MOST_JOBS - 1 : -1]
        fresh = [job for job in jobs if not self._is_known(job)]
        rows = {row.job_id: row for row in _readable(fresh)}
        self._ended = {job.job_id: self._ended[job.job_id] for job in jobs if self._is_known(job)}
        self._ended |= {row.job_id: row for row in rows.values() if row.ended_s is not None}
        found = self._ended | rows
        shown = [found[job.job_id] for job in jobs if job.job_id in found]
        lost = len(jobs) - len(shown)
        more = f", {lost} cannot be read" if lost else ""
        running = sum(row.exit_code is None and row.state not in BAD for row in shown)
        return Page(
            title="paceline",
            state=f"{len(shown)} jobs in {home() / 'jobs'}, {running} running{more}",
            blocks=(
                PageBlock(name="jobs", html=_jobs(shown)),
                *(_table(at, one) for at, one in enumerate(_tables())),
            ),
        )

    def _is_known(self, job: JobDir) -> bool:
        """Whether a job ended before, and was not resumed since."""
        row = self._ended.get(job.job_id)
        try:
            return row is not None and job.outcome.stat().st_mtime == row.ended_s
        except FileNotFoundError:
            return False


def _readable(jobs: Sequence[JobDir]) -> list[JobRow]:
    """Read the rows of jobs, but of those that cannot be read."""
    try:
        return read_rows(jobs)
    except (PacelineError, OSError):
        half = len(jobs) // 2
        return [*_readable(jobs[:half]), *_readable(jobs[half:])] if half else []


def _tables() -> list[OverviewTable]:
    """Collect what features tell of more than one job."""
    found: list[OverviewTable] = []

    def add(table: OverviewTable) -> None:
        if not isinstance(table, OverviewTable):
            raise TypeError(f"{table!r:.100} is no paceline.jobs.overview.OverviewTable")
        found.append(table)

    call_parts("overview", add)
    return found


def _table(at: int, one: OverviewTable) -> PageBlock:
    line = f"<p>{escape(one.line)}</p>" if one.line else ""
    table = table_as_html(one.columns, one.rows, "jobs") if one.rows else ""
    return PageBlock(name=f"table-{at}", html=f"<h2>{escape(one.title)}</h2>{line}{table}")


def _jobs(rows: Sequence[JobRow]) -> str:
    if not rows:
        return "<p>No job so far; start one with <code>paceline run train.py</code>.</p>"
    names = ("", "job", "state", "done", "samples", "speed", "workers", "took", "begun", "")
    head = "".join(f"<th scope=col>{name}</th>" for name in names)
    body = "".join(_row(row, time.time()) for row in rows)
    return f'<div class="scroll"><table class="jobs"><tr>{head}</tr>{body}</table></div>'


def _row(row: JobRow, now_s: float) -> str:
    job_id, total = escape(row.job_id), row.total or 0
    chosen = (
        f'<input type="checkbox" value="{job_id}" data-focus="{job_id}" '
        f'aria-label="compare {job_id}">'
    )
    kind = "bad" if row.state in BAD else ""
    done = ""
    if total:
        share = min(100.0, 100 * row.committed / total)
        done = (
            f'<div class="bar" title="{percent(row.committed, total)}">'
            f'<i style="width:{share:.0f}%"></i></div>'
        )
    took = clock(row.jct_s if row.jct_s is not None else now_s - row.started_s)
    cells = (
        chosen,
        f'<a href="/jobs/{quote(row.job_id)}">{job_id}</a>',
        f'<span class="{kind}">{escape(row.state)}</span>',
        done,
        f"{row.committed:,}" if row.counts else "-",
        speed(row.samples_per_s).replace(" samples", ""),
        str(row.workers or "-"),
        took,
        f"{age(now_s - row.started_s)} ago",
    )
    error = f'<td class="error">{escape(row.error)}</td>'
    return f"<tr data-job>{''.join(f'<td>{cell}</td>' for cell in cells)}{error}</tr>"
