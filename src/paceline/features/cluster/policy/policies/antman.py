"""AntMan's global scheduler: quotas for guaranteed jobs, leftovers for opportunistic ones.

Reference: AntMan (OSDI 2020), algorithm 1 and section 3.3.
"""

import math
from typing import Annotated

from msgspec import Meta

from paceline.features.cluster.policy.base import (
    Draft,
    ReserveSeconds,
    SchedulingPolicy,
    WaitSeconds,
    release_late,
    start_or_reserve,
    waiting,
)
from paceline.features.cluster.policy.estimate import waits
from paceline.features.cluster.policy.facts import (
    AnySchedulingAct,
    ClusterFacts,
    ClusterJob,
    StartJob,
    UpgradeJob,
)
from paceline.features.cluster.policy.placement import on_leftovers


class AntMan(SchedulingPolicy, frozen=True, kw_only=True):
    """Upgrades first, then guaranteed jobs, then opportunistic ones; nothing is preempted.

    A tenant's jobs come in the order in which they were submitted, in two lines: one for its quota,
    and one for leftovers. Between tenants the one that uses the least part of its quota is next; of
    leftovers the one that has the fewest of them.
    """

    wait_s: WaitSeconds = 60.0
    """An auto job that would wait longer, from its submission on, becomes opportunistic."""
    reserve_s: ReserveSeconds = 600.0
    """A reservation that has not come true by then is made again."""
    busy: Annotated[float, Meta(ge=0)] = 0.8
    """A device with at least this load takes no opportunistic job; above 1: load does not count."""
    settle_s: WaitSeconds = 10.0
    """A job that has started more recently is not yet in its devices' load: it counts as one."""
    max_opportunistic: Annotated[int, Meta(ge=1)] = 2
    """Opportunistic jobs on one device."""

    def decide(self, facts: ClusterFacts) -> list[AnySchedulingAct]:
        """Decide what to do now."""
        draft = self._claimed(facts)
        self._fill(draft)
        return draft.all_acts()

    def claims(self, facts: ClusterFacts) -> list[AnySchedulingAct]:
        """Return the orders by which guaranteed jobs get quota now."""
        return self._claimed(facts).all_acts()

    def _claimed(self, facts: ClusterFacts) -> Draft:
        draft = Draft(facts)
        release_late(draft)
        _upgrade(draft)
        _start_guaranteed(draft, self.reserve_s)
        return draft

    def _fill(self, draft: Draft) -> None:
        """Start opportunistic jobs on what is left."""
        reasons = self._opportunistic(draft.facts)
        blocked: set[str] = set()
        while True:
            heads = {
                job.tenant: job
                for job in reversed(list(waiting(draft.facts)))
                if job.job_id in reasons and job.tenant not in blocked
            }
            if not heads:
                return
            fewest = {
                tenant: sum(
                    job.size
                    for job in draft.facts.jobs
                    if job.tenant == tenant and job.kind == "opportunistic"
                )
                for tenant in heads
            }
            job = min(heads.values(), key=lambda one: (fewest[one.tenant], one.submitted_s))
            devices = on_leftovers(
                draft.facts, job, self._loads(draft.facts), self.max_opportunistic
            )
            reason = reasons[job.job_id]
            if devices:
                draft.do(
                    StartJob(
                        job_id=job.job_id, devices=devices, kind="opportunistic", reason=reason
                    )
                )
                continue
            blocked.add(job.tenant)
            for each in waiting(draft.facts, job.tenant):
                if each.job_id in reasons:
                    what = "too few devices have room for it" if each == job else _behind(job)
                    draft.hold(each, f"{reasons[each.job_id]}, but {what}")

    def _opportunistic(self, facts: ClusterFacts) -> dict[str, str]:
        """The jobs that wait and may live on leftovers, and why."""
        found = {}
        auto = any(job.asked == "auto" for job in waiting(facts))
        left_s = waits(facts, self.claims, self.wait_s) if auto else {}
        for job in waiting(facts):
            tenant, ago_s = job.tenant, facts.now_s - job.submitted_s
            if job.asked == "opportunistic":
                found[job.job_id] = "it is opportunistic"
            elif job.asked == "auto" and job.size > facts.quota_of(tenant):
                found[job.job_id] = f"it needs more than the quota of {tenant}"
            elif job.asked == "auto" and ago_s + left_s.get(job.job_id, math.inf) > self.wait_s:
                long = f"longer than {self.wait_s:.0f} s"
                found[job.job_id] = f"it would wait {long} for the quota of {tenant}"
        return found

    def _loads(self, facts: ClusterFacts) -> dict[str, float]:
        """The load of each device that may take another opportunistic job."""
        fresh: dict[str, int] = {}
        for job in facts.jobs:
            if job.kind and facts.now_s - job.started_s < self.settle_s:
                for name in job.devices:
                    fresh[name] = fresh.get(name, 0) + 1
        loads = {one.name: one.load + fresh.get(one.name, 0) for one in facts.devices}
        return {name: load for name, load in loads.items() if min(load, 1.0) < self.busy}


def _upgrade(draft: Draft) -> None:
    """Upgrade what the quota allows, before anything that was submitted later is started.

    A job that waits for quota since before goes first. It would never get its turn otherwise.
    """
    for job in sorted(draft.facts.jobs, key=lambda one: draft.facts.share_of(one.tenant)):
        if job.asked != "auto" or job.kind != "opportunistic":
            continue
        facts = draft.facts
        kept = facts.reserved() | facts.on_devices("guaranteed").keys()
        promised = sum(one.size for one in waiting(facts, job.tenant) if one.reserved)
        left = facts.quota_of(job.tenant) - facts.used_by(job.tenant) - promised
        ahead = any(
            one.submitted_s < job.submitted_s
            for one in waiting(facts, job.tenant)
            if one.asked != "opportunistic" and one.size <= facts.quota_of(job.tenant)
        )
        if job.size <= left and kept.isdisjoint(job.devices) and not ahead:
            reason = f"{job.tenant} has quota left, and no guaranteed job is on its devices"
            draft.do(UpgradeJob(job_id=job.job_id, reason=reason))


def _start_guaranteed(draft: Draft, reserve_s: float) -> None:
    """Start what the quotas allow, tenant by tenant."""
    blocked: set[str] = set()
    while (job := _next(draft.facts, blocked)) is not None:
        facts = draft.facts
        used, quota = facts.used_by(job.tenant), facts.quota_of(job.tenant)
        if job.size > quota - used:
            reason = f"needs {job.size} of the quota of {job.tenant}, which uses {used} of {quota}"
            draft.hold(job, reason)
        else:
            reason = f"{job.tenant} uses {used} of its quota of {quota}, the least part of all"
            if start_or_reserve(draft, job, reason, reserve_s, shared=True):
                continue
        blocked.add(job.tenant)
        for each in _line(draft.facts, job.tenant):
            if each.job_id != job.job_id:
                draft.hold(each, _behind(job))


def _next(facts: ClusterFacts, blocked: set[str]) -> ClusterJob | None:
    """The first job of the tenant that uses the least part of its quota."""
    heads = [
        line[0]
        for tenant in facts.tenants
        if tenant.name not in blocked and (line := _line(facts, tenant.name))
    ]
    return min(heads, key=lambda job: (facts.share_of(job.tenant), job.submitted_s), default=None)


def _line(facts: ClusterFacts, tenant: str) -> list[ClusterJob]:
    """The jobs that wait for a tenant's quota, in order."""
    quota = facts.quota_of(tenant)
    return [
        job
        for job in waiting(facts, tenant)
        if job.asked == "guaranteed" or (job.asked == "auto" and job.size <= quota)
    ]


def _behind(job: ClusterJob) -> str:
    return f"waits behind {job.job_id} of {job.tenant}"
