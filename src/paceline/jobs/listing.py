"""Rows of all jobs of this user: what tables show people and ``--json`` shows programs."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct
from msgspec.structs import replace

from paceline.base import features
from paceline.base.errors import ConfigError, PacelineError
from paceline.base.jobdir import JobDir, role_of
from paceline.jobs.history import read_last_metrics
from paceline.jobs.launch import ask, is_supervised
from paceline.jobs.outcome import ENDS, End, Outcome, read_outcome
from paceline.wire import spec as specs
from paceline.wire.client import (
    GetStatus,
    JobStatus,
    Shown,
    sound,
    together,
)
from paceline.wire.spec import JobSpec
from paceline.wire.strategies import STRATEGIES

ASK_S = 2.0
MAX_ASKED = 64
"""Jobs that are read at the same time."""
UNREADABLE = "unreadable"
"""The state of a job whose ``outcome.json`` is damaged or of another version."""


MASTER_AWAY = "master away"
"""The state of a job that lives, and whose master does not answer now."""


class JobRow(Struct, frozen=True, kw_only=True):
    """One job. Its names are those of ``--json``: they stay."""

    job_id: str
    state: str
    """State of the job, as `state_of` returns it."""
    exit_code: int | None
    """None: the job has not ended."""
    error: str
    name: str | None
    """None, as below: the spec is of another version."""
    strategy: str | None
    script: str | None
    workers: int | None
    servers: int | None
    committed: int
    """Samples in the model."""
    total: int | None
    """Samples of all epochs; None: not known."""
    samples_per_s: float | None
    """Mean over the last seconds, of an ended job over its training; None: not known."""
    started_s: float
    """Unix time of its launch."""
    ended_s: float | None
    jct_s: float | None
    """Seconds from the job's launch to its end, interruptions included; None: no outcome."""
    path: str
    """Directory of the job; of a job that ``--job`` names: empty, none is here."""

    @property
    def counts(self) -> bool:
        """Whether paceline counts the job's samples."""
        row = STRATEGIES.get(self.strategy or "")
        return row is None or row.trains


class JobSelection(Struct, frozen=True, kw_only=True):
    """A choice of the jobs that are listed."""

    state: str | None = None
    """State as in `state_of`, or ``running`` for every job that has not ended; None: any."""
    name: str | None = None
    """Beginning of the jobs' names; None: any."""
    last: int | None = None
    """Number of jobs that are listed at most, the newest; None: all."""


RUNNING = "running"
OVER = ("interrupted", UNREADABLE)
"""States without an outcome in which nothing runs."""
LIVE = ("starting", "forming", "training", "restoring", "running", "stopping", MASTER_AWAY)
"""States of a job that has not ended."""


def listed(wanted: JobSelection) -> list[JobRow]:
    """The jobs that fit, the newest first.

    Raises:
        ConfigError: no job can be in that state; names those in which jobs are.
    """
    jobs = [job for job in reversed(JobDir.all()) if job.job_id.startswith(wanted.name or "")]
    if wanted.state is None:
        return read_rows(jobs[: wanted.last])
    rows = read_rows(jobs)
    found = [row for row in rows if _is_in(row, wanted.state)]
    states = sorted({row.state for row in rows})
    if not found and states and wanted.state not in (*LIVE, *OVER, *map(str, End), *_ENDED):
        raise ConfigError(
            f"--state: no job is {wanted.state!r}; there are: {', '.join(states)}, and {RUNNING} "
            "for all that have not ended"
        )
    return found[: wanted.last]


_ENDED = {row.state for row in ENDS.values() if row.state}


def _is_in(row: JobRow, state: str) -> bool:
    runs = row.exit_code is None and row.state not in OVER
    return runs if state == RUNNING else row.state == state


def current_status(job: JobDir) -> JobStatus | None:
    """Return what the master says; None: nobody answers."""
    try:
        reply = ask(job, GetStatus(), ASK_S)
    except (PacelineError, FileNotFoundError):
        return None
    return reply if isinstance(reply, JobStatus) else None


def shown_in(status: JobStatus) -> Shown:
    """Return what features show of a job in its status."""
    return Shown(
        logged=status.logged,
        notes=status.notes,
        tables=status.tables,
        slow=status.slow,
        relieved=status.relieved,
    )


def shown_of(job: JobDir, status: JobStatus | None) -> Shown:
    """Return what features show of a job."""
    if status is not None:
        return shown_in(status)
    shown: list[Shown] = []
    for name, show in features.parts_of("shown", features.say_failed):
        try:
            shown.append(sound(show(job)))
        except Exception as error:  # noqa: BLE001 - a feature may be of any package
            features.say_failed(name, error)
    return together(shown)


def end_of(outcome: Outcome) -> str:
    """Say how a job has ended, in one word or two."""
    return str(outcome.how) if outcome.state == "finished" else outcome.state


def state_of(job: JobDir, outcome: Outcome | None, status: JobStatus | None) -> str:
    """Say in one word or two how a job is."""
    if outcome:
        return end_of(outcome)
    if status:
        return status.state
    return MASTER_AWAY if is_supervised(job) else "interrupted"


def read_spec(job: JobDir) -> JobSpec | None:
    """Return what was asked for; None: it is of another version, and still a job to be listed."""
    try:
        return specs.load(job.spec)
    except PacelineError:
        return None


def read_rows(jobs: Sequence[JobDir]) -> list[JobRow]:
    """Read several jobs at once: masters that do not answer are waited for together."""
    with ThreadPoolExecutor(min(MAX_ASKED, len(jobs)) or 1) as pool:
        return list(pool.map(read_row, jobs))


def read_row(job: JobDir) -> JobRow:
    """Return one job as it is now; one whose end cannot be read is listed, too."""
    try:
        outcome = read_outcome(job.outcome)
    except PacelineError as error:
        return replace(make_row(job, None, None), state=UNREADABLE, error=str(error))
    return make_row(job, outcome, None if outcome else current_status(job))


def row_of(spec: JobSpec, status: JobStatus) -> JobRow:
    """The row of a running job on another machine, as its master says."""
    roles = [node.role for node in status.nodes]
    return JobRow(
        job_id=status.job_id,
        state=status.state,
        exit_code=None,
        error="",
        name=spec.name,
        strategy=spec.strategy,
        script=spec.script,
        workers=roles.count("worker"),
        servers=roles.count("server"),
        committed=status.committed,
        total=status.total,
        samples_per_s=status.samples_per_s,
        started_s=status.started_s,
        ended_s=None,
        jct_s=None,
        path="",
    )


def make_row(job: JobDir, outcome: Outcome | None, status: JobStatus | None) -> JobRow:
    """The row of a job whose master has answered, or not."""
    spec = read_spec(job)
    workers, servers = (spec.workers.count, spec.num_servers) if spec else (None, None)
    committed, total, rate = 0, None, None  # of a job that left nothing
    last = None if status else read_last_metrics(job.metrics)
    roles = [node.role for node in status.nodes] if status else []
    if last:
        committed, roles = last.committed, [*map(role_of, last.nodes)]
    if outcome:
        committed, total = outcome.committed, outcome.total or None
        rate = outcome.samples_per_s
    elif status:
        committed, total, rate = status.committed, status.total, status.samples_per_s
    # A job may have other numbers of nodes than it was launched with.
    workers, servers = roles.count("worker") or workers, roles.count("server") or servers
    return JobRow(
        job_id=job.job_id,
        state=state_of(job, outcome, status),
        exit_code=outcome.exit_code if outcome else None,
        error=outcome.error if outcome else "",
        name=spec.name if spec else None,
        strategy=spec.strategy if spec else None,
        script=spec.script if spec else None,
        workers=workers,
        servers=servers,
        committed=committed,
        total=total,
        samples_per_s=rate,
        started_s=job.launched_s(),
        ended_s=job.outcome.stat().st_mtime if outcome else None,
        jct_s=outcome.jct_s if outcome else None,
        path=str(job.path),
    )
