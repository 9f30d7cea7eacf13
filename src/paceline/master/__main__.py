"""``python -m paceline.master JOBDIR``: the master process of a job.

Exits at once when the job has a master already. Exit code 0: the job has ended, and the outcome
is written; anything else: start another.
"""

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
import time
from pathlib import Path

from paceline.base.backends import part_of
from paceline.base.descriptors import raise_limit
from paceline.base.disk import append_if_possible
from paceline.base.jobdir import JobDir
from paceline.base.processes import is_locked, start_detached, try_lock
from paceline.cuts.store import LocalCuts
from paceline.master.ports import Backend
from paceline.master.service import Master
from paceline.master.short_journal import mend
from paceline.master.term import begin_term
from paceline.master.waiting import open_journal
from paceline.wire import last_words
from paceline.wire.spec import JobSpec, load

COLLECT = 20_000, 20, 20
"""Thresholds of the garbage collector. A thousand nodes are many objects to look through, and so
are their messages, none of which is in a circle."""


def open_backend(job: JobDir, spec: JobSpec) -> Backend:
    """The place where the job's nodes run.

    Found by name: backends know the master's port, the master knows no backend.
    """
    backend: Backend = part_of(spec.backend, "opened")(job, spec)
    return backend


async def serve(job: JobDir, spec: JobSpec) -> None:
    """Run the master in this event loop."""
    journal = await open_journal(job.journal, spec.timeouts.disk_s)
    if (short := mend(job, journal, LocalCuts.of(job, spec).disk)) is not None:
        append_if_possible(job.events, short.at(time.time()).text())
    await begin_term(job, journal)
    master = Master(job, spec, open_backend(job, spec), journal=journal)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, master.stop_nowait, number)
    # What is there by now stays: the collector need not look through it again and again.
    gc.freeze()
    gc.set_threshold(*COLLECT)
    await master.run()


def leave_a_supervisor(job: JobDir) -> None:
    """Start one if there is none: with the agents gone, nobody else would notice.

    It finds the outcome and only cleans up; without an outcome it starts another master.
    """
    if job.path.is_dir() and not is_locked(job.supervisor_lock):
        logging.getLogger(__name__).warning("supervisor_died job=%s: starting another", job.job_id)
        log = job.logs / "supervisor.log"
        # The supervisor outlives this process, which therefore cannot wait for it.
        start_detached("paceline.supervisor", [str(job.path)], job.path, log)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m paceline.master")
    parser.add_argument("job_dir", type=Path)
    parser.add_argument(last_words.OPTION, type=int)
    options = parser.parse_args()
    if options.last_words is not None:
        last_words.say_at_death(options.last_words)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    # Both mean the end of the job, and until `serve` hears of them that of this process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    job = JobDir(options.job_dir.absolute())
    lock = try_lock(job.master_lock)
    if lock is None:
        logging.getLogger(__name__).warning("master_runs_already job=%s", job.job_id)
        return
    job.make_run_dir()
    raise_limit()
    try:
        asyncio.run(serve(job, load(job.spec)))
    finally:
        leave_a_supervisor(job)
        os.close(lock)


if __name__ == "__main__":
    main()
