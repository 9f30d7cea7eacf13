"""``python -m paceline.supervisor JOBDIR``: the supervisor process of a job.

Exits at once when the job has a supervisor already.
"""

import argparse
import logging
import sys
import time
from pathlib import Path

from paceline.base.jobdir import JobDir
from paceline.base.processes import try_lock
from paceline.supervisor.supervisor import Supervisor

LOCK_WAIT_S = 1.0
"""Seconds to try the lock: agents that hold it for a moment are not taken for a supervisor."""


def take_job(job: JobDir) -> int | None:
    """Become the job's supervisor: the lock's descriptor; None: there is one."""
    deadline_s = time.monotonic() + LOCK_WAIT_S
    while (descriptor := try_lock(job.supervisor_lock)) is None:
        if time.monotonic() > deadline_s:
            return None
        time.sleep(0.02)  # noqa: TID251
    return descriptor


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m paceline.supervisor")
    parser.add_argument("job_dir", type=Path)
    options = parser.parse_args()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    job = JobDir(options.job_dir.absolute())
    if take_job(job) is not None:
        job.make_run_dir()
        # The lock is released by the kernel with this process: not before everything is gone.
        Supervisor(job).run()


if __name__ == "__main__":
    main()
