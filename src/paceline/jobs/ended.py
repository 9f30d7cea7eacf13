"""The end of a job that a person has watched, as features get it."""

from collections.abc import Callable
from typing import NamedTuple

from paceline.base.jobdir import JobDir
from paceline.jobs.facts import Facts


class EndedJob(NamedTuple):
    """A job that has ended: what the part ``ended`` of a feature gets."""

    job: JobDir
    facts: Facts
    tell: Callable[[str], None]
    """Prints a line below the paragraph that says what became of the job."""
