"""Which offer each job takes, of what is free: weighted greedy.

Each upgrade of a job, from what it has been given to a dearer offer, has an efficiency: samples per
second won for each unit of cost, times the job's weight. The best one that fits is taken, until
none is left. For one job that climbs the front from its best ratio on.

Reference: DLRover-RM Eq. 11 to 14. Differs: the paper chooses one plan per job and does not say how
a job that took a small plan with a good ratio comes to more. Here it upgrades.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from paceline.features.sizes.policy.candidates import SizeOffer
from paceline.policy.job_size import JobSize

_EPSILON_S = 1.0
"""Added to the seconds that are left of a job, so that its weight is finite."""


class JobOffers(msgspec.Struct, frozen=True, kw_only=True):
    """One job that may get another size."""

    job: str
    present: JobSize
    weight: float
    per_s: float
    """Samples per second now."""
    cost: float
    """Cost of the present size, per hour."""
    offers: tuple[SizeOffer, ...]


class SpareResources(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that all jobs together may take more; infinite: no limit."""

    cores: float = math.inf
    memory_bytes: float = math.inf
    nodes: float = math.inf

    def fits(self, before: JobSize, after: JobSize) -> bool:
        """Whether a job may go from one size to the other."""
        slack = 1e-9
        return (
            after.cores - before.cores <= self.cores + slack
            and after.memory_bytes - before.memory_bytes <= self.memory_bytes + slack
            and _nodes(after) - _nodes(before) <= self.nodes
        )

    def after(self, before: JobSize, after: JobSize) -> "SpareResources":
        """Return what is left when a job has gone from one size to the other."""
        return SpareResources(
            cores=self.cores - after.cores + before.cores,
            memory_bytes=self.memory_bytes - after.memory_bytes + before.memory_bytes,
            nodes=self.nodes - _nodes(after) + _nodes(before),
        )


def weight(left_s: float, rho: float = 2.5) -> float:
    """WG: jobs that end sooner weigh more (Eq. 14).

    Args:
        left_s: seconds until the end of the job.
        rho: 0: all jobs weigh the same.
    """
    return float(1.0 / (max(left_s, 0.0) + _EPSILON_S) ** rho)


def weighted_greedy(
    jobs: Sequence[JobOffers], spare: SpareResources, thrift: float = 0.05
) -> Mapping[str, SizeOffer]:
    """Choose an offer for each job; a job without one keeps what it has.

    Args:
        jobs: with their offers.
        spare: what is free.
        thrift: an upgrade that costs 1 % more of a job's present cost must bring at least so many
            percent of its present samples per second.
    """
    chosen: dict[str, SizeOffer] = {}
    while True:
        best: tuple[float, JobOffers, SizeOffer] | None = None
        for each in jobs:
            now = chosen.get(each.job)
            before = now.size if now else each.present
            for offer in each.offers:
                efficiency = _efficiency(each, now, offer, thrift)
                if efficiency <= 0.0 or not spare.fits(before, offer.size):
                    continue
                if best is None or efficiency > best[0]:
                    best = efficiency, each, offer
        if best is None:
            return chosen
        _, job, offer = best
        before = chosen[job.job].size if job.job in chosen else job.present
        spare = spare.after(before, offer.size)
        chosen[job.job] = offer


def _efficiency(job: JobOffers, now: SizeOffer | None, offer: SizeOffer, thrift: float) -> float:
    """RE times WG of an upgrade; 0: it is none, or too dear for what it brings."""
    gain = offer.gain - (now.gain if now else 0.0)
    cost = offer.cost - (now.cost if now else 0.0)
    if gain <= 1e-9 * job.per_s:
        return 0.0
    least = 1e-6 * max(job.cost, 1e-9)
    if cost > least and gain / job.per_s < thrift * cost / max(job.cost, 1e-9):
        return 0.0
    return gain / max(cost, least) * job.weight


def _nodes(size: JobSize) -> int:
    return size.workers + size.servers
