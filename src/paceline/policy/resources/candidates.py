"""Sizes that a job could have, on the Pareto front of what they cost and what they bring.

Reference: DLRover-RM section 4.2 (Eq. 7 to 9) and NSGA-II of section 4.3.
Differs: the paper's gain subtracts seconds from samples per second. Here it is the mean samples per
second until the end of the job that are won, after the work that the change costs. The search
minimises the negative gain instead of its inverse: the front is the same, and gains near zero do no
harm. Sizes far from the present one are not looked at: a model is trusted for a factor of 4.
"""

import itertools
import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.policy.resources.observation import (
    GIB,
    ChangeKind,
    JobSize,
    ResourceBounds,
    ResourceObservation,
)
from paceline.policy.resources.step_model import Floats, SizeModel, SizeTable

Ints = NDArray[np.int64]

_HORIZON_S = 1800.0
"""Seconds until the end of a job whose end is not known."""
CAUTION = 0.5
"""Part of an expected rate's relative error by which the rate is lowered, out of caution."""
_POPULATION = 40
_GENERATIONS = 25
_ROUNDS = 6
"""Rounds of looking at all neighbours of the front that the search has found."""


class SizeOffer(msgspec.Struct, frozen=True, kw_only=True):
    """One size, with what it brings and what it costs."""

    size: JobSize
    per_s: float
    """Samples per second that are expected."""
    error: float
    """Relative error of that."""
    gain: float
    """TG: samples per second that are won until the end, after what the change costs."""
    cost: float
    """RC: what an hour costs more than now; below 0: less."""
    stall_s: float
    """Work that the change costs."""


class SearchSpace(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes within reach: counts, and quotas in steps; a quota of 0 stays 0."""

    lows: tuple[int, ...]
    highs: tuple[int, ...]
    step: float
    """Cores of one step."""

    @classmethod
    def around(cls, seen: ResourceObservation, reach: float) -> "SearchSpace":
        """What the bounds allow, at most by a factor of `reach` from the present size."""
        size, bounds, step = seen.size, seen.bounds, seen.bounds.core_step

        def counts(now: int, least: int, most: int | None) -> tuple[int, int]:
            if not now:
                return 0, 0
            low = max(least, math.ceil(now / reach))
            high = min(most or math.floor(now * reach), math.floor(now * reach))
            return min(low, high), max(low, high)

        def quotas(now: float) -> tuple[int, int]:
            if not now:
                return 0, 0
            low = max(bounds.min_node_cores, now / reach)
            high = min(bounds.max_node_cores or now * reach, now * reach)
            low_steps = max(math.ceil(low / step - 1e-6), 1)
            return low_steps, max(math.floor(high / step + 1e-6), low_steps)

        ranges = (
            counts(size.workers, max(bounds.min_workers, 1), bounds.max_workers),
            counts(size.servers, max(bounds.min_servers, 1), bounds.max_servers),
            quotas(size.worker_cpu),
            quotas(size.server_cpu),
        )
        return cls(
            lows=tuple(low for low, _ in ranges),
            highs=tuple(high for _, high in ranges),
            step=step,
        )

    def clipped(self, size: JobSize) -> tuple[int, ...]:
        """The point of the space that is closest to a size."""
        point = (
            size.workers,
            size.servers,
            round(size.worker_cpu / self.step),
            round(size.server_cpu / self.step),
        )
        return tuple(
            min(max(value, low), high)
            for value, low, high in zip(point, self.lows, self.highs, strict=True)
        )


class Valuation:
    """What sizes bring and cost, all at once.

    Args:
        seen: the job now; its measured rate corrects the model's level.
        model: of its steps.
        per_s: samples per second now.
        least: see `offers`.
        caution: see `offers`.
    """

    def __init__(
        self,
        seen: ResourceObservation,
        model: SizeModel,
        per_s: float,
        least: float,
        caution: float,
    ) -> None:
        self._seen, self._model, self.per_s = seen, model, per_s
        self._least, self._caution = least, caution
        self._now = SizeTable.of([seen.size], [seen.batch_at(seen.size.workers)])
        self._level = per_s / float(model.per_s(self._now)[0])
        left = seen.samples_left
        self.left_s = _HORIZON_S if left is None else max(left / per_s, 1.0)

    def table(self, points: Ints, step: float) -> SizeTable:
        """The sizes of points of the search space."""
        workers = points[:, 0].astype(np.float64)
        quota_w, quota_s = points[:, 2] * step, points[:, 3] * step
        seen = self._seen
        batch = (
            seen.global_batch / workers
            if seen.global_batch
            else np.full(len(workers), float(seen.batch_size))
        )
        return SizeTable(
            workers=workers,
            servers=points[:, 1].astype(np.float64),
            worker_cpu=np.where(quota_w > 0.0, quota_w, 1.0),
            server_cpu=np.where(quota_s > 0.0, quota_s, 1.0),
            batch=batch,
        )

    def rates(self, sizes: SizeTable) -> tuple[Floats, Floats]:
        """Expected samples per second and their relative errors."""
        return self._level * self._model.per_s(sizes), self._model.errors(sizes, self._now)

    def least_rates(self, sizes: SizeTable) -> Floats:
        """The same, if cores of one node beyond all that was measured bring nothing."""
        return np.asarray(self._level * self._model.least_per_s(sizes))

    def beyond(self, points: Ints, step: float) -> Floats:
        """How far sizes are beyond each of the bounds; 0 or less: within."""
        cores, memory, cost = _needs(points, step, self._seen)
        beyond = _beyond(cores, memory, cost, self._seen.bounds)
        slow = self._least / self.least_rates(self.table(points, step)) - 1.0
        return np.concatenate([beyond, slow[:, np.newaxis]], axis=1)

    def stalls_s(self, points: Ints, now: tuple[int, ...]) -> Floats:
        """Work that each change costs, in seconds."""
        kinds: tuple[ChangeKind, ...] = ("workers", "servers", "worker_size", "server_size")
        times = {each.kind: each.stall_s for each in self._seen.transitions}
        costs = np.array([times.get(kind, 0.0) for kind in kinds])
        return np.asarray((points != np.array(now)) @ costs)

    def gains(self, rates: Floats, errors: Floats, stalls_s: Floats) -> Floats:
        """TG of each, with caution where little is known."""
        careful = rates * np.exp(-self._caution * errors)
        worked_s = np.maximum(self.left_s - stalls_s, 0.0)
        return np.asarray((careful * worked_s - self.per_s * self.left_s) / self.left_s)


def offers(
    seen: ResourceObservation,
    model: SizeModel,
    per_s: float,
    reach: float = 4.0,
    seed: int = 0,
    least: float = 0.0,
    caution: float = CAUTION,
) -> list[SizeOffer]:
    """Find the sizes on the Pareto front of cost and gain, by increasing cost.

    Args:
        seen: the job now.
        model: of its steps.
        per_s: samples per second now.
        reach: factor by which each count and quota may change at most.
        seed: of the search.
        least: samples per second that a size must have if cores of one node beyond all that was
            measured bring nothing.
        caution: part of its relative error that is taken from what a size is expected to bring.
    """
    space = SearchSpace.around(seen, reach)
    value = Valuation(seen, model, per_s, least, caution)
    now = space.clipped(seen.size)
    points = _front(seen, space, value, now, seed)
    for _ in range(_ROUNDS):
        thinned = points[:: max(len(points) // _POPULATION, 1)]
        points = _better(thinned, seen, space, value, now)
    table = value.table(points, space.step)
    rates, errors = value.rates(table)
    stalls_s = value.stalls_s(points, now)
    gains = value.gains(rates, errors, stalls_s)
    found = []
    for place, point in enumerate(points.tolist()):
        size = size_at(point, space.step, seen.size)
        if seen.bounds.excess(size, seen.prices):
            continue
        found.append(
            SizeOffer(
                size=size,
                per_s=float(rates[place]),
                error=float(errors[place]),
                gain=float(gains[place]),
                cost=size.cost(seen.prices) - seen.size.cost(seen.prices),
                stall_s=float(stalls_s[place]),
            )
        )
    return sorted(found, key=lambda each: (each.cost, -each.gain))


def size_at(point: list[int], step: float, now: JobSize) -> JobSize:
    """The size of a point; fewer servers hold more memory each, all together as much."""
    workers, servers, worker_steps, server_steps = point
    memory = now.server_memory
    if memory and servers and servers < now.servers:
        memory = math.ceil(memory * now.servers / servers)
    return JobSize(
        workers=workers,
        servers=servers,
        worker_cpu=round(worker_steps * step, 9),
        server_cpu=round(server_steps * step, 9),
        worker_memory=now.worker_memory,
        server_memory=memory,
    )


def _front(
    seen: ResourceObservation,
    space: SearchSpace,
    value: Valuation,
    now: tuple[int, ...],
    seed: int,
) -> Ints:
    """Points of the Pareto front, by NSGA-II."""
    # 0.5 s, and needed only here.
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.problem import Problem
    from pymoo.operators.crossover.sbx import SBX
    from pymoo.operators.mutation.pm import PM
    from pymoo.operators.repair.rounding import RoundingRepair
    from pymoo.optimize import minimize

    class Sizes(Problem):  # type: ignore[misc]
        """Cost and negative gain of sizes, and how far they are beyond the bounds."""

        def _evaluate(self, x: Ints, out: dict[str, Any], *args: object, **more: object) -> None:
            del args, more
            points = np.asarray(x, np.int64)
            table = value.table(points, space.step)
            rates, errors = value.rates(table)
            gains = value.gains(rates, errors, value.stalls_s(points, now))
            _, _, cost = _needs(points, space.step, seen)
            out["F"] = np.stack([cost, -gains], axis=1)
            out["G"] = value.beyond(points, space.step)

    start = _start(space, now, np.random.default_rng(seed))
    result = minimize(
        Sizes(n_var=4, n_obj=2, n_ieq_constr=4, xl=space.lows, xu=space.highs, vtype=int),
        NSGA2(
            pop_size=_POPULATION,
            sampling=start,
            crossover=SBX(prob=0.9, eta=5.0, vtype=float, repair=RoundingRepair()),
            mutation=PM(prob=0.9, eta=5.0, vtype=float, repair=RoundingRepair()),
            eliminate_duplicates=True,
        ),
        ("n_gen", _GENERATIONS),
        seed=seed,
        verbose=False,
    )
    if result.X is None:
        return np.array([now], np.int64)
    return np.unique(np.asarray(result.X, np.int64), axis=0)


def _better(
    points: Ints,
    seen: ResourceObservation,
    space: SearchSpace,
    value: Valuation,
    now: tuple[int, ...],
) -> Ints:
    """The front of these points and all their neighbours: one step more or less in each way."""
    steps = np.array(list(itertools.product((-1, 0, 1), repeat=4)))
    near = (points[:, np.newaxis, :] + steps).reshape(-1, 4)
    near = np.unique(np.clip(near, space.lows, space.highs), axis=0)
    near = near[(value.beyond(near, space.step) <= 0.0).all(axis=1)]
    if not len(near):
        return points
    _, _, cost = _needs(near, space.step, seen)
    rates, errors = value.rates(value.table(near, space.step))
    gains = value.gains(rates, errors, value.stalls_s(near, now))
    order = np.lexsort((-gains, cost))
    best_before = np.maximum.accumulate(np.append(-np.inf, gains[order][:-1]))
    return np.asarray(near[order[gains[order] > best_before + 1e-9]])


def _needs(points: Ints, step: float, seen: ResourceObservation) -> tuple[Floats, Floats, Floats]:
    """Cores, bytes, and cost per hour of each point."""
    workers, servers = points[:, 0].astype(np.float64), points[:, 1].astype(np.float64)
    # As `JobSize.cores` has it: a node without a quota counts as one core.
    of_worker = np.where(points[:, 2] > 0, points[:, 2] * step, 1.0)
    of_server = np.where(points[:, 3] > 0, points[:, 3] * step, 1.0)
    cores = workers * of_worker + servers * of_server
    # As `size_at` has it: fewer servers hold more memory each.
    of_servers = np.maximum(servers, seen.size.servers) * seen.size.server_memory
    memory = workers * seen.size.worker_memory + of_servers
    return cores, memory, cores * seen.prices.core + memory / GIB * seen.prices.gib


def _beyond(cores: Floats, memory: Floats, cost: Floats, bounds: ResourceBounds) -> Floats:
    """How far each is beyond the bounds of all nodes together; 0 or less: within."""

    def over(amount: Floats, limit: float | None) -> Floats:
        if limit is None:
            return np.full(len(amount), -1.0)
        return np.asarray(amount / limit - 1.0 - 1e-6)

    amounts = (cores, bounds.cores), (memory, bounds.memory_bytes), (cost, bounds.cost)
    return np.stack([over(amount, limit) for amount, limit in amounts], axis=1)


def _start(space: SearchSpace, now: tuple[int, ...], draw: np.random.Generator) -> Ints:
    """The first points: the present size, its neighbours, and sizes drawn at even ratios."""
    lows, highs = np.array(space.lows), np.array(space.highs)
    logs = draw.uniform(
        np.log(np.maximum(lows, 0.5)), np.log(np.maximum(highs, 0.5)), size=(_POPULATION, 4)
    )
    points = np.rint(np.exp(logs)).astype(np.int64)
    points[0] = now
    for place in range(4):
        for offset, sign in ((1, -1), (5, 1)):
            points[offset + place] = now
            points[offset + place, place] += sign
    return np.clip(points, lows, highs)
