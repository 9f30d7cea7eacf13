"""The policy ``es``: workers are added while each brings enough.

Reference: Or et al., Resource elasticity in distributed deep learning (MLSys 2020), as DLRover
section 6.3 used it: 4 workers, then 1, while the scaling efficiency is above 0.3. Servers stay.
"""

from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from paceline.features.sizes.policy.history import MeasuredSize, SizingHistory
from paceline.features.sizes.policy.observation import ResourceObservation
from paceline.features.sizes.policy.plan import Hold, ResourcePlan
from paceline.features.sizes.policy.planner import ResourcePolicy

StepOfNodes = Annotated[int, Meta(ge=1)]
Efficiency = Annotated[float, Meta(gt=0, le=1)]


class ElasticScaling(ResourcePolicy, frozen=True):
    """Or et al.: more workers while the scaling efficiency is high enough."""

    step: StepOfNodes = 4
    small_step: StepOfNodes = 1
    efficiency: Efficiency = 0.3
    """Samples per second that a further worker brings, as a part of what each brought before."""

    def decide(self, seen: ResourceObservation, history: SizingHistory) -> ResourcePlan | Hold:
        now = history.measured_at(seen.size)
        if now is None:
            return Hold(cause="too_little_measured")
        smaller = [
            each
            for each in history.measured
            if now.size.differing(each.size) == ("workers",)
            and each.size.workers < now.size.workers
        ]
        before = max(smaller, key=lambda each: each.size.workers, default=None)
        reached = 1.0 if before is None else efficiency(before, now)
        if reached < self.efficiency:
            return Hold(cause="no_gain", detail=f"scaling efficiency {reached:.2f}")
        for step in (self.step, self.small_step):
            target = replace(seen.size, workers=seen.size.workers + step)
            if seen.bounds.excess(target, seen.prices) or history.avoids(target, seen.now_s):
                continue
            per_s = now.rate.per_s
            return ResourcePlan(
                target=target,
                present_per_s=per_s,
                expected_per_s=per_s * (1.0 + reached * step / seen.size.workers),
                cost_s=seen.stall_s(target),
                cost_per_hour=target.cost(seen.prices) - seen.size.cost(seen.prices),
                confidence=0.6,
            )
        return Hold(cause="bounds", detail="no room for another worker")


def efficiency(before: MeasuredSize, after: MeasuredSize) -> float:
    """Samples per second for each added worker, as a part of what each brought before."""
    added = after.size.workers - before.size.workers
    for_each = before.rate.per_s / before.size.workers
    return (after.rate.per_s - before.rate.per_s) / added / for_each if for_each else 0.0
