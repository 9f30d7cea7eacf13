"""``paceline rm`` and ``prune``: what jobs that are over have left on this machine.

Never a job of which a process lives, and never cuts outside of the job's directory.
"""

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.private_folders import is_own_folder
from paceline.base.processes import find_job_processes, try_lock
from paceline.jobs.listing import JobRow, read_spec
from paceline.jobs.wording import age, counted, size

BLOCK_BYTES = 512
"""The unit of ``st_blocks``."""
CLEANER_S = 1.0
"""Seconds to wait for the cleaner of a job that is over; any command may have started one."""
CLEANER_POLL_S = 0.02


class Filter(Struct, frozen=True, kw_only=True):
    """A choice of the jobs to be removed; at least one of the two fields is given."""

    older_than_s: float | None = None
    """Least seconds since the job's end, or since its processes died; None: any."""
    finished: bool = False
    """Whether to take only jobs whose script returned: others can be resumed."""

    def takes(self, row: JobRow, over_s: float) -> bool:
        """Tell whether a job that has been over for so long should go."""
        old = self.older_than_s is None or over_s >= self.older_than_s
        return old and (row.exit_code == 0 or not self.finished)


def over_since_s(job: JobDir, row: JobRow) -> float:
    """Unix time of the job's end; of one that has none, of its last sign of life."""
    if row.ended_s is not None:
        return row.ended_s
    signs = (path for path in (job.spec, job.events, job.metrics) if path.exists())
    return max(path.stat().st_mtime for path in signs)


def is_living(job: JobDir) -> bool:
    """Tell whether any process of the job lives; a cleaner of one that is over may leave first."""
    deadline_s = time.monotonic() + (CLEANER_S if job.outcome.exists() else 0.0)
    while _lives_now(job):
        if time.monotonic() >= deadline_s:
            return True
        time.sleep(CLEANER_POLL_S)  # noqa: TID251
    return False


def _lives_now(job: JobDir) -> bool:
    lock = try_lock(job.supervisor_lock)
    if lock is None:
        return True
    os.close(lock)
    return bool(find_job_processes(job.path))


def check_removable(jobs: Iterable[JobDir]) -> None:
    """Raises ConfigError if one of the jobs lives, or is not ours to remove."""
    for job in jobs:
        if job.path.is_symlink():
            raise ConfigError(f"{job.path} is a link; name the job that it leads to")
        if is_living(job):
            raise ConfigError(
                f"job {job.job_id} runs; end it with `paceline stop {job.job_id}`, then remove it"
            )


def remove(job: JobDir) -> None:
    """Remove all that a job that is over has left on this machine.

    Raises:
        ConfigError: it came to life, or a file cannot be removed.
    """
    # Held meanwhile, so that nobody resumes what is half gone.
    lock = try_lock(job.supervisor_lock)
    if lock is None:
        raise ConfigError(f"job {job.job_id} runs again; nothing of it was removed")
    try:
        if is_own_folder(job.run_dir):  # every user may make one of that name when the job is over
            shutil.rmtree(job.run_dir)
        # A process that draws the report may have seen the old page, and write the new one now.
        while others := [path for path in job.path.iterdir() if path != job.spec]:
            for path in others:
                _remove_one(path)
        # Last: as long as it is there, the job is listed and can be removed again.
        job.spec.unlink()
        job.path.rmdir()
    except OSError as error:
        why = f"{error.strerror}: {error.filename}"
        raise ConfigError(f"job {job.job_id} is removed in part only ({why})") from error
    finally:
        os.close(lock)


def _remove_one(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def cuts_elsewhere(job: JobDir) -> str:
    """Return where cuts of the job stay; empty: nowhere."""
    spec = read_spec(job)
    return (spec.checkpoint.dir or "") if spec else ""


def used_bytes(folder: Path) -> int:
    """Return what a folder takes of its disk; links are not followed."""
    total = 0
    for where, _, names in os.walk(folder):
        for path in (where, *(os.path.join(where, name) for name in names)):
            total += os.lstat(path).st_blocks * BLOCK_BYTES
    return total


def remove_all(jobs: Iterable[tuple[JobDir, str]], *, dry_run: bool) -> Iterator[str]:
    """Remove jobs, each with a word about it; lines that say what was freed.

    Raises:
        ConfigError: at the end, names the jobs that could not be removed, and why.
    """
    total = count = 0
    failures = []
    for job, what in jobs:
        elsewhere = cuts_elsewhere(job)
        freed = used_bytes(job.path)
        if is_own_folder(job.run_dir):
            freed += used_bytes(job.run_dir)
        if not dry_run:
            try:
                remove(job)
            except ConfigError as error:
                failures.append(str(error))
                continue
        total, count = total + freed, count + 1
        stay = f"; cuts in {elsewhere} stay" if elsewhere else ""
        yield f"{'would remove' if dry_run else 'removed'} {job.job_id}{what}: {size(freed)}{stay}"
    verb = "would free" if dry_run else "freed"
    yield f"{verb} {size(total)} of {counted(count, 'job')}" if count else "no job to remove"
    if failures:
        raise ConfigError("; ".join(failures))


def to_prune(
    rows: Iterable[tuple[JobDir, JobRow]], wanted: Filter, now_s: float
) -> Iterator[tuple[JobDir, str]]:
    """The jobs that are over and go, each with a word about it."""
    for job, row in rows:
        over_s = now_s - over_since_s(job, row)
        if wanted.takes(row, over_s) and not job.path.is_symlink() and not is_living(job):
            yield job, f" ({row.state}, {age(over_s)} ago)"
