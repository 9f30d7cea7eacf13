"""Estimates of how long jobs will wait: the queue is simulated forward, with the policy itself."""

import heapq
import math
from collections.abc import Callable, Iterable
from typing import assert_never

from msgspec.structs import replace

from paceline.features.cluster.policy.facts import (
    AnySchedulingAct,
    ClusterFacts,
    HoldJob,
    ReleaseDevices,
    ReserveDevices,
    StartJob,
    UpgradeJob,
    after,
    without,
)


def waits(
    facts: ClusterFacts,
    decide: Callable[[ClusterFacts], Iterable[AnySchedulingAct]],
    most_s: float = math.inf,
    most_ends: float = math.inf,
) -> dict[str, float]:
    """Estimate how long each job that waits will do so from now on.

    Missing are jobs that never start, and those beyond the bounds.

    Nobody submits another job meanwhile, and running ones end when they are expected to.

    Args:
        facts: the cluster.
        decide: the policy.
        most_s: how far to look.
        most_ends: how many ends of jobs to look at.
    """
    begin_s = facts.now_s
    ends = [(begin_s + facts.left_s(job), job.job_id) for job in facts.jobs if job.kind]
    heapq.heapify(ends)
    found: dict[str, float] = {}
    num_ends = 0
    while True:
        for act in decide(facts):
            match act:
                case StartJob():
                    found[act.job_id] = facts.now_s - begin_s
                    job = next(one for one in facts.jobs if one.job_id == act.job_id)
                    heapq.heappush(ends, (facts.now_s + facts.runs_s(job), act.job_id))
                case UpgradeJob() | ReserveDevices() | ReleaseDevices() | HoldJob():
                    pass
                case _:
                    assert_never(act)
            facts = after(facts, act)
        if not ends or all(job.kind for job in facts.jobs):
            return found
        now_s, over = heapq.heappop(ends)
        num_ends += 1
        if now_s - begin_s > most_s or num_ends > most_ends:
            return found
        facts = replace(without(facts, over), now_s=now_s)
