"""AntDT-DD: batch size and accumulation per hardware class, once, for clusters of one's own.

Reference: AntDT section VI-B, equation 4.
Differs: the time of a batch is the measured curve, not B / v, which is wrong below saturation; the
curve is measured by the solution itself, at the start, by batches that are not applied.
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
        ConfigError: the largest batch, or what leaves memory free, is too small to see a curve.
        NoExactSum: the global batch cannot be had, and ``nearest`` is not set.
    """

    modes: ClassVar[tuple[str, ...]] = ("allreduce",)
    every_steps: Steps = 5
    num_sizes: Annotated[int, Meta(ge=2, le=8)] = 5
    """Batch sizes to measure: the largest, and halves of it."""
    num_steps: Count = 5
    """Batches per size."""
    largest: Count | None = None
    """Largest batch, if it leaves 5 % of a worker's memory free; none: twice a worker's even share,
    as accumulation covers more."""
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
            size = self._unmeasured(workers, self._sizes(workers, seen))
            missing.update({worker.node: size for worker in workers if size is not None})
        if missing:
            return [Profile(sizes=missing, steps=self.num_steps, reason="not yet measured")]
        return self._divide(seen, kinds)

    def _divide(self, seen: Observation, kinds: dict[str, list[WorkerSeen]]) -> list[AnyAction]:
        classes = {
            kind: self._class(workers, self._sizes(workers, seen))
            for kind, workers in kinds.items()
        }
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

    def _class(self, workers: list[WorkerSeen], sizes: list[int]) -> solvers.HardwareClass:
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

    def _unmeasured(self, workers: list[WorkerSeen], sizes: list[int]) -> int | None:
        """The smallest batch size that no worker of the class has shown yet."""
        return next((s for s in sizes if _measured(workers, s, self.num_steps) is None), None)

    def _sizes(self, workers: list[WorkerSeen], seen: Observation) -> list[int]:
        """From the smallest on, so that it is known what memory the next one will take."""
        # Not of those who live now: or each loss would ask for a profile of other sizes.
        largest = self.largest or -(-2 * seen.global_batch // (len(seen.workers) + seen.absent))
        halves = {max(1, largest >> halvings) for halvings in range(self.num_sizes)}
        limits = [worker.batch_limit for worker in workers if worker.batch_limit is not None]
        sizes = sorted(size for size in halves if size <= min(limits, default=size))
        if len(sizes) < 2:
            raise ConfigError(
                f"dd: of the batch sizes {sorted(halves)}, {sizes} leave 5 % of the memory of "
                f"{workers[0].node} free, and two are needed: give workers more memory, or set "
                "`largest`"
            )
        return sizes


def _measured(workers: Iterable[WorkerSeen], size: int, num_steps: int) -> float | None:
    """Mean time of a batch of this size; None: not measured for as many."""
    found = [one for worker in workers for one in worker.profile if one.batch_size == size]
    batches = sum(one.batches for one in found)
    if batches < num_steps:
        return None
    return sum(one.batches * one.batch_s for one in found) / batches
