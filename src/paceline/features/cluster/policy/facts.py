"""Facts of a cluster for a scheduling policy, its orders, and what an order changes.

A *device* is what one worker needs: a job of so many workers needs so many devices, all at once.
Guaranteed jobs use their tenant's quota, and one of them at most is on a device. Opportunistic jobs
use no quota and live on what guaranteed ones leave of a device.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from paceline.wire.spec import ShareClass

ShareKind = Literal["guaranteed", "opportunistic"]


class Tenant(msgspec.Struct, frozen=True):
    """A group of people that owns a number of a cluster's devices."""

    name: str
    quota: Annotated[int, Meta(ge=0)]
    """Devices that its guaranteed jobs may use at one time."""


class ClusterDevice(msgspec.Struct, frozen=True):
    """A device, as it was in the last seconds."""

    name: str
    node: str
    """The machine that it is part of."""
    load: float = 0.0
    """The part of the last seconds in which it was busy."""


class ClusterJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits or runs."""

    job_id: str
    tenant: str
    asked: ShareClass
    """auto: guaranteed, or opportunistic where that would take long."""
    size: Annotated[int, Meta(ge=1)]
    """Devices."""
    one_node: bool = False
    """Whether all of its devices must be parts of one machine."""
    expected_s: float | None = None
    """Seconds that the job will run; None: nobody has said."""
    submitted_s: float
    """Unix time, as all times here."""
    kind: ShareKind | None = None
    """Guaranteed or opportunistic, as the job runs; None: it waits."""
    devices: tuple[str, ...] = ()
    """Devices that the job has; none: it waits."""
    started_s: float = 0.0
    reserved: tuple[str, ...] = ()
    """Devices on which the job will start, once no guaranteed job is on any of them."""
    reserved_until_s: float = 0.0


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster at one moment."""

    now_s: float
    tenants: tuple[Tenant, ...]
    """The sum of their quotas is no more than there are devices."""
    devices: tuple[ClusterDevice, ...]
    jobs: tuple[ClusterJob, ...] = ()
    """Jobs in the order in which they were submitted."""
    usual_s: float = 600.0
    """Seconds that a job is expected to run for if nobody has said how long."""

    def quota_of(self, tenant: str) -> int:
        """The devices that a tenant owns."""
        return next(each.quota for each in self.tenants if each.name == tenant)

    def used_by(self, tenant: str) -> int:
        """The part of its quota that a tenant uses."""
        return sum(
            job.size for job in self.jobs if job.tenant == tenant and job.kind == "guaranteed"
        )

    def share_of(self, tenant: str) -> float:
        """The part of its quota that a tenant uses, as a fraction."""
        return self.used_by(tenant) / max(1, self.quota_of(tenant))

    def on_devices(self, kind: ShareKind) -> dict[str, int]:
        """The number of jobs of a kind on each device that has one."""
        counts: dict[str, int] = {}
        for job in self.jobs:
            if job.kind == kind:
                for name in job.devices:
                    counts[name] = counts.get(name, 0) + 1
        return counts

    def reserved(self, but: str = "") -> set[str]:
        """The devices that jobs have reserved, those of one job left out."""
        return {name for job in self.jobs if job.job_id != but for name in job.reserved}

    def left_s(self, job: ClusterJob) -> float:
        """Estimate how long a running job will go on.

        A job that has run for longer than expected goes on for another tenth of its time.
        """
        ran_s = self.now_s - job.started_s
        return max(self.runs_s(job) - ran_s, ran_s / 10.0)

    def runs_s(self, job: ClusterJob) -> float:
        """Return how long a job runs in all."""
        return self.usual_s if job.expected_s is None else job.expected_s


class SchedulingAct(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of what a policy orders, and why."""

    job_id: str
    reason: str


class StartJob(SchedulingAct, frozen=True, kw_only=True):
    """Grant devices to a job that waits."""

    devices: tuple[str, ...]
    kind: ShareKind


class UpgradeJob(SchedulingAct, frozen=True):
    """Make an opportunistic job a guaranteed one, on the devices that it has."""


class ReserveDevices(SchedulingAct, frozen=True, kw_only=True):
    """Keep all devices of a job from other guaranteed jobs until it can start on them."""

    devices: tuple[str, ...]
    until_s: float


class ReleaseDevices(SchedulingAct, frozen=True):
    """End a reservation."""


class HoldJob(SchedulingAct, frozen=True):
    """Let a job wait."""


ChangingAct = StartJob | UpgradeJob | ReserveDevices | ReleaseDevices
AnySchedulingAct = ChangingAct | HoldJob


def changed(job: ClusterJob, act: ChangingAct, now_s: float) -> ClusterJob:
    """The job as the act leaves it."""
    match act:
        case StartJob():
            return replace(job, kind=act.kind, devices=act.devices, started_s=now_s, reserved=())
        case UpgradeJob():
            return replace(job, kind="guaranteed")
        case ReserveDevices():
            return replace(job, reserved=act.devices, reserved_until_s=act.until_s)
        case ReleaseDevices():
            return replace(job, reserved=())


def after(facts: ClusterFacts, act: AnySchedulingAct) -> ClusterFacts:
    """The cluster as the act leaves it."""
    if isinstance(act, HoldJob):
        return facts
    jobs = (
        changed(job, act, facts.now_s) if job.job_id == act.job_id else job for job in facts.jobs
    )
    return replace(facts, jobs=tuple(jobs))


def without(facts: ClusterFacts, job_id: str) -> ClusterFacts:
    """The cluster when a job is over."""
    return replace(facts, jobs=tuple(job for job in facts.jobs if job.job_id != job_id))


def fault(facts: ClusterFacts, act: ChangingAct) -> str:
    """Say why an act cannot be carried out, whatever a policy thinks; empty: it can."""
    job = next((one for one in facts.jobs if one.job_id == act.job_id), None)
    if job is None:
        return "there is no such job"
    if isinstance(act, UpgradeJob):
        names, fits = job.devices, job.kind == "opportunistic"
    elif isinstance(act, StartJob | ReserveDevices):
        names = act.devices
        known = {device.name for device in facts.devices}
        fits = job.kind is None and len(set(names) & known) == len(names) == job.size
    else:
        return ""
    if not fits:
        return f"{', '.join(names)} is not what it needs now"
    alone = isinstance(act, UpgradeJob) or (isinstance(act, StartJob) and act.kind == "guaranteed")
    taken = facts.on_devices("guaranteed").keys() & set(names)
    if alone and taken:
        return f"{', '.join(sorted(taken))} has a guaranteed job already"
    return ""
