"""A job's report, drawn in a process of its own: on a busy machine that takes most of a minute.

``python -m paceline.cli.report.drawing JOB_DIR`` replaces the page that has no drawings.
"""

import os
import subprocess
import sys
from pathlib import Path

from paceline.base.jobdir import JobDir
from paceline.base.processes import SAFE_PATH

NICENESS = 10
_begun: list[subprocess.Popen[bytes]] = []
"""Kept, since Python warns of a process that outlives what stands for it."""


def draw_within(job: JobDir, wait_s: float) -> bool | None:
    """Begin to draw a job's report, and wait a moment for it.

    The process goes on after that, also when this one has ended; it is none of the job's.

    Args:
        job: the job.
        wait_s: for so long at most.

    Returns:
        Whether it was drawn; None: it is being drawn.
    """
    command = [sys.executable, *SAFE_PATH, "-m", "paceline.cli.report.drawing", str(job.path)]
    drawing = subprocess.Popen(
        command,
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
    """Draw."""
    from paceline.cli.report.facts import read_facts
    from paceline.cli.report.page import write_page

    os.nice(NICENESS)
    job = JobDir(Path(sys.argv[1]))
    write_page(read_facts(job), job.report)


if __name__ == "__main__":
    main()
