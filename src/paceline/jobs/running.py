"""The running job that a command is about: of this machine, or one that a ticket names."""

from typing import Protocol

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.jobs.far import FarJob
from paceline.jobs.from_afar import TICKET
from paceline.jobs.launch import ask_running
from paceline.wire.client import Call, Reply


class RunningJob(Protocol):
    """A job whose master may be asked."""

    @property
    def job_id(self) -> str:
        """Id of the job."""

    def ask(self, call: Call) -> Reply:
        """Ask the master; an order is sent once.

        Raises:
            ConfigError: the job does not run.
            TransientError: nobody answers, or the answer to an order was lost.
        """


class NearJob:
    """A job of this machine."""

    def __init__(self, job: JobDir) -> None:
        self.dir = job

    @property
    def job_id(self) -> str:
        """Implement `RunningJob`."""
        return self.dir.job_id

    def ask(self, call: Call) -> Reply:
        """Implement `RunningJob`."""
        return ask_running(self.dir, call)


def find_running(name: str | None) -> NearJob | FarJob:
    """Find the job that a command is about.

    Args:
        name: its JOB; None: the newest, or the one of ``--job``.

    Raises:
        ConfigError: there is none, or both are given.
        TransientError: the master of the job of ``--job`` does not answer.
    """
    ticket = TICKET.get()
    if ticket is None:
        return NearJob(JobDir.find(name))
    if name is not None:
        raise ConfigError(f"got the job {name} beside --job, which names one; leave it out")
    return FarJob(ticket)
