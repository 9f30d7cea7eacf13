"""The rehearsal within a process of the script: notes, a shorter job, a fault at its moment.

In a job `add` is called before the script runs; ``python -m ....process.alone`` runs a script
without a job. Nothing here is imported by a process that is not rehearsed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.runtime.process.process import Process


def add(process: "Process") -> None:
    """Look on at the script of a process of a job."""
    from paceline.features.rehearse.process.looking import Looking, plan_here
    from paceline.features.rehearse.process.watched_job import RehearsedJob
    from paceline.runtime.script import job

    def leaving() -> bool:
        return process.stop_requested

    looking = Looking(plan_here(), process.node, process.inc, leaving)
    looking.begin(process.spec.script)
    RehearsedJob.looking = looking
    job.kind = RehearsedJob
