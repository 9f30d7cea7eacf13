"""AntDT-DD: batch size and accumulation per hardware class, once, for clusters of one's own.

Reference: AntDT section VI-B, equation 4.
Differs: the time of a batch is the measured curve, not B / v, which is wrong below saturation; the
curve is measured by the solution itself, at the start, on samples that go back.
"""

import itertools
from collections.abc import Iterable
from typing import Annotated, ClassVar

from msgspec import Meta

from paceline.base.errors import ConfigError
from paceline.policy.straggler import solvers
from paceline.policy.straggler.actions import AdjustBatch, AnyAction, Profile, Share
from paceline.policy.straggler.observation import Observation, WorkerSeen
from paceline.policy.straggler.solution import SYNCHRONOUS, Part, Solution, Steps

Count = Annotated[int, Meta(ge=1)]


class Dedicated(Solution, frozen=True):
    """``dd``: measures 5 batch sizes for 5 steps per class, then divides for good.

    Raises:
        ConfigError: no largest batch is known for a class.
        NoExactSum: the global batch cannot be had, and ``nearest`` is not set.
    """

    modes: ClassVar[tuple[str, ...]] = ("allreduce",)
    profiles: ClassVar[bool] = True

    every_steps: Steps = 5
    num_sizes: Annotated[int, Meta(ge=2, le=8)] = 5
    """Batch sizes to measure: the largest, and halves of it."""
    num_steps: Count = 5
    """Batches per size."""
    largest: Count | None = None
    """Largest batch; none: what leaves 5 % of a worker's memory free."""
    flat: Part = 0.1
    """Below the saturation point the curve is this much flatter than at its end."""
    min_accumulation: Count = 1
    max_accumulation: Count = 5
    nearest: bool = False
    """Take the nearest global batch where no sizes add up to the one that was asked for."""

    def decide(self, seen: Observation) -> list[AnyAction]:
        """What to measure next; then ADJUST_BS, unless it is in force."""
        if seen.mode not in SYNCHRONOUS:
            return []
        kinds: dict[str, list[WorkerSeen]] = {}
        for worker in seen.workers:
            kinds.setdefault(worker.kind, []).append(worker)
        missing: dict[str, int] = {}
        for workers in kinds.values():
            size = self._unmeasured(workers)
            missing.update({worker.node: size for worker in workers if size is not None})
        if missing:
            return [Profile(sizes=missing, steps=self.num_steps, reason="not yet measured")]
        return self._divide(seen, kinds)

    def _divide(self, seen: Observation, kinds: dict[str, list[WorkerSeen]]) -> list[AnyAction]:
        classes = {kind: self._class(workers) for kind, workers in kinds.items()}
        shares = solvers.dedicated(
            list(classes.values()),
            seen.global_batch,
            (self.min_accumulation, self.max_accumulation),
            nearest=self.nearest,
        )
        plan = {
            worker.node: share
            for workers, share in zip(kinds.values(), shares, strict=True)
            for worker in workers
        }
        if all(
            plan[each.node] == Share(each.batch_size, each.accumulation) for each in seen.workers
        ):
            return []
        step_s = max(
            share.accumulation * each.time_s(share.batch_size)
            for each, share in zip(classes.values(), shares, strict=True)
        )
        parts = ", ".join(
            f"{kind or 'all'}: {share.accumulation} * {share.batch_size}"
            for kind, share in zip(kinds, shares, strict=True)
        )
        return [AdjustBatch(shares=plan, reason=f"a step of {step_s:.3g} s by {parts}")]

    def _class(self, workers: list[WorkerSeen]) -> solvers.HardwareClass:
        sizes = self._sizes(workers)
        times_s = [_measured(workers, size, self.num_steps) or 0.0 for size in sizes]
        slopes_s = [
            (later_s - before_s) / (later - before)
            for (before, before_s), (later, later_s) in itertools.pairwise(
                zip(sizes, times_s, strict=True)
            )
        ]
        steep_s = self.flat * max(slopes_s[-1], 0.0)
        saturated = next(
            (index for index, slope_s in enumerate(slopes_s) if slope_s >= steep_s), len(slopes_s)
        )
        return solvers.HardwareClass(
            devices=len(workers),
            sizes=tuple(sizes),
            times_s=tuple(times_s),
            smallest=sizes[saturated],
            largest=sizes[-1],
        )

    def _unmeasured(self, workers: list[WorkerSeen]) -> int | None:
        """The smallest batch size that no worker of the class has shown yet."""
        sizes = self._sizes(workers)
        return next((s for s in sizes if _measured(workers, s, self.num_steps) is None), None)

    def _sizes(self, workers: list[WorkerSeen]) -> list[int]:
        limits = [worker.batch_limit for worker in workers if worker.batch_limit is not None]
        largest = self.largest or min(limits, default=0)
        if largest < 2:
            raise ConfigError(
                f"dd: no largest batch is known for {workers[0].node}; set `largest`, at least 2"
            )
        return sorted({max(1, largest >> halvings) for halvings in range(self.num_sizes)})


def _measured(workers: Iterable[WorkerSeen], size: int, num_steps: int) -> float | None:
    """Mean time of a batch of this size; None: not measured for as many steps."""
    points = [
        point
        for worker in workers
        if worker.regime is not None
        for point in worker.regime.points
        if point.batch_size == size
    ]
    iterations = sum(point.iterations for point in points)
    if iterations < num_steps:
        return None
    return sum(point.iterations * point.compute_s for point in points) / iterations
