"""The best division of a synchronous step: who computes how much, and who is not waited for.

Reference: AntDT section VI-A, equation 2; Chen et al. 2016, arXiv:1604.00981 (backup workers).
Differs: costs are affine; a worker beyond help (its delay alone is longer than the others' step)
keeps one sample that a step may lack, so that its recovery is seen; steps may go without a part of
their samples where delays are random.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.policy.stats.regimes import LATE
from paceline.policy.straggler import ranks, solvers
from paceline.policy.straggler.fleet import Fleet
from paceline.policy.straggler.observation import Observation
from paceline.policy.straggler.solvers import Ints

_MOST_LEFT_OUT = 0.25
"""Of the workers; no larger part is considered for being left out of a step."""
_WAIT = len(LATE) - 1
"""The grace that never ends, as a place in `LATE`."""

_LEAST_SHORT_S = 0.1
"""Steps that are shorter wait for all that are late by chance: who is late must hear of it."""
_RELIEVED = 0.1
"""All are waited for again when not to do so gains less than this part of what it must gain."""

Members = np.ndarray[tuple[int], np.dtype[np.bool_]]


class Patience(NamedTuple):
    """Whom a step waits for: `BackupWorkers`, or `Partial`."""

    backup: int = 0
    left_out: int = 0
    late: int = 0
    grace_s: float = 0.0


def in_force(seen: Observation) -> Patience:
    """As the last actions have set it."""
    return Patience(seen.backup, seen.left_out, seen.late, seen.grace_s)


class Randomness(NamedTuple):
    """An answer to delays that hit another worker every step."""

    workers: int = 0
    """So many that are late are not waited for."""
    grace: int = _WAIT
    """But until then; a place in `LATE`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Shares by worker, in the observation's order."""

    shares: Ints
    patience: Patience
    beyond_help: Members
    level_s: float
    """Time of the slowest that is waited for, without scatter."""
    step_s: float
    """Predicted, with scatter."""


class Restart(NamedTuple):
    """What the restart of one worker changes, as parts of a step's time."""

    gain: float
    """Saved once it is as is usual."""
    absence: float
    """Lost until then, held against what a step takes afterwards."""


class Step:
    """Predicts the time of a step of one observation, under any division."""

    def __init__(self, seen: Observation, fleet: Fleet, delays: ranks.Delays) -> None:
        self._seen = seen
        self._fleet = fleet
        self._most = int(_MOST_LEFT_OUT * len(seen.workers))
        waits = delays.waits(self._most)
        self._ratios = waits.ratios / (1.0 - waits.dropped)
        """Of a step's time to a worker's mean, with the work that is done again."""
        self._known = delays.known

    def present_s(self, patience: Patience) -> float:
        """Of the shares in force."""
        seen = self._seen
        # The share of one that is gone is done by the others.
        shares = self._fleet.shares * (seen.global_batch / max(self._fleet.shares.sum(), 1))
        times_s = self._fleet.times_s(shares)
        slowest = np.argsort(-times_s, kind="stable")
        times_s, missing = times_s[slowest], np.concatenate([[0.0], np.cumsum(shares[slowest])])
        at_once, in_grace = (
            min(max(int((missing[1:] <= 1.001 * count).sum()), patience.backup), len(times_s) - 1)
            for count in (patience.left_out, max(patience.left_out, patience.late))
        )
        step_s = math.inf
        # Those who are spared are the slowest on average, or those who are late by chance.
        for spared in range(in_grace + 1):
            level_s = float(times_s[spared])
            by_chance = min(in_grace - spared, self._most)
            waited_s = level_s * self._ratio(by_chance, self._place(patience.grace_s, level_s))
            if spared > at_once:
                again = float(missing[spared] - missing[at_once]) / seen.global_batch
                waited_s = (waited_s + patience.grace_s) / (1.0 - again)
            step_s = min(step_s, waited_s)
        return step_s

    def best(self, growth: float, min_gain: float) -> Division:
        """The division of the shortest step; where limits leave no other, that in force."""
        shares, beyond, level_s = self._levelled(self._fleet, growth)
        random = self._against_random(level_s, beyond, min_gain)
        return Division(
            shares=shares,
            patience=self._patience(shares, beyond, random, level_s),
            beyond_help=beyond,
            level_s=level_s,
            step_s=level_s * self._ratio(*random),
        )

    def restarts(self, workers: Sequence[int], growth: float) -> list[Restart]:
        """What the restart of each of these changes, work being divided as well as can be.

        A worker that nobody waits for, or whose samples the others cannot take, saves nothing by
        itself. Where several hold the others up, each saves its part of what they save together,
        and no more than it would save once the others are healed.
        """

        def level_s(healed: Sequence[int]) -> float:
            return self._levelled(self._fleet.healed(healed), growth)[2]

        if not workers:
            return []
        now_s, all_s = level_s([]), level_s(workers)
        found = []
        for worker in workers:
            last_s = level_s([other for other in workers if other != worker]) - all_s
            together_s = min((now_s - all_s) / len(workers), last_s)
            gain_s = max(now_s - level_s([worker]), together_s, 0.0)
            without_s = max(self._without_s(worker), now_s - gain_s)
            found.append(Restart(gain_s / now_s, 1.0 - (now_s - gain_s) / without_s))
        return found

    def _without_s(self, worker: int) -> float:
        """Of a step whose samples the others compute, as a fluid."""
        others = np.arange(len(self._seen.workers)) != worker
        if not others.any():
            return math.inf
        delays_s, slopes_s = self._fleet.delays_s[others], self._fleet.slopes_s[others]
        order = np.argsort(delays_s, kind="stable")
        rates, from_s = 1.0 / slopes_s[order], delays_s[order]
        levels_s = (self._seen.global_batch + np.cumsum(from_s * rates)) / np.cumsum(rates)
        return float(np.maximum(levels_s, from_s).min())

    def _patience(
        self, shares: Ints, beyond: Members, random: Randomness, level_s: float
    ) -> Patience:
        left_out = int(shares[beyond].sum())
        if not random.workers:
            return Patience(left_out=left_out)
        if random.grace == 0:
            return Patience(backup=int(beyond.sum()) + random.workers)
        # Whoever of them is late, before the shares change and after.
        largest = np.sort(np.maximum(shares, self._fleet.shares)[~beyond])[::-1]
        late = left_out + int(largest[: random.workers].sum())
        return Patience(left_out=left_out, late=late, grace_s=self._grace_s(random.grace, level_s))

    def _levelled(self, fleet: Fleet, growth: float) -> tuple[Ints, Members, float]:
        """Shares, who is beyond help, and the time of the slowest that is waited for."""
        shares = self._shares(fleet, growth)
        times_s = fleet.times_s(shares)
        least = shares <= self._seen.workers[0].accumulation
        level_s = float(times_s[~least].max()) if not least.all() else float(times_s.max())
        # A member of a group can be late for a step, but not for all.
        may_lack = self._seen.short_steps and self._seen.mode == "bsp"
        beyond = least & (times_s > level_s) & may_lack
        return shares, beyond, float(times_s[~beyond].max()) if not beyond.all() else level_s

    def _shares(self, fleet: Fleet, growth: float) -> Ints:
        """Whole batches of the accumulation in force."""
        seen = self._seen
        unit = seen.workers[0].accumulation
        mixed = any(worker.accumulation != unit for worker in seen.workers)
        if mixed or seen.global_batch % unit:
            return fleet.shares
        even = seen.global_batch / len(seen.workers)
        known = np.array([worker.regime is not None for worker in seen.workers])
        most = np.ceil(np.where(known, growth * np.maximum(fleet.shares, even), even) / unit)
        limits = np.array(
            [math.inf if each.batch_limit is None else each.batch_limit for each in seen.workers]
        )
        upper = np.minimum(most, limits).astype(np.int64)
        try:
            units = solvers.level(
                fleet.delays_s,
                unit * fleet.slopes_s,
                seen.global_batch // unit,
                lower=self._least(unit),
                upper=upper,
            )
        except solvers.Infeasible:
            return fleet.shares
        return unit * units

    def _least(self, unit: int) -> int:
        """Units that each gets: a member of a group computes no single sample, but nothing then."""
        spare = self._seen.global_batch >= 2 * unit * len(self._seen.workers)
        return 2 if self._seen.mode == "allreduce" and unit == 1 and spare else 1

    def _against_random(self, level_s: float, beyond: Members, min_gain: float) -> Randomness:
        """The best answer, given how single iterations scatter."""
        if not self._seen.short_steps or level_s < _LEAST_SHORT_S:
            return Randomness()
        present = self._present(level_s, beyond)
        if not self._known:
            return present
        grace, workers = np.unravel_index(self._ratios.argmin(), self._ratios.shape)
        best = Randomness(int(workers), int(grace))
        if self._ratio(*best) > (1.0 - _RELIEVED * min_gain) * self._ratio(*Randomness()):
            return Randomness()
        return best if self._ratio(*best) < (1.0 - min_gain) * self._ratio(*present) else present

    def _present(self, level_s: float, beyond: Members) -> Randomness:
        """What of the patience in force answers random delays, and not workers beyond help."""
        now = in_force(self._seen)
        if now.late > now.left_out:
            largest = np.cumsum(np.sort(self._fleet.shares)[::-1])
            workers = max(1, int((largest <= 1.001 * (now.late - now.left_out)).sum()))
        else:
            workers = now.backup - int(beyond.sum())
        if workers <= 0:
            return Randomness()
        return Randomness(min(workers, self._most), self._place(now.grace_s, level_s))

    def _place(self, grace_s: float, level_s: float) -> int:
        """Where in `LATE` the grace ends."""
        return int(np.abs(LATE - (1.0 + grace_s / level_s)).argmin())

    def _grace_s(self, place: int, level_s: float) -> float:
        """That in force if it ends there, too."""
        now_s = self._seen.grace_s
        if self._seen.late and self._place(now_s, level_s) == place:
            return now_s
        return float(LATE[place] - 1.0) * level_s

    def _ratio(self, workers: int, grace: int) -> float:
        return float(self._ratios[grace, workers])
