"""Which workers of a synchronous job are slow against the fastest, and what a step takes for that.

A worker that differs by no more than chance does not count. One that has a smaller share for its
slowness is known to be slow: it counts until it is measured to be as fast as the others.

Reference: FALCON sections 4.2 and 4.3 (arXiv:2410.12588).
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from paceline.features.stragglers.policy import chance
from paceline.features.stragglers.policy.fleet import Bools, Fleet
from paceline.features.stragglers.policy.paces import besides_s, paces_s
from paceline.features.stragglers.policy.solvers import Floats, Ints
from paceline.policy.cures import Fault
from paceline.policy.observation import Observation, WorkerSeen


class SlowWorkers(NamedTuple):
    """The slow workers of a job, and the time that a step takes because of them."""

    fleet: Fleet
    """Present costs."""
    faults: tuple[Fault, ...]
    now_s: Floats
    """Each worker's time for its share in force."""
    since_s: float
    """Time at which the slow worker that takes longest became slow."""
    step_s: float
    healthy_s: float
    """A step with even shares, if no worker were slow."""
    uneven: bool
    """Whether the shares in force are not even."""

    @property
    def gap_s(self) -> float:
        """Seconds that each step loses."""
        return max(self.step_s - self.healthy_s, 0.0)

    @classmethod
    def of(cls, seen: Observation, slowness: float) -> Self | None:
        """Hold each worker against the fastest of its kind; None: nothing is measured yet.

        Most workers may be slow, so the median would not do. A worker that is faster by no more
        than chance is not (`Fleet.of`).
        """
        regimes = [worker.regime for worker in seen.workers if worker.regime is not None]
        if not regimes:
            return None
        fleet = _costs(seen, slowness)
        times_s, _ = paces_s(seen, fleet)
        kinds = np.array([worker.kind for worker in seen.workers])
        least_s = {kind: float(times_s[kinds == kind].min()) for kind in set(kinds.tolist())}
        healthy_s = np.array([least_s[kind] for kind in kinds.tolist()])
        slow = np.flatnonzero(times_s >= slowness * healthy_s).tolist()
        now_s = fleet.times_s(work(seen, fleet.shares))
        slowest = max(slow, key=lambda index: float(now_s[index]), default=0)
        regime, rest_s = seen.workers[slowest].regime, besides_s(seen)
        return cls(
            fleet=fleet,
            faults=tuple(Fault(cause="computation", ranks=(index,)) for index in slow),
            now_s=now_s,
            since_s=regime.since_s if regime is not None else seen.now_s,
            step_s=float(now_s.max()) + rest_s,
            healthy_s=float(healthy_s.max()) + rest_s,
            uneven=bool(np.ptp(fleet.shares) > max(each.accumulation for each in seen.workers)),
        )

    def in_proportion(self, seen: Observation) -> Fleet:
        """Costs to divide by: all of a worker's time is in proportion to its share.

        That is the paper's model. A worker that was seen at two sizes shows what is not so.
        """
        once = np.array(
            [each.regime is not None and len(each.regime.points) < 2 for each in seen.workers]
        )
        fleet, sizes = self.fleet, np.maximum(self.fleet.shares, 1)
        return dataclasses.replace(
            fleet,
            delays_s=np.where(once, 0.0, fleet.delays_s),
            slopes_s=np.where(once, fleet.times_s(fleet.shares) / sizes, fleet.slopes_s),
        )


def work(seen: Observation, shares: Ints) -> Floats:
    """Samples that each computes: the others do the share of an absent worker."""
    return np.asarray(shares * (seen.global_batch / max(shares.sum(), 1)), np.float64)


def _costs(seen: Observation, slowness: float) -> Fleet:
    """Present costs, where no chance is seen in workers that are known to be slow."""
    workers = seen.workers
    fleet = _judged(workers)
    small = fleet.shares < fleet.shares.mean() - workers[0].accumulation
    others = _measured(workers, small) if small.any() else None
    if others is None:
        return fleet
    usual_s = others.usual_delays_s + others.usual_slopes_s * others.shares
    slow = small & (others.times_s(others.shares) >= slowness * usual_s)
    return (_measured(workers, slow) or fleet) if slow.any() else fleet


def _judged(workers: Sequence[WorkerSeen]) -> Fleet:
    regimes = [worker.regime for worker in workers if worker.regime is not None]
    return Fleet.of(workers, chance.scatter(regimes), across=False)


def _measured(workers: Sequence[WorkerSeen], slow: Bools) -> Fleet | None:
    """Costs of these as they are measured, and of the others, which say what is usual.

    None: of a kind there is no other.
    """
    others = [worker for worker, is_slow in zip(workers, slow, strict=True) if not is_slow]
    place = {each.kind: index for index, each in enumerate(others) if each.regime is not None}
    if not all(worker.kind in place for worker in workers):
        return None
    measured, judged = Fleet.measured(workers), _judged(others)
    alike = [place[worker.kind] for worker in workers]
    for values, of_others in (
        (measured.delays_s, judged.delays_s),
        (measured.slopes_s, judged.slopes_s),
        (measured.by_chance, judged.by_chance),
    ):
        values[~slow] = of_others
    return dataclasses.replace(
        measured,
        usual_delays_s=judged.usual_delays_s[alike],
        usual_slopes_s=judged.usual_slopes_s[alike],
    )
