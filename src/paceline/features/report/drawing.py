"""A job's report, drawn in a process of its own: on a busy machine that takes most of a minute.

``python -m paceline.features.report.drawing JOB_DIR MARK`` replaces the page that has no drawings,
unless another page, or none, is there by then: a later run has ended, or the job was removed.
"""

import os
import subprocess
import sys
from pathlib import Path

from paceline.base.jobdir import JobDir
from paceline.base.processes import SAFE_PATH
from paceline.features.report.page import write_report
from paceline.jobs.facts import read_facts

NICENESS = 10
_begun: list[subprocess.Popen[bytes]] = []
"""Kept, since Python warns of a process that outlives what stands for it."""


def draw_within(job: JobDir, mark: str, wait_s: float) -> bool | None:
    """Begin to draw a job's report, and wait a moment for it.

    The process goes on after that, also when this one has ended; it is none of the job's.

    Args:
        job: the job.
        mark: of its page without drawings, which is replaced.
        wait_s: for so long at most.

    Returns:
        Whether it was drawn; None: it is being drawn.
    """
    module = ["-m", "paceline.features.report.drawing"]
    drawing = subprocess.Popen(
        [sys.executable, *SAFE_PATH, *module, str(job.path), mark],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    _begun.append(drawing)
    try:
        return drawing.wait(wait_s) == 0
    except subprocess.TimeoutExpired:
        return None


def main() -> None:
    """Replace the page without drawings by one that has them."""
    os.nice(NICENESS)
    job = JobDir(Path(sys.argv[1]))
    write_report(read_facts(job), job, instead_of=sys.argv[2])


if __name__ == "__main__":
    main()
