"""AntDT-DD: batch size and accumulation per hardware class, once, for clusters of one's own.

Reference: AntDT section VI-B, equation 4.
Differs: the time of a batch is the measured curve, not B / v, which is wrong below saturation; the
curve is measured by the solution itself, at the start, by batches that are not applied. A step also
costs a class what its workers do beside computing, sums and update: a slow one takes longer there.
"""

import itertools
import statistics
from collections.abc import Iterable
from typing import Annotated, ClassVar

from msgspec import Meta

from paceline.base.errors import ConfigError
from paceline.features.stragglers.policy import solvers
from paceline.features.stragglers.policy.solution import (
    SYNCHRONOUS,
    Compared,
    Part,
    Solution,
    Steps,
)
from paceline.policy.actions import AdjustBatch, AnyAction, Profile, Share
from paceline.policy.observation import Observation, WorkerSeen

_WORSE = 1.02
"""Factor by which a step with other shares must be faster before the shares in force change."""

Count = Annotated[int, Meta(ge=1)]


class Dedicated(Solution, frozen=True):
    """``dd``: measures 5 batch sizes, of 5 batches or more each, per class; then divides.

    Anew only when members change, or what a step costs them beside their batches.

    Raises:
        ConfigError: the largest batch, or what leaves memory free, is too small to see a curve.
        NoExactSum: the global batch cannot be had, and ``nearest`` is not set.
    """

    modes: ClassVar[tuple[str, ...]] = ("allreduce",)
    every_steps: Steps = 2
    num_sizes: Annotated[int, Meta(ge=2, le=8)] = 5
    """Batch sizes to measure: the largest, and halves of it."""
    num_steps: Count = 5
    """Batches per size; more where they take less than half a second together."""
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
        """Decide what to measure next; then ADJUST_BS, unless it is in force."""
        if seen.mode not in SYNCHRONOUS:
            return []
        kinds = _by_kind(seen.workers)
        sizes, enough = self._sizes(kinds, seen)
        missing = self._missing(kinds, sizes, enough)
        if missing:
            return [Profile(sizes=missing, steps=self.num_steps, reason="not yet measured")]
        classes = {kind: self._class(workers, sizes[kind]) for kind, workers in kinds.items()}
        return self._divide(seen, kinds, classes)

    def compared(self, seen: Observation, action: AnyAction) -> Compared:
        """A step by the measured curve of each worker's class; see `Solution.compared`."""
        kinds = _by_kind(seen.workers)
        sizes, enough = self._sizes(kinds, seen)
        if self._missing(kinds, sizes, enough):
            return Compared(times_s={})
        curves = {kind: self._class(workers, sizes[kind]) for kind, workers in kinds.items()}
        times_s = {
            worker.node: curves[worker.kind].step_s(Share(worker.batch_size, worker.accumulation))
            for worker in seen.workers
        }
        return Compared(times_s=times_s, verb="takes, as measured,")

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
        step_s = max(
            each.step_s(share) for each, share in zip(classes.values(), shares, strict=True)
        )
        present = {each.node: Share(each.batch_size, each.accumulation) for each in seen.workers}
        present_s = max(
            classes[kind].step_s(present[worker.node])
            for kind, workers in kinds.items()
            for worker in workers
        )
        is_whole = sum(one.num_samples for one in present.values()) == sum(
            one.num_samples for one in plan.values()
        )
        if is_whole and present_s <= _WORSE * step_s:
            return []
        parts = ", ".join(
            f"{kind or 'all'}: {share.accumulation} * {share.batch_size}"
            for kind, share in zip(kinds, shares, strict=True)
        )
        return [AdjustBatch(shares=plan, reason=f"a step of {step_s:.3g} s by {parts}")]

    def _class(self, workers: list[WorkerSeen], sizes: list[int]) -> solvers.HardwareClass:
        measured = {size: _measured(workers, size, self.num_steps) for size in sizes}
        curve = [(size, time_s) for size, time_s in measured.items() if time_s is not None]
        slopes_s = [
            (later_s - before_s) / (later - before)
            for (before, before_s), (later, later_s) in itertools.pairwise(curve)
        ]
        steep_s = self.flat * max(slopes_s[-1], 0.0)
        saturated = next(
            (index for index, slope_s in enumerate(slopes_s) if slope_s >= steep_s), len(slopes_s)
        )
        paces = [worker.short.message_s for worker in workers if worker.short is not None]
        return solvers.HardwareClass(
            devices=len(workers),
            sizes=tuple(size for size, _ in curve),
            times_s=tuple(time_s for _, time_s in curve),
            smallest=curve[saturated][0],
            largest=curve[-1][0],
            beside_s=statistics.fmean(paces) if paces else 0.0,
        )

    def _sizes(
        self, kinds: dict[str, list[WorkerSeen]], seen: Observation
    ) -> tuple[dict[str, list[int]], int]:
        """Batch sizes that fit into the memory of each class; the least that is an even share."""
        # Not of those who live now: or each loss would ask for a profile of other sizes.
        all_workers = len(seen.workers) + seen.absent
        even = seen.batch_per_worker or -(-seen.global_batch // all_workers)
        largest = self.largest or 2 * even
        halves = sorted({max(1, largest >> halvings) for halvings in range(self.num_sizes)})
        enough = min((size for size in halves if size >= even), default=largest)
        return {kind: _fitting(halves, workers) for kind, workers in kinds.items()}, enough

    def _missing(
        self, kinds: dict[str, list[WorkerSeen]], sizes: dict[str, list[int]], enough: int
    ) -> dict[str, int]:
        """The next size to measure of each class, by node.

        From the smallest on, so that it is known what memory the next one will take. First up to an
        even share: the class that takes longest for that is given no more, and measures no more.
        """
        few = {kind: fits[: max(2, sum(s <= enough for s in fits))] for kind, fits in sizes.items()}
        missing = self._unmeasured(kinds, few)
        if missing:
            return missing
        times_s = {kind: _measured(kinds[kind], enough, self.num_steps) for kind in kinds}
        if None in times_s.values():  # a class that cannot: others have to do more than that
            return self._unmeasured(kinds, sizes)
        slowest = max(times_s, key=lambda kind: times_s[kind] or 0.0)
        return self._unmeasured(kinds, {kind: sizes[kind] for kind in kinds if kind != slowest})

    def _unmeasured(
        self, kinds: dict[str, list[WorkerSeen]], sizes: dict[str, list[int]]
    ) -> dict[str, int]:
        """The smallest of these sizes that no worker of a class has shown yet, by node."""
        found: dict[str, int] = {}
        for kind, fits in sizes.items():
            lacking = (s for s in fits if _measured(kinds[kind], s, self.num_steps) is None)
            size = next(lacking, None)
            if size is not None:
                found |= {worker.node: size for worker in kinds[kind]}
        return found


def _by_kind(workers: Iterable[WorkerSeen]) -> dict[str, list[WorkerSeen]]:
    kinds: dict[str, list[WorkerSeen]] = {}
    for worker in workers:
        kinds.setdefault(worker.kind, []).append(worker)
    return kinds


def _fitting(sizes: list[int], workers: list[WorkerSeen]) -> list[int]:
    """Return the batch sizes for which all of a class have memory."""
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
