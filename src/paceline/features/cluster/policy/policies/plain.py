"""Schedulers that AntMan is held against: a device has one job, whichever kind was asked for."""

from typing import ClassVar

from msgspec.structs import replace

from paceline.features.cluster.policy.base import (
    Draft,
    ReserveSeconds,
    SchedulingPolicy,
    release_late,
    start_or_reserve,
    waiting,
)
from paceline.features.cluster.policy.facts import (
    AnySchedulingAct,
    ClusterFacts,
    ClusterJob,
    StartJob,
)
from paceline.features.cluster.policy.placement import exclusively


class Fifo(SchedulingPolicy, frozen=True, kw_only=True):
    """One line for all tenants, in the order of submission; quotas do not count."""

    has_quotas: ClassVar[bool] = False
    shares: ClassVar[bool] = False

    def decide(self, facts: ClusterFacts) -> list[AnySchedulingAct]:
        """Decide what to do now."""
        draft = Draft(facts)
        head = None
        for job in waiting(facts):
            devices = exclusively(draft.facts, job, shared=False) if head is None else ()
            if devices:
                reason = "it is the first in the line, and its devices are free"
                act = StartJob(job_id=job.job_id, devices=devices, kind="guaranteed", reason=reason)
                draft.do(act)
            elif head is None:
                head = job
                draft.hold(job, f"is the first in the line, and {job.size} devices are not free")
            else:
                draft.hold(job, f"waits behind {head.job_id}")
        return draft.all_acts()


class YarnCs(SchedulingPolicy, frozen=True, kw_only=True):
    """YARN's capacity scheduler without preemption: a line and a quota for each tenant.

    A tenant goes beyond its quota on devices that nobody else can use now. Such a job counts as
    opportunistic: it uses no quota, and nobody takes the devices from it.
    """

    shares: ClassVar[bool] = False
    reserve_s: ReserveSeconds = 600.0
    """A reservation that has not come true by then is made again."""
    elastic: bool = True
    """Whether tenants go beyond their quotas."""

    def refusal(self, facts: ClusterFacts, job: ClusterJob) -> str:
        """Say why a job could never start: without devices beyond quotas it needs quota, too."""
        return super().refusal(facts, job if self.elastic else replace(job, asked="guaranteed"))

    def decide(self, facts: ClusterFacts) -> list[AnySchedulingAct]:
        """Decide what to do now."""
        draft = Draft(facts)
        release_late(draft)
        blocked: set[str] = set()
        for beyond in (False, True) if self.elastic else (False,):
            blocked.clear()
            while self._start_next(draft, blocked, beyond=beyond):
                pass
        return draft.all_acts()

    def _start_next(self, draft: Draft, blocked: set[str], *, beyond: bool) -> bool:
        """Try the next tenant's first job; whether there was one."""
        facts = draft.facts
        heads = {
            job.tenant: job for job in reversed(list(waiting(facts))) if job.tenant not in blocked
        }
        if not heads:
            return False
        job = min(heads.values(), key=lambda one: (facts.share_of(one.tenant), one.submitted_s))
        used, quota = facts.used_by(job.tenant), facts.quota_of(job.tenant)
        fits = job.size <= quota - used
        if fits and not beyond:
            reason = f"{job.tenant} uses {used} of its quota of {quota}, the least part of all"
            if start_or_reserve(draft, job, reason, self.reserve_s, shared=False):
                return True
        elif beyond and not fits and (devices := exclusively(facts, job, shared=False)):
            reason = f"{job.tenant} uses {used} of its quota of {quota}, and devices are idle"
            act = StartJob(job_id=job.job_id, devices=devices, kind="opportunistic", reason=reason)
            draft.do(act)
            return True
        elif not fits:
            draft.hold(
                job, f"needs {job.size} devices; {job.tenant} uses {used} of its quota of {quota}"
            )
        blocked.add(job.tenant)
        for each in waiting(draft.facts, job.tenant):
            if each.job_id != job.job_id:
                draft.hold(each, f"waits behind {job.job_id} of {job.tenant}")
        return True
