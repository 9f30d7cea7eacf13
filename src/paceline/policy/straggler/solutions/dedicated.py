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
    every_steps: Steps = 2
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
        sizes = self._sizes(kinds, seen)
        missing: dict[str, int] = {}
        for kind, workers in kinds.items():
            size = self._unmeasured(workers, sizes[kind])
            missing.update({worker.node: size for worker in workers if size is not None})
        if missing:
            return [Profile(sizes=missing, steps=self.num_steps, reason="not yet measured")]
        classes = {kind: self._class(workers, sizes[kind]) for kind, workers in kinds.items()}
        return self._divide(seen, kinds, classes)

    def _divide(
        self,
        seen: Observation,
        kinds: dict[str, list[WorkerSeen]],
        classes: dict[str, solvers.HardwareClass],
    ) -> list[AnyAction]:
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

    def _sizes(self, kinds: dict[str, list[WorkerSeen]], seen: Observation) -> dict[str, list[int]]:
        """What to measure of each class.

        From the smallest on, so that it is known what memory the next one will take; of the class
        that takes longest for an even share no more than that, since it is given no more.
        """
        # Not of those who live now: or each loss would ask for a profile of other sizes.
        even = -(-seen.global_batch // (len(seen.workers) + seen.absent))
        largest = self.largest or 2 * even
        halves = sorted({max(1, largest >> halvings) for halvings in range(self.num_sizes)})
        sizes = {kind: _fitting(halves, workers) for kind, workers in kinds.items()}
        enough = min((size for size in halves if size >= even), default=largest)
        times_s = {
            kind: time_s
            for kind, workers in kinds.items()
            if (time_s := _measured(workers, enough, self.num_steps)) is not None
        }
        if len(times_s) == len(kinds):
            slowest = max(times_s, key=lambda kind: times_s[kind])
            sizes[slowest] = sizes[slowest][: max(2, halves.index(enough) + 1)]
        return sizes


def _fitting(sizes: list[int], workers: list[WorkerSeen]) -> list[int]:
    """Of these batch sizes those for which all of a class have memory."""
    limits = [worker.batch_limit for worker in workers if worker.batch_limit is not None]
    fitting = [size for size in sizes if size <= min(limits, default=size)]
    if len(fitting) < 2:
        raise ConfigError(
            f"dd: of the batch sizes {sizes}, {fitting} leave 5 % of the memory of "
            f"{workers[0].node} free, and two are needed: give workers more memory, or set "
            "`largest`"
        )
    return fitting


def _measured(workers: Iterable[WorkerSeen], size: int, num_steps: int) -> float | None:
    """Mean time of a batch of this size; None: not measured for as many."""
    found = [one for worker in workers for one in worker.profile if one.batch_size == size]
    batches = sum(one.batches for one in found)
    if batches < num_steps:
        return None
    return sum(one.batches * one.batch_s for one in found) / batches
