"""Parts that the rooms of one master share: its machines, its outbox, its times."""

from collections.abc import Callable
from typing import NamedTuple

from paceline.base.jobdir import JobDir
from paceline.master.job_clock import JobClock
from paceline.master.journal import Journal
from paceline.master.meeting import make_rounds
from paceline.master.monitor import Monitor, lengths_of
from paceline.master.outbox import Outbox
from paceline.master.own_time import OwnTime
from paceline.master.ports import Backend
from paceline.protocol.nodes.membership import Membership
from paceline.wire.spec import JobSpec


class MasterParts(NamedTuple):
    """Parts that nearly every room of a master works with."""

    job: JobDir
    spec: JobSpec
    backend: Backend
    members: Membership
    """The nodes and their lives."""
    monitor: Monitor
    """Measurements of nodes."""
    outbox: Outbox


class Times(NamedTuple):
    """The three times of a master, in seconds."""

    steady: Callable[[], float]
    """Clock for times within the job."""
    own: OwnTime
    """The time in which the master itself ran."""
    wall: JobClock
    """Unix time, as the job counts it."""


def make_parts(
    job: JobDir,
    spec: JobSpec,
    backend: Backend,
    clock: Callable[[], float],
    journal: Journal | None,
) -> tuple[MasterParts, Times]:
    """Make them for a master that is about to start.

    Args:
        job: its directory.
        spec: of the job.
        backend: launches the nodes.
        clock: seconds, never backwards.
        journal: open; None: open that of the directory.
    """
    times = Times(clock, OwnTime(clock), JobClock())
    members = Membership(
        num_workers=spec.workers.count,
        num_servers=spec.num_servers,
        restart=spec.restart,
        pending_s=spec.longest_pending_s,
        rounds=make_rounds(spec),
    )
    members.min_workers, members.places_s = spec.min_workers, spec.timeouts.places_s
    outbox = Outbox(job, members, backend, times.wall, journal)
    monitor = Monitor(lengths_of(spec.windows))
    return MasterParts(job, spec, backend, members, monitor, outbox), times
