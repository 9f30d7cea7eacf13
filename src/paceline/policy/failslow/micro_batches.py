"""S2: micro-batches moved from slow replicas to fast ones; the global batch stays as it is.

A replica's gradient is the mean over its micro-batches, and an averaging all-reduce weighs all
replicas alike. So each replica multiplies its gradient by its weight: the sum is then the exact
mean over the global batch.

Reference: FALCON section 4.3 (arXiv:2410.12588).
Differs: the exact greedy instead of the least variance, whose slowest replica may take a fifth
longer; the times are those measured per micro-batch, not of matrix products.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from paceline.policy.straggler.solvers import Infeasible, level


class MicroBatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How many micro-batches each replica computes of a step."""

    counts: tuple[int, ...]
    step_s: float
    """Expected: of the slowest replica, without communication."""

    @property
    def weights(self) -> tuple[float, ...]:
        """What each replica multiplies its mean gradient by, before an averaging all-reduce."""
        even = sum(self.counts) / len(self.counts)
        return tuple(count / even for count in self.counts)


def plan_micro_batches(times_s: Sequence[float], total: int, unit: int = 1) -> MicroBatchPlan:
    """Divide a step so that its slowest replica is as fast as can be; each gets a unit at least.

    Args:
        times_s: of one micro-batch, by replica: its slowest member's.
        total: micro-batches of a step.
        unit: counts are multiples of it; with 1F1B the number of stages.

    Raises:
        Infeasible: the total is no multiple of the unit, or too small.
    """
    units, rest = divmod(total, unit)
    if rest:
        raise Infeasible(f"{total} micro-batches are no multiple of {unit}")
    slopes_s = unit * np.asarray(times_s, np.float64)
    counts = tuple(unit * int(one) for one in level(np.zeros(len(times_s)), slopes_s, units))
    return MicroBatchPlan(
        counts=counts,
        step_s=max(count * time_s for count, time_s in zip(counts, times_s, strict=True)),
    )


def fluid_slowdown(replicas: int, slow: int, factor: float) -> float:
    """Return a step's time over the healthy one if work could be divided at will.

    Args:
        replicas: of the job.
        slow: replicas of these that are slow.
        factor: so many times as long as the others.
    """
    return replicas / (replicas - slow + slow / factor)
