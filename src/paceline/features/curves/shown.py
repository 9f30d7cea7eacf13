"""Newest values of a job that has no master to ask."""

from paceline.base.jobdir import JobDir
from paceline.jobs.curves import last_logged
from paceline.wire.client import Shown


def shown(job: JobDir) -> Shown:
    """Return the newest value of each name that the job's script has logged."""
    return Shown(logged=last_logged(job.curves))
