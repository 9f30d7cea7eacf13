"""Checks before a job is resumed: whether there is something to do, and who else does it."""

import contextlib
import os
import time
from collections.abc import Iterator

from paceline.base.errors import ConfigError, PermanentError
from paceline.base.jobdir import JobDir
from paceline.base.processes import try_lock
from paceline.cuts.manifest import verify
from paceline.jobs.history import read_events
from paceline.jobs.outcome import ENDS, End, Outcome, code_of, read_outcome
from paceline.jobs.wording import progress
from paceline.wire.events.job import SupervisorStartedEvent
from paceline.wire.spec import JobSpec


def over(job: JobDir, spec: JobSpec) -> tuple[str, int] | None:
    """Say why there is nothing to resume, and with which exit code; None: there is something.

    Raises:
        PermanentError: the job has finished, but its model cannot be had any more.
    """
    outcome = read_outcome(job.outcome)
    if outcome is None or outcome.state != ENDS[End.FINISHED].state:
        return None
    how, done = outcome.how, progress(outcome.committed, outcome.total)
    if how is not End.FINISHED:
        why = "never trained anything" if how is End.NOT_TRAINED else f"left early, after {done}"
        told = f"the script of job {job.job_id} has returned; it {why}; nothing was started"
        return f"{told}. Start it again as a new job", code_of(how)
    if not spec.traits.trains:
        told = f"job {job.job_id} has already finished; nothing was started"
        return told, code_of(End.ALREADY_FINISHED)
    _check_newest(job, outcome)
    told = f"job {job.job_id} has already finished: {done} in the model; nothing was started"
    return told, code_of(End.ALREADY_FINISHED)


def _check_newest(job: JobDir, outcome: Outcome) -> None:
    """Read the cut that holds the finished model.

    Raises:
        PermanentError: it is damaged, or gone.
    """
    from paceline.jobs.cuts import find_cuts  # with psutil, which few commands need

    remedy = "; `paceline checkpoint ls` shows what is left of it"
    sealed = [cut for cut in find_cuts(str(job.path)).cuts if cut.sealed]
    if outcome.committed and not sealed:
        raise PermanentError(f"job {job.job_id} has finished, but has no cut any more{remedy}")
    try:
        for cut in sealed[:1]:
            verify(*cut.places)
    except PermanentError as error:
        raise PermanentError(
            f"job {job.job_id} has finished, but its newest cut is damaged: {error}{remedy}"
        ) from error


@contextlib.contextmanager
def alone(job: JobDir) -> Iterator[None]:
    """Hold the right to resume the job, as long as it takes to start it.

    Raises:
        ConfigError: another command holds it; names that.
    """
    descriptor = try_lock(job.resume_lock)
    if descriptor is None:
        raise ConfigError(
            f"job {job.job_id} is being resumed by another command"
            f" ({job.resume_lock.read_text().strip()}); follow it with `paceline attach`"
        )
    try:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()}, since {_at(time.time())}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def running_since(job: JobDir) -> str:
    """Return the supervisor that runs the job, and its start, in words; empty: not known."""
    events = read_events(job.events)
    started = [event for event in events if isinstance(event, SupervisorStartedEvent)]
    if not started:
        return ""
    return f" (supervisor pid {started[-1].pid}, since {_at(started[-1].t)})"


def _at(unix_s: float) -> str:
    return time.strftime("%d %b %H:%M:%S", time.localtime(unix_s))
