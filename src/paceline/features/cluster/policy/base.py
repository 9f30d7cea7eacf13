"""Port of scheduling policies: facts of a cluster in, acts with their reasons out.

A policy of a user derives from `SchedulingPolicy`, and is found by an entry point of the group
``paceline.schedulers`` (see `paceline.features.cluster.policy.registry`).
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from paceline.features.cluster.policy.facts import (
    AnySchedulingAct,
    ClusterFacts,
    ClusterJob,
    HoldJob,
    ReleaseDevices,
    ReserveDevices,
    StartJob,
    after,
)
from paceline.features.cluster.policy.placement import exclusively, fits, to_reserve

WaitSeconds = Annotated[float, Meta(ge=0)]
ReserveSeconds = Annotated[float, Meta(gt=0)]


class SchedulingPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all policies; the fields are the parameters that a user may set.

    It remembers nothing between two questions, reads no clock and draws no numbers.
    """

    has_quotas: ClassVar[bool] = True
    """Whether a tenant's quota bounds its guaranteed jobs."""
    shares: ClassVar[bool] = True
    """Whether a guaranteed job and opportunistic ones may be on one device."""

    def decide(self, facts: ClusterFacts) -> list[AnySchedulingAct]:
        """Decide what to do now, in order; a job that goes on waiting is held, with the reason."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it decides")

    def claims(self, facts: ClusterFacts) -> list[AnySchedulingAct]:
        """The part of `decide` that does not ask how long jobs will wait."""
        return self.decide(facts)

    def refusal(self, facts: ClusterFacts, job: ClusterJob) -> str:
        """Say why a job could never start; empty: it can."""
        if not fits(facts.devices, job):
            where = "on one machine" if job.one_node else "in the cluster"
            return f"it needs {job.size} devices, and there are fewer {where}"
        quota = facts.quota_of(job.tenant)
        if self.has_quotas and job.asked == "guaranteed" and job.size > quota:
            return (
                f"it needs {job.size} guaranteed devices, and {job.tenant} has a quota of {quota}"
            )
        return ""


class Draft:
    """Acts as they are found, and the cluster as they leave it."""

    def __init__(self, facts: ClusterFacts) -> None:
        self.facts = facts
        self.acts: list[AnySchedulingAct] = []
        self._held: dict[str, str] = {}

    def do(self, act: AnySchedulingAct) -> None:
        """Add an act."""
        self.acts.append(act)
        self.facts = after(self.facts, act)

    def hold(self, job: ClusterJob, reason: str) -> None:
        """Say why a job waits; what is said last counts, and nothing if it starts after all."""
        self._held[job.job_id] = reason

    def all_acts(self) -> list[AnySchedulingAct]:
        """Return all acts, with the jobs that wait at the end."""
        held = (
            HoldJob(job_id=job.job_id, reason=self._held[job.job_id])
            for job in self.facts.jobs
            if job.kind is None and job.job_id in self._held
        )
        return [*self.acts, *held]


def waiting(facts: ClusterFacts, tenant: str = "") -> Iterator[ClusterJob]:
    """Yield the jobs that wait, of one tenant or of all, in the order of submission."""
    return (job for job in facts.jobs if job.kind is None and tenant in ("", job.tenant))


def release_late(draft: Draft) -> None:
    """End reservations that have not come true in their time: what will be free is seen again."""
    for job in draft.facts.jobs:
        if job.reserved and draft.facts.now_s >= job.reserved_until_s:
            reason = "its devices are not free when they were expected to be"
            draft.do(ReleaseDevices(job_id=job.job_id, reason=reason))


def start_or_reserve(
    draft: Draft, job: ClusterJob, reason: str, reserve_s: float, *, shared: bool
) -> bool:
    """Start a guaranteed job on all of its devices, or reserve them; whether it was started.

    Args:
        draft: takes the acts.
        job: the job, which waits.
        reason: why it is the next one.
        reserve_s: for how long a reservation holds.
        shared: whether it may be with opportunistic jobs on a device.
    """
    if devices := exclusively(draft.facts, job, shared=shared):
        act = StartJob(job_id=job.job_id, devices=devices, kind="guaranteed", reason=reason)
        draft.do(act)
        return True
    if not job.reserved and (devices := to_reserve(draft.facts, job, shared=shared)):
        until_s = draft.facts.now_s + reserve_s
        why = f"{reason}, but its devices are not all free"
        draft.do(ReserveDevices(job_id=job.job_id, devices=devices, until_s=until_s, reason=why))
    elif not job.reserved:
        draft.hold(job, f"{reason}, but other jobs have reserved the devices that it could have")
        return False
    draft.hold(job, f"waits for its reservation: {', '.join(devices or job.reserved)}")
    return False
