"""Leftovers on the machine of jobs that are over: the next command clears them.

A supervisor that is killed just after the outcome was written leaves a run directory and control
groups behind, and no agent that would start another. So does the agent of a node that joined from
here, with the job's secret.
"""

import subprocess
from collections.abc import Iterator

from paceline.base.cgroups import jobs_with_groups
from paceline.base.jobdir import RUN_PREFIX, JobDir, home, run_place
from paceline.base.joined import clear_joined
from paceline.base.private_folders import is_own_folder, usual_name
from paceline.base.processes import is_locked, start_detached

_cleaners: list[subprocess.Popen[bytes]] = []
"""Cleaners that this process started, to be reaped; a Popen that is forgotten warns that its
process lives."""


def clear_leftovers() -> list[str]:
    """Start a supervisor for each job of this user that is over and has left something.

    It finds the outcome and only cleans up, under the job's lock; where somebody resumes the job in
    the same moment it is the supervisor of that. The run directory of a job that was interrupted
    stays: its newest cut may be there. Of nodes that joined a job elsewhere all but the logs goes,
    and logs that are a week old.

    Returns:
        The jobs' ids.
    """
    clear_joined()
    found = []
    for job in _left_by():
        if job.outcome.exists() and not is_locked(job.supervisor_lock):
            log = job.logs / "supervisor.log"
            cleaner = start_detached("paceline.supervisor", [str(job.path)], job.path, log)
            _cleaners[:] = [cleaner, *(one for one in _cleaners if one.poll() is None)]
            found.append(job.job_id)
    return found


def _left_by() -> Iterator[JobDir]:
    """Jobs of this home that have something on the machine."""
    in_memory = run_place().glob(f"{RUN_PREFIX}*")
    # Every user may put a folder there; no cleaner of ours could remove one of theirs.
    ours = (usual_name(path).removeprefix(RUN_PREFIX) for path in in_memory if is_own_folder(path))
    for job_id in sorted({*ours, *jobs_with_groups()}):
        job = JobDir(home() / "jobs" / job_id)
        if job.path.is_dir():
            yield job
