"""The workers of an observation as arrays: what a batch costs each of them.

Reference: none; see `paceline.policy.stats.affine`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from paceline.features.stragglers.policy import chance
from paceline.features.stragglers.policy.solvers import Floats, Ints
from paceline.policy.observation import Observation, WorkerSeen
from paceline.policy.stats import affine
from paceline.policy.stats.regimes import Regime

Bools = NDArray[np.bool_]

_LEAST_SLOPE = 1e-3
"""Least slope, as a part of the usual time per sample: every cost depends on the batch size."""
_UNKNOWN_SCATTER = 0.1
"""Relative difference that may be chance, as long as the iterations' scatter is not known."""
_LEAST_ITERATIONS = 2
"""A single iteration that took long, for once, is not a worker that has become slow."""
_MEDIAN = 0.675
"""Median of a normal value's size, in standard deviations."""
PLAN_S = 30.0
"""A division is made for so long: it should suit what is expected of that time."""
_SPELL_S, _STATE_S = 10.0, 100.0
"""Shorter spells are noise; what of so long a time a spell lasts is what changes of state do."""
_LASTING = (0.05, 0.95)
"""A worker that differs is expected to go on so, until the job has shown how long that is."""
_LOAD = (1.0, 1.0)
"""Expectation for a worker whose machine does other work: that is as likely to end as to become
twice as old."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fleet:
    """Costs of a step, delay + slope * samples, by worker in the observation's order."""

    delays_s: Floats
    slopes_s: Floats
    usual_delays_s: Floats
    """Delays that are usual for workers of each one's kind, and expected of it after a restart."""
    usual_slopes_s: Floats
    by_chance: Floats
    """Part of a worker's relative difference from the usual that may be chance; 0 of a usual
    worker."""
    shares: Ints
    """Samples per step in the plan in force."""

    @classmethod
    def measured(cls, workers: Sequence[WorkerSeen]) -> Self:
        """Fit the costs; at least one worker was measured."""
        known = np.array([worker.regime is not None for worker in workers])
        delays_s, slopes_s = np.zeros(len(workers)), np.zeros(len(workers))
        delays_s[known], slopes_s[known] = _fit(
            [worker for worker in workers if worker.regime is not None]
        )
        usual_delays_s, usual_slopes_s = np.zeros(len(workers)), np.zeros(len(workers))
        for members in _kinds(workers):
            alike = members & known if (members & known).any() else known
            usual_slopes_s[members] = np.median(slopes_s[alike])
            usual_delays_s[members] = np.median(delays_s[alike])
        times = np.array([worker.accumulation for worker in workers])
        sizes = np.array([worker.batch_size for worker in workers], np.int64)
        return cls(
            delays_s=times * np.where(known, delays_s, usual_delays_s),
            slopes_s=np.maximum(
                np.where(known, slopes_s, usual_slopes_s), _LEAST_SLOPE * usual_slopes_s
            ),
            usual_delays_s=times * usual_delays_s,
            usual_slopes_s=usual_slopes_s,
            by_chance=np.zeros(len(workers)),
            shares=times * sizes,
        )

    @classmethod
    def of(cls, workers: Sequence[WorkerSeen], scatter: float, *, across: bool = True) -> Self:
        """Fit the costs.

        A worker that differs from what is usual by no more than chance, given how iterations
        scatter, is taken for usual: of many workers some always look slow.

        Args:
            workers: at least one was measured.
            scatter: standard deviation of an iteration over its mean; 0: not known.
            across: see `chance.drift`.
        """
        fleet = cls.measured(workers)
        usual_s = fleet.usual_delays_s + fleet.usual_slopes_s * fleet.shares
        apart_s = np.abs(fleet.times_s(fleet.shares) - usual_s)
        apart = float(np.median(apart_s / np.maximum(usual_s, 1e-9)))
        by_chance = np.maximum(_by_chance(workers, scatter, apart, across), _starved(workers))
        alike = (apart_s <= by_chance * usual_s) | _changed_just_now(workers)
        return dataclasses.replace(
            fleet,
            delays_s=np.where(alike, fleet.usual_delays_s, fleet.delays_s),
            slopes_s=np.where(alike, fleet.usual_slopes_s, fleet.slopes_s),
            by_chance=np.where(alike, 0.0, by_chance),
        )

    def lasting(self, seen: Observation) -> Floats:
        """The part of the time to come that each is expected to be as it is now.

        Who is as is usual stays so for as long as slow spells last: where they come and go within a
        minute, that one is over says nothing.
        """
        excess_s = self.times_s(self.shares) - self.usual_delays_s
        excess_s -= self.usual_slopes_s * self.shares
        usual = seen.worker_spells.expected_s(_SPELL_S, 0.0, _STATE_S, _LASTING) / _STATE_S
        return np.array(
            [
                _lasting(worker, seen, worker_s) if differs else usual
                for worker, worker_s, differs in zip(
                    seen.workers, excess_s.tolist(), self.differs.tolist(), strict=True
                )
            ]
        )

    def expected(self, lasting: Floats) -> Self:
        """Costs over the time that a division is made for, on average."""
        return dataclasses.replace(
            self,
            delays_s=self.usual_delays_s + lasting * (self.delays_s - self.usual_delays_s),
            slopes_s=self.usual_slopes_s + lasting * (self.slopes_s - self.usual_slopes_s),
        )

    @property
    def differs(self) -> Bools:
        """Tell, by worker, whether its costs are not taken for usual."""
        apart_s = np.abs(self.delays_s - self.usual_delays_s)
        apart_s += np.abs(self.slopes_s - self.usual_slopes_s)
        return apart_s > 0.0

    def healed(self, workers: Sequence[int]) -> Self:
        """Costs if these were as is usual."""
        healed = np.isin(np.arange(len(self.shares)), workers)
        return dataclasses.replace(
            self,
            delays_s=np.where(healed, self.usual_delays_s, self.delays_s),
            slopes_s=np.where(healed, self.usual_slopes_s, self.slopes_s),
        )

    def times_s(self, shares: Ints | Floats) -> Floats:
        """The times of a step with these shares."""
        return self.delays_s + self.slopes_s * shares


def _lasting(worker: WorkerSeen, seen: Observation, excess_s: float) -> float:
    """The part of a plan's time that a worker is expected to be as it is now.

    ``excess_s``: what it takes more than is usual; where it waits for a processor as long, that is
    load of its machine, which comes and goes.
    """
    if worker.regime is None:
        return 1.0
    age_s = max(seen.now_s - worker.regime.since_s, 1e-3)
    stolen_s = max(worker.regime.stolen_s, worker.short.stolen_s if worker.short else 0.0)
    starved = stolen_s >= 0.5 * excess_s > 0.0
    prior = _LOAD if starved else _LASTING
    return seen.worker_spells.expected_s(age_s, 0.0, PLAN_S, prior) / PLAN_S


def _by_chance(workers: Sequence[WorkerSeen], scatter: float, apart: float, across: bool) -> Floats:
    """The largest of so many errors is expected there, and seldom half a deviation above.

    A mean errs by how iterations scatter, and by how much a node's times go up and down by
    themselves. Until that is known it is not worth more than one iteration, nor is what half of the
    workers differ by.
    """
    if not scatter:
        return np.full(len(workers), _UNKNOWN_SCATTER)
    regimes = [worker.regime for worker in workers if worker.regime is not None]
    drift = chance.drift(regimes, across=across)
    deviations = [
        _deviation(worker.regime, scatter, drift)
        if worker.regime and drift is not None
        else max(scatter, apart / _MEDIAN)
        for worker in workers
    ]
    return (chance.largest_normal(len(workers)) + 0.5) * np.array(deviations)


def _changed_just_now(workers: Sequence[WorkerSeen]) -> Bools:
    """Workers whose present regime has a single iteration, which may just have been late."""
    return np.array(
        [
            worker.regime is not None and worker.regime.iterations < _LEAST_ITERATIONS
            for worker in workers
        ]
    )


def _deviation(regime: Regime, scatter: float, drift: float) -> float:
    """The deviation of the mean of a regime."""
    recent = max(sum(point.recent for point in regime.points), 1.0)
    span_s = sum(each.span_s for each in regime.trail)
    stretches = recent * span_s / max(sum(each.iterations for each in regime.trail), 1)
    stretches /= 2.0 * chance.STRETCH_S
    return max(scatter / math.sqrt(recent), drift / math.sqrt(max(stretches, 1.0)))


def _starved(workers: Sequence[WorkerSeen]) -> float:
    """The part of its computation that a worker waits for a processor, on average.

    Where all share a busy machine, who of them waits longest is chance.
    """
    paces = [worker.short for worker in workers if worker.short is not None]
    waits = [min(pace.stolen_s / pace.compute_s, 1.0) for pace in paces if pace.compute_s]
    return float(np.mean(waits)) if waits else 0.0


def _fit(workers: Sequence[WorkerSeen]) -> tuple[Floats, Floats]:
    """Delay and slope per batch; every worker has a regime."""
    regimes = [worker.regime for worker in workers if worker.regime is not None]
    points = [point for regime in regimes for point in regime.points]
    owners = np.repeat(np.arange(len(regimes)), [len(regime.points) for regime in regimes])
    sizes = np.array([point.batch_size for point in points], np.float64)
    times_s = np.array([point.compute_s for point in points])
    iterations = np.array([point.iterations for point in points], np.float64)
    priors = np.array([np.nan if regime.slope_s is None else regime.slope_s for regime in regimes])
    if np.isnan(priors).any():
        # Time over size is an upper bound of the slope; the usual one is not a straggler's.
        total_s = np.bincount(owners, iterations * times_s)
        per_sample_s = total_s / np.maximum(np.bincount(owners, iterations * sizes), 1.0)
        for members in _kinds(workers):
            unknown = members & np.isnan(priors)
            priors[unknown] = np.median(per_sample_s[members])
    recent = np.array([point.recent for point in points])
    return affine.fit(owners, sizes, times_s, iterations, recent, priors)


def _kinds(workers: Sequence[WorkerSeen]) -> list[Bools]:
    """The members of each hardware class."""
    kinds = np.array([worker.kind for worker in workers])
    return [kinds == kind for kind in np.unique(kinds)]
