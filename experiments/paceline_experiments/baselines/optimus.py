"""The policy ``optimus``: the node with the largest marginal gain is added.

Reference: Peng et al., Optimus (EuroSys 2018): a worker's step is T = a + b w / p + c w + d p, by
non-negative least squares; one worker or one server more, whichever brings more for its cores.
Differs: sizes to fit it to are steps of the job itself, not runs before it.
"""

from typing import Annotated

import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from paceline.base.optional import extra_for
from paceline.features.sizes.policy.history import MeasuredSize, SizingHistory
from paceline.features.sizes.policy.observation import ResourceObservation
from paceline.features.sizes.policy.plan import Hold, ResourcePlan
from paceline.features.sizes.policy.planner import ResourcePolicy
from paceline.policy.job_size import JobSize

AddedNodes = Annotated[int, Meta(ge=1)]

_SIZES = 3
"""Measured sizes that the model needs."""


class Optimus(ResourcePolicy, frozen=True):
    """Optimus: one node more at a time, by marginal gain."""

    workers: AddedNodes = 1
    """Workers of one step (DLRover's evaluation has 1 and 4)."""
    servers: AddedNodes = 1
    """Servers of one step (DLRover's evaluation has 1 and 2)."""

    def decide(self, seen: ResourceObservation, history: SizingHistory) -> ResourcePlan | Hold:
        now = history.measured_at(seen.size)
        if now is None:
            return Hold(cause="too_little_measured")
        size = seen.size
        steps = [replace(size, workers=size.workers + self.workers)]
        if size.servers:
            steps.append(replace(size, servers=size.servers + self.servers))
        free = [
            each
            for each in steps
            if not seen.bounds.excess(each, seen.prices) and not history.avoids(each, seen.now_s)
        ]
        if not free:
            return Hold(cause="bounds", detail="no room for another node")
        if len(history.measured) < _SIZES:
            target = next((each for each in free if not _known(history, each)), free[0])
            return self._plan(seen, now, target, now.rate.per_s, learns=True)
        found = _fitted([each for each in history.measured if each.size.servers])
        level = now.rate.per_s / _per_s(found, size, now.batch)
        gains = {each: level * _per_s(found, each, seen.batch_at(each.workers)) for each in free}

        def marginal(each: JobSize) -> float:
            return (gains[each] - now.rate.per_s) / (each.cores - size.cores)

        best = max(free, key=marginal)
        return self._plan(seen, now, best, gains[best], learns=False)

    def _plan(
        self,
        seen: ResourceObservation,
        now: MeasuredSize,
        target: JobSize,
        expected: float,
        *,
        learns: bool,
    ) -> ResourcePlan:
        return ResourcePlan(
            target=target,
            aim="learn" if learns else "faster",
            present_per_s=now.rate.per_s,
            expected_per_s=expected,
            cost_s=seen.stall_s(target),
            cost_per_hour=target.cost(seen.prices) - seen.size.cost(seen.prices),
            confidence=0.6,
        )


def _known(history: SizingHistory, size: JobSize) -> bool:
    return any(not each.size.differing(size) for each in history.measured)


def _columns(size: JobSize) -> list[float]:
    servers = max(size.servers, 1)
    return [1.0, size.workers / servers, float(size.workers), float(servers)]


def _fitted(seen: list[MeasuredSize]) -> list[float]:
    with extra_for("a resource policy that fits a model"):
        from scipy.optimize import nnls  # 0.4 s, and needed only here

    times_s = np.array([each.step_s for each in seen])
    rows = np.array([_columns(each.size) for each in seen]) / times_s[:, np.newaxis]
    found, _ = nnls(rows, np.ones(len(seen)))
    return [float(each) for each in found]


def _per_s(found: list[float], size: JobSize, batch: float) -> float:
    step_s = sum(each * value for each, value in zip(found, _columns(size), strict=True))
    return size.workers * batch / max(step_s, 1e-9)
