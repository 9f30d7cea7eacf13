"""The best division of a synchronous step: who computes how much, and who is not waited for.

Reference: AntDT section VI-A, equation 2; Chen et al. 2016, arXiv:1604.00981 (backup workers).
Differs: costs are affine; a worker beyond help (its delay alone is longer than the others' step)
keeps one sample that a step may lack, so that its recovery is seen; steps may go without a part of
their samples where delays are random.
"""

import dataclasses
import math
import statistics
from typing import NamedTuple

import numpy as np

from paceline.policy.straggler import ranks, solvers
from paceline.policy.straggler.fleet import Fleet
from paceline.policy.straggler.observation import Observation
from paceline.policy.straggler.solvers import Floats, Ints

_MOST_LEFT_OUT = 0.25
"""Of the workers; no larger part is considered for being left out of a step."""
_UNFINISHED = 0.75
"""Of the share of one that is late: all of it after a delay, half if it is half as fast."""

Members = np.ndarray[tuple[int], np.dtype[np.bool_]]


class Patience(NamedTuple):
    """Whom a step waits for; one of the first two is 0."""

    backup: int = 0
    left_out: int = 0
    chunks: int = 1


def round_trip_s(seen: Observation) -> float:
    """Of a request: the servers' work and the wire."""
    paces = [worker.short for worker in seen.workers if worker.short is not None]
    return statistics.median(pace.server_s + pace.message_s for pace in paces) if paces else 0.0


def in_force(seen: Observation) -> Patience:
    """As the last actions have set it."""
    return Patience(seen.backup, seen.left_out, seen.chunks)


class Randomness(NamedTuple):
    """An answer to delays that hit another worker every step."""

    workers: int = 0
    """So many slowest workers are not waited for."""
    chunks: int = 1
    """1: their samples are dropped; more: what they have finished counts."""


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


class Step:
    """Predicts the time of a step of one observation, under any division."""

    def __init__(self, seen: Observation, fleet: Fleet, delays: ranks.Delays) -> None:
        self._seen = seen
        self._fleet = fleet
        self._ranks = delays.expected_ranks(self._most_left_out())
        self._round_trip_s = round_trip_s(seen)

    def present_s(self, patience: Patience) -> float:
        """Of the shares in force."""
        seen = self._seen
        # The share of one that is gone is done by the others.
        shares = self._fleet.shares * (seen.global_batch / max(self._fleet.shares.sum(), 1))
        times_s = self._fleet.times_s(shares)
        slowest = np.argsort(-times_s, kind="stable")
        lacking = int((np.cumsum(shares[slowest]) <= 1.001 * patience.left_out).sum())
        spared = min(max(lacking, patience.backup), len(slowest) - 1)
        random = self._random(patience)
        # Those who are spared are the slowest on average, or those who are late by chance.
        by_chance = np.maximum(random.workers - np.arange(spared + 1), 0)
        waited_s = (times_s[slowest[: spared + 1]] * self._ratios(by_chance)).min()
        return float(self._with_drops(waited_s, np.array(random.workers), random.chunks))

    def best(self, growth: float, chunks: int, min_random_gain: float) -> Division:
        """The division of the shortest step; where limits leave no other, that in force."""
        seen, fleet = self._seen, self._fleet
        shares = self._levelled(growth)
        times_s = fleet.times_s(shares)
        least = shares <= seen.workers[0].accumulation
        level_s = float(times_s[~least].max()) if not least.all() else float(times_s.max())
        # Only parameter servers can decide a step without some of its samples.
        beyond = least & (times_s > level_s) & (seen.mode == "bsp")
        step_s = level_s if seen.mode == "bsp" else float(times_s.max())
        random = self._against_random(step_s, chunks, min_random_gain)
        waited_s = step_s * self._ratios(np.array(random.workers))
        return Division(
            shares=shares,
            patience=_patience(shares, beyond, random),
            beyond_help=beyond,
            level_s=step_s,
            step_s=float(self._with_drops(waited_s, np.array(random.workers), random.chunks)),
        )

    def _random(self, patience: Patience) -> Randomness:
        """What of it answers random delays, and not workers beyond help."""
        if patience.backup:
            return Randomness(patience.backup)
        if patience.chunks == 1:
            return Randomness()
        workers = patience.left_out * len(self._seen.workers) // self._seen.global_batch
        return Randomness(workers, patience.chunks)

    def _levelled(self, growth: float) -> Ints:
        """Whole batches of the accumulation in force."""
        seen, fleet = self._seen, self._fleet
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
                fleet.delays_s, unit * fleet.slopes_s, seen.global_batch // unit, upper=upper
            )
        except solvers.Infeasible:
            return fleet.shares
        return unit * units

    def _against_random(self, step_s: float, chunks: int, min_gain: float) -> Randomness:
        """What to leave out, given how single iterations scatter."""
        if self._seen.mode != "bsp":
            return Randomness()
        present = self._random(in_force(self._seen))
        counts = np.arange(self._most_left_out() + 1)
        waited_s = step_s * self._ratios(counts)
        steps_s = {each: self._with_drops(waited_s, counts, each) for each in (1, chunks)}
        best_s, best_chunks = min((float(steps_s[each].min()), each) for each in steps_s)
        best = Randomness(int(steps_s[best_chunks].argmin()), best_chunks)
        if best.workers <= present.workers:
            return best
        present_s = steps_s[present.chunks if present.chunks in steps_s else 1][
            min(present.workers, self._most_left_out())
        ]
        return best if best_s < (1.0 - min_gain) * present_s else present

    def _ratios(self, spared: Ints) -> Floats:
        """Of the wait to a worker's mean, if so many are not waited for that are late by chance."""
        return self._ranks[np.minimum(spared, self._most_left_out())]

    def _with_drops(self, waited_s: Floats, dropped: Ints, chunks: int) -> Floats:
        """With the work that is done again.

        Args:
            waited_s: for the slowest that counts.
            dropped: workers that are not waited for.
            chunks: contributions of a worker; if several, what it has finished is not done again.
        """
        again = dropped / len(self._seen.workers) * (1.0 if chunks == 1 else _UNFINISHED)
        return np.asarray((waited_s + (chunks - 1) * self._round_trip_s) / (1.0 - again))

    def _most_left_out(self) -> int:
        return int(_MOST_LEFT_OUT * len(self._seen.workers))


def _patience(shares: Ints, beyond_help: Members, random: Randomness) -> Patience:
    if not random.workers:
        return Patience(left_out=int(shares[beyond_help].sum()))
    if random.chunks == 1:
        return Patience(backup=int(beyond_help.sum()) + random.workers)
    largest = np.sort(shares)[-random.workers :]
    return Patience(left_out=int(shares[beyond_help].sum() + largest.sum()), chunks=random.chunks)


def restart_gains(fleet: Fleet, division: Division, latency_s: float) -> tuple[Floats, Floats]:
    """What the recovery of each worker would save, and what its absence until then would cost.

    By the continuous solution of the division: with W = sum of 1 / slope and D = sum of
    delay / slope a step of B samples takes (B + D) / W.

    Returns:
        Part of a step's time that is saved; seconds that the absence costs.
    """
    rates = 1.0 / fleet.slopes_s
    lost = fleet.delays_s * rates
    usual_rates = 1.0 / fleet.usual_slopes_s
    usual_lost = fleet.usual_delays_s * usual_rates
    helps = ~division.beyond_help
    total = float(division.shares[helps].sum()) + float(lost[helps].sum())
    rate = float(rates[helps].sum())
    without_s = (total - helps * lost) / np.maximum(rate - helps * rates, 1e-300)
    healed_s = (total - helps * lost + usual_lost) / (rate - helps * rates + usual_rates)
    gain = 1.0 - healed_s / max(division.level_s, total / rate)
    return gain, latency_s * (1.0 - healed_s / without_s)
