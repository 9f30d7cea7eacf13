"""Look on at the script of a process of a job; the runtime calls `add` before the script runs."""

from paceline.features.rehearse.process.looking import Looking, plan_here
from paceline.features.rehearse.process.watched_job import RehearsedJob
from paceline.runtime.process.process import Process
from paceline.runtime.script import job


def add(process: Process) -> None:
    """Have the rehearsal look on at the script."""

    def leaving() -> bool:
        return process.stop_requested

    looking = Looking(plan_here(), process.node, process.inc, leaving)
    looking.begin(process.spec.script)
    RehearsedJob.looking = looking
    job.kind = RehearsedJob
