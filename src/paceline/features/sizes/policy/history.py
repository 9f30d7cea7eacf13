"""Experience of a job with sizes: rates measured at each, and plans that did not work out.

A policy remembers nothing itself; this is handed to it with each observation, and is recorded.
"""

import msgspec

from paceline.features.sizes.policy.observation import StepParts
from paceline.features.sizes.policy.rates import JobRate
from paceline.policy.job_size import DIMENSIONS, JobSize

KEPT = 40
"""Measured sizes, outcomes and avoided sizes that are kept, the newest."""


class MeasuredSize(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements while a job had one size, after it had settled."""

    size: JobSize
    batch: float
    """Samples of one worker's batch."""
    rate: JobRate
    parts: StepParts = StepParts()
    worker_cores: float | None = None
    """Cores that a worker used, mean; None: not measured."""
    server_cores: float | None = None
    """Cores that a server used, mean; None: not measured."""
    skew: float | None = None
    """Cores that the busiest server used, for each of the mean; None: not measured."""
    at_s: float = 0.0
    """Time of the newest measurement in it."""

    @property
    def step_s(self) -> float:
        """Seconds of a worker's step that would give this rate."""
        return self.size.workers * self.batch / self.rate.per_s if self.rate.per_s else 0.0


class AvoidedSize(msgspec.Struct, frozen=True, kw_only=True):
    """A change that is not tried again for a while.

    What could not be had will not be had if more is asked for. A size that was slower says nothing
    of sizes that are far from it: speed has its best in between.
    """

    origin: JobSize
    target: JobSize
    until_s: float
    why: str
    """``refused``, ``pending``, ``failed`` or ``worse``."""
    nodes: tuple[str, ...] = ()
    """Nodes that got a size of their own."""
    times: int = 1
    """Number of times that the change did not work out."""

    def covers(self, size: JobSize, nodes: tuple[str, ...] = ()) -> bool:
        """Whether a change goes at least as far from the origin, in each dimension of this one.

        One that was slower covers only sizes close to it.
        """
        if not set(self.nodes) <= set(nodes):
            return False
        if self.why == "worse" and not self.nodes:
            return self.target.is_close(size)
        for each in DIMENSIONS:
            before = getattr(self.origin, each)
            avoided, asked = getattr(self.target, each) - before, getattr(size, each) - before
            if avoided and asked / avoided < 1.0 - 1e-6:
                return False
        return True

    def is_of(self, origin: JobSize, target: JobSize, nodes: tuple[str, ...]) -> bool:
        """Whether this is the change from one size to the other, and of these nodes."""
        return (self.origin, self.target, self.nodes) == (origin, target, nodes)


class PlanOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Promise of a plan, beside what it brought."""

    origin: JobSize
    target: JobSize
    relieves: str
    before_per_s: float
    expected_per_s: float
    after_per_s: float
    verdict: str
    """``better``, ``as_before`` or ``worse``."""
    at_s: float = 0.0


class SizingHistory(msgspec.Struct, frozen=True, kw_only=True):
    """All that is handed to a policy besides the observation."""

    measured: tuple[MeasuredSize, ...] = ()
    """One for each size and batch, the newest last."""
    similar: tuple[MeasuredSize, ...] = ()
    """Rates measured in similar earlier jobs: a prior, which this job's own measurements
    outweigh."""
    avoided: tuple[AvoidedSize, ...] = ()
    outcomes: tuple[PlanOutcome, ...] = ()
    """Oldest first."""
    changes: int = 0
    """Changes of the job's size so far, including those that were taken back and the taking
    back."""
    probes: int = 0
    """Changes among them that were made to learn something."""

    def measured_at(self, size: JobSize) -> MeasuredSize | None:
        """The newest measurement at a size; None: there is none."""
        return next((one for one in reversed(self.measured) if not one.size.differing(size)), None)

    def avoids(
        self, size: JobSize, now_s: float, nodes: tuple[str, ...] = ()
    ) -> AvoidedSize | None:
        """Why a size is not asked for now; None: it may be.

        Args:
            size: what a plan asks for.
            now_s: by the clock of the observations.
            nodes: those that the plan gives a size of their own.
        """
        return next(
            (each for each in self.avoided if each.until_s > now_s and each.covers(size, nodes)),
            None,
        )

    def with_measured(self, seen: MeasuredSize) -> "SizingHistory":
        """The same, with the newest measurement of a size in the place of the one before."""
        others = tuple(
            each
            for each in self.measured
            if each.size.differing(seen.size) or each.batch != seen.batch
        )
        return msgspec.structs.replace(self, measured=(*others, seen)[-KEPT:])

    def with_avoided(self, avoided: AvoidedSize) -> "SizingHistory":
        """The same, with a change that did not work out, in the place of the same one before."""
        before = self.without_avoided(avoided.origin, avoided.target, avoided.nodes)
        return msgspec.structs.replace(self, avoided=(*before.avoided, avoided)[-KEPT:])

    def without_avoided(
        self, origin: JobSize, target: JobSize, nodes: tuple[str, ...]
    ) -> "SizingHistory":
        """The same, with a change that may be tried again."""
        kept = tuple(each for each in self.avoided if not each.is_of(origin, target, nodes))
        return msgspec.structs.replace(self, avoided=kept)

    def times_avoided(self, origin: JobSize, target: JobSize, nodes: tuple[str, ...]) -> int:
        """How often a change did not work out before."""
        return next((each.times for each in self.avoided if each.is_of(origin, target, nodes)), 0)

    def with_outcome(self, outcome: PlanOutcome) -> "SizingHistory":
        """The same, with what a plan brought."""
        return msgspec.structs.replace(self, outcomes=(*self.outcomes, outcome)[-KEPT:])
