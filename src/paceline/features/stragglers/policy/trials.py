"""Trials: the time that recorded steps would have taken under another plan.

Who is slow now is no guide where everybody is at times: what a plan is worth then shows in the
steps that were. Each recorded step is made again with the costs that it had, by the rules of a
step: a late worker ends the batch that it is in before it joins the step then under way.

What a batch of a recorded step would have taken at another size is an assumption: as far as
iterations are also faster than is usual, to the same degree, that is in proportion to the size;
the rest is a delay, which each batch has, however small it is.

Reference: none; Chen et al. 2016, arXiv:1604.00981, section 3, measures such waits off line.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from paceline.features.stragglers.policy import chance
from paceline.features.stragglers.policy.fleet import Fleet
from paceline.features.stragglers.policy.solvers import Floats
from paceline.policy.observation import WorkerSeen

_STEPS, _BATCHES, _FEW_STEPS = 48, 12_000, 12
"""Most steps and most batches (of all workers) in a record, and steps that are allowed in any case.
A decision of 1,000 workers should take 100 ms at most."""
_BLOCKS = 6
"""Number of blocks of a record. Their means tell how sure the mean over all is."""
_FAST = 0.05
"""Quantile of times that tells how much faster than is usual iterations are by chance."""
_BATCH = 0.01
"""Cost of one more batch as a part of the usual time, as long as no other sizes were seen."""
_SIZES = 0.1
"""Sizes say what a batch of another size takes where the square of their relative deviation is
larger: work is taken from those who are slow, so that small differences would mislead."""


class Patience(NamedTuple):
    """Limits of a step's wait for missing samples: see `Partial` and `BackupWorkers`."""

    left_out: int = 0
    late: int = 0
    grace_s: float = 0.0
    chunks: int = 1


class Trial(NamedTuple):
    """A plan in the recorded steps."""

    step_s: float
    """Mean time in which one global batch is in the model."""
    blocks_s: Floats
    """Mean time in each part of the record."""

    def surely_saves(self, present: "Trial", sigmas: float) -> float:
        """Seconds that a step saves against another plan, less its error so many times."""
        gains_s = present.blocks_s - self.blocks_s
        error_s = float(gains_s.std(ddof=1)) / math.sqrt(len(gains_s)) if len(gains_s) > 1 else 0.0
        return present.step_s - self.step_s - sigmas * error_s


class Recorded:
    """The cost of each worker's batches in each recorded step: delay + slope * samples."""

    def __init__(self, delays_s: Floats, slopes_s: Floats, message_s: float, besides_s: float):
        """Begin.

        Args:
            delays_s: of a batch, by step and worker.
            slopes_s: of a sample, the same.
            message_s: from one contribution of a worker to the next of the same step.
            besides_s: of a step, from when it is decided until the next one begins.
        """
        self._delays_s, self._slopes_s = delays_s, slopes_s
        self._message_s, self._besides_s = message_s, besides_s

    def __len__(self) -> int:
        return len(self._delays_s)

    @classmethod
    def of(
        cls,
        workers: Sequence[WorkerSeen],
        fleet: Fleet,
        lasting: Floats,
        message_s: float,
        besides_s: float,
    ) -> Self:
        """The newest steps, as those to come are expected to be.

        Each worker is as it is now in so large a part of them as is expected to last, whatever it
        was before its last change.

        Args:
            workers: in the fleet's order.
            fleet: present costs.
            lasting: the part of the time to come that each is so, by worker.
            message_s: see `Recorded`.
            besides_s: see `Recorded`.
        """
        times = np.array([each.accumulation for each in workers])
        present = np.maximum(fleet.shares / times, 1.0)
        usual_s = fleet.usual_delays_s / times + fleet.usual_slopes_s * present
        ends_s, sizes, taken_s = _steps(workers, present)
        sizes = np.where(np.isnan(sizes), present, sizes)
        by_size = _by_size(workers)
        expected_s = usual_s * (1.0 - by_size + by_size * sizes / present)
        ratios = np.where(np.isnan(taken_s), 1.0, taken_s / expected_s)
        differs, count = fleet.differs, len(sizes)
        alike = ratios[:, ~differs] if not differs.all() else ratios
        fast = float(np.quantile(alike, _FAST) / np.median(alike))
        slopes_s = by_size * usual_s / present * np.clip(ratios, 0.1, 1.0 / min(fast, 1.0))
        slopes_s = np.where(differs, fleet.slopes_s, slopes_s)
        slopes_s = np.minimum(slopes_s, ratios * expected_s / sizes)
        delays_s = ratios * expected_s - slopes_s * sizes
        # Since when each is as it is now; what it was before is not expected of it, for a while.
        since_s = np.array([each.regime.since_s if each.regime else 0.0 for each in workers])
        last = np.arange(count)[:, np.newaxis] >= np.round((1.0 - lasting) * count)
        now = last & (ends_s[:, np.newaxis] <= since_s)
        return cls(
            np.where(now, fleet.delays_s, times * delays_s),
            np.where(now, fleet.slopes_s, slopes_s),
            message_s,
            besides_s,
        )

    def fluid_s(self, shares: Floats) -> float:
        """A step's time if nobody ever waited for anybody."""
        times_s = self._delays_s + self._slopes_s * shares
        return float(shares.sum() / (shares / times_s.mean(axis=0)).sum()) + self._besides_s

    def trials(self, shares: Floats, plans: Sequence[Patience]) -> list[Trial]:
        """Make all steps again with each of these plans."""
        found: dict[int, Trial] = {}
        kinds = [(each.chunks, bool(each.left_out or each.late)) for each in plans]
        for kind in set(kinds):
            places = [place for place, each in enumerate(kinds) if each == kind]
            chunks = kind[0]
            spent_s, done = self._run(shares, [plans[place] for place in places], chunks)
            blocks = np.array_split(np.arange(len(self)), min(_BLOCKS, len(self)))
            total = float(shares.sum())
            for row, place in enumerate(places):
                parts = [
                    total * spent_s[each, row].sum() / max(done[each, row].sum(), 1.0)
                    for each in blocks
                ]
                step_s = total * float(spent_s[:, row].sum() / max(done[:, row].sum(), 1.0))
                found[place] = Trial(step_s, np.array(parts))
        return [found[place] for place in range(len(plans))]

    def _run(self, shares: Floats, plans: Sequence[Patience], chunks: int) -> tuple[Floats, Floats]:
        """Time and samples of each step, by plan."""
        if chunks == 1 and not any(each.left_out or each.late for each in plans):
            whole_s = (self._delays_s + self._slopes_s * shares).max(axis=1) + self._besides_s
            spent_s = np.repeat(whole_s[:, np.newaxis], len(plans), axis=1)
            return spent_s, np.full_like(spent_s, shares.sum())
        parts = shares / chunks
        batches_s = self._delays_s + self._slopes_s * parts
        left_out = np.array([[each.left_out] for each in plans], np.float64)
        late = np.array([[max(each.late, each.left_out)] for each in plans], np.float64)
        grace_s = np.array([[each.grace_s] for each in plans])
        total = shares.sum()
        numbers = np.arange(1, chunks + 1)
        between_s = self._message_s * (numbers - 1)
        each_part = np.repeat(parts, chunks)
        rows = np.arange(len(plans))
        free_s = np.zeros((len(plans), len(shares)))
        spent_s, committed = np.zeros((2, len(self), len(plans)))
        for step, batch_s in enumerate(batches_s):
            turn_s = batch_s + self._message_s
            within_s = batch_s[:, np.newaxis] * numbers + between_s
            ends_s = (free_s[:, :, np.newaxis] + within_s).reshape(len(plans), -1)
            order = np.argsort(ends_s, axis=1)
            ends_s = np.take_along_axis(ends_s, order, axis=1)
            missing = total - np.cumsum(each_part[order], axis=1) - 1e-6 * total
            last = ends_s.shape[1] - 1
            enough = np.minimum((missing > left_out).sum(axis=1), last)
            in_grace = np.minimum((missing > late).sum(axis=1), last)
            closed_s = np.minimum(ends_s[rows, enough], ends_s[rows, in_grace] + grace_s[:, 0])
            closed_s = closed_s[:, np.newaxis]
            done = np.floor((closed_s - free_s + self._message_s) / turn_s + 1e-9)
            done = np.clip(done, 0, chunks)
            over_s = free_s + (done + 1) * turn_s - self._message_s
            next_s = closed_s + self._besides_s
            begun = (done < chunks) & (over_s - batch_s < next_s)
            free_s = np.maximum(np.where(begun, over_s, free_s) - next_s, 0.0)
            spent_s[step], committed[step] = next_s[:, 0], done @ parts
        return spent_s, committed


def _by_size(workers: Sequence[WorkerSeen]) -> float:
    """The part of a batch's time that is in proportion to its size, of all workers together."""
    varied = joint = weight = 0.0
    for worker in chance.some_of(workers):
        trail = worker.regime.trail if worker.regime else ()
        sizes = np.array([each.samples for each in trail])
        if not sizes.any():
            continue
        times_s = np.array([each.compute_s for each in trail])
        sizes, times_s = sizes / sizes.mean() - 1.0, times_s / times_s.mean() - 1.0
        varied += float(sizes @ sizes)
        joint += float(sizes @ times_s)
        weight += len(trail)
    prior = _SIZES * max(weight, 1.0)
    return min(max((joint + prior * (1.0 - _BATCH)) / (varied + prior), 0.0), 1.0)


def _steps(workers: Sequence[WorkerSeen], shares: Floats) -> tuple[Floats, Floats, Floats]:
    """When steps ended, and batch size and time of each worker in them.

    NaN: not recorded, or of no samples. A batch that took longer than a step counts once, and in
    the steps that it was late for only as far as the worker's next one took as long.
    """
    trails = [each.regime.trail if each.regime else () for each in workers]
    counts = [
        [max(round(each.iterations * each.samples / share), 1) for each in trail]
        for trail, share in zip(trails, shares.tolist(), strict=True)
    ]
    most = max(range(len(workers)), key=lambda index: sum(counts[index]))
    ends_s: Floats = np.array(
        [
            each.t_s - each.span_s * back / count
            for each, count in zip(trails[most], counts[most], strict=True)
            for back in range(count - 1, -1, -1)
        ][-min(_STEPS, max(_BATCHES // len(workers), _FEW_STEPS)) :]
        or [0.0]
    )
    sizes: Floats = np.full((len(ends_s), len(workers)), np.nan)
    taken_s: Floats = np.full((len(ends_s), len(workers)), np.nan)
    for index, (trail, count) in enumerate(zip(trails, counts, strict=True)):
        if not trail:
            continue
        until_s = np.array([each.t_s for each in trail])
        places = np.minimum(np.searchsorted(until_s, ends_s - 1e-2), len(trail) - 1).tolist()
        before, repeated = -1, 0
        for row, place in enumerate(places):
            each = trail[place]
            if ends_s[row] <= each.begin_s or not each.samples:
                continue
            repeated = repeated + 1 if place == before else 0
            before = place
            sizes[row, index] = each.samples
            taken_s[row, index] = each.time_s(float(until_s[place] - ends_s[row]), index)
            if repeated >= count[place]:
                after = trail[min(place + 1, len(trail) - 1)]
                after_s = after.compute_s * each.samples / max(after.samples, 1.0)
                taken_s[row, index] = min(taken_s[row, index], after_s)
    return ends_s, sizes, taken_s
