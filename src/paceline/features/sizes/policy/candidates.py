"""Sizes that a job could have, on the Pareto front of what they cost and what they bring.

Reference: DLRover-RM section 4.2 (Eq. 7 to 9) and the search of section 4.3.
Differs: the paper's gain subtracts seconds from samples per second. Here it is the mean samples per
second until the end of the job that are won, after the work that the change costs. The search
minimises the negative gain instead of its inverse: the front is the same, and gains near zero do no
harm. Sizes far from the present one are not looked at: a model is trusted for a factor of 4. So few
sizes are left that a grid and the neighbours of its best find the front. The paper's NSGA-II misses
more of it in a longer time (decision 43).
"""

import itertools
import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.features.sizes.policy.observation import ResourceBounds, ResourceObservation
from paceline.features.sizes.policy.step_model import Floats, SizeModel, SizeTable
from paceline.policy.job_size import GIB, ChangeKind, JobSize

Ints = NDArray[np.int64]

_HORIZON_S = 1800.0
"""Seconds until the end of a job whose end is not known."""
CAUTION = 0.5
"""Part of an expected rate's relative error by which the rate is lowered, out of caution."""
_GRID_SIZES = 1 << 16
"""Most sizes of the first grid, which take 30 ms."""
_OPENED = 256
"""Most points of the front whose neighbours one round looks at."""
_ROUNDS = 16
"""Most rounds of looking at neighbours."""
_WAYS = np.array(list(itertools.product((-1, 0, 1), repeat=4)), np.int64)
"""Directions from a point to its neighbours."""


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
        """Return the sizes within the bounds, by a factor of `reach` at most from the present."""
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
    """Gains and costs of many sizes, all at once.

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
    least: float = 0.0,
    caution: float = CAUTION,
) -> list[SizeOffer]:
    """Find the sizes on the Pareto front of cost and gain, by increasing cost.

    Args:
        seen: the job now.
        model: of its steps.
        per_s: samples per second now.
        reach: factor by which each count and quota may change at most.
        least: samples per second that a size must have if cores of one node beyond all that was
            measured bring nothing.
        caution: part of its relative error that is taken from what a size is expected to bring.
    """
    space = SearchSpace.around(seen, reach)
    value = Valuation(seen, model, per_s, least, caution)
    now = space.clipped(seen.size)
    points = _FrontSearch(seen, space, value, now).found()
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


class _FrontSearch:
    """The search for the Pareto front of cost and gain: a grid, then neighbours of its best.

    The grid is geometric: each dimension has values at even ratios, as many as `_GRID_SIZES` leaves
    for it. A dimension with no more values than that has all of them, so a space of no more than
    `_GRID_SIZES` has an exact front. Rounds then look at the neighbours of each point of the front,
    first half a grid's interval away, then a quarter, and so on, down to one step. Nothing is drawn
    at random.

    Args:
        seen: the job now.
        space: sizes within reach.
        value: what sizes bring and cost.
        now: point of the present size; the grid contains it.
    """

    def __init__(
        self,
        seen: ResourceObservation,
        space: SearchSpace,
        value: Valuation,
        now: tuple[int, ...],
    ) -> None:
        self._seen, self._space, self._value, self._now = seen, space, value, now
        self._lows = np.array(space.lows, np.int64)
        self._highs = np.array(space.highs, np.int64)
        spans = (self._highs - self._lows + 1).tolist()
        self._radix = np.array([math.prod(spans[place + 1 :]) for place in range(4)], np.int64)
        self._values = _values_each(spans)

    def found(self) -> Ints:
        """Return the points of the front, by increasing cost; without any, the present one."""
        points, part = self._best(self._grid()), self._interval()
        looked_at = np.zeros(0, np.int64)
        for _ in range(_ROUNDS):
            strides = np.maximum(np.rint(points * part).astype(np.int64), 1)
            is_last = bool((strides == 1).all())
            # Neighbours one step away need to be looked at only once.
            codes = self._codes(points)
            fresh = ~np.isin(codes, looked_at) if is_last else np.ones(len(points), np.bool_)
            if not fresh.any():
                break
            opened = _thinned(np.flatnonzero(fresh))
            if is_last:
                looked_at = np.append(looked_at, codes[opened])
            near = points[opened, np.newaxis, :] + _WAYS * strides[opened, np.newaxis, :]
            points = self._best(np.concatenate([points, near.reshape(-1, 4)]))
            part /= 2.0
        return points if self._is_allowed(points).all() else np.array([self._now], np.int64)

    def _grid(self) -> Ints:
        """Points at even ratios in each dimension, and the present one."""
        axes = []
        for low, high, now in zip(self._space.lows, self._space.highs, self._now, strict=True):
            if high - low < self._values:
                axes.append(np.arange(low, high + 1))
                continue
            values = np.rint(np.geomspace(max(low, 1), high, self._values)).astype(np.int64)
            axes.append(np.unique(np.append(values, [low, now])))
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 4)

    def _interval(self) -> float:
        """Half of what lies between two values of the grid, relative, where it is widest."""
        ratio = float((self._highs / np.maximum(self._lows, 1)).max())
        between: float = max(ratio, 1.0) ** (1.0 / (self._values - 1))
        return 0.5 * (between - 1.0)

    def _best(self, points: Ints) -> Ints:
        """Return those that no other beats; if none is allowed, those closest to the bounds."""
        points = np.clip(points, self._lows, self._highs)
        points = points[np.unique(self._codes(points), return_index=True)[1]]
        beyond = np.maximum(self._value.beyond(points, self._space.step), 0.0).sum(axis=1)
        within = points[beyond <= 0.0]
        if not len(within):
            return points[np.argsort(beyond, kind="stable")[:_OPENED]]
        _, _, cost = _needs(within, self._space.step, self._seen)
        rates, errors = self._value.rates(self._value.table(within, self._space.step))
        gains = self._value.gains(rates, errors, self._value.stalls_s(within, self._now))
        # Sums of the same cores in another order differ in the last bit: they cost the same.
        order = np.lexsort((-gains, np.round(cost, 9)))
        before = np.maximum.accumulate(np.append(-np.inf, gains[order][:-1]))
        return np.asarray(within[order[gains[order] > before + 1e-9]])

    def _is_allowed(self, points: Ints) -> NDArray[np.bool_]:
        beyond = self._value.beyond(points, self._space.step)
        return np.asarray((beyond <= 0.0).all(axis=1))

    def _codes(self, points: Ints) -> Ints:
        """One number for each point; the order of numbers is that of points."""
        return np.asarray((points - self._lows) @ self._radix)


def _values_each(spans: list[int]) -> int:
    """Most values of each dimension with which a grid has at most `_GRID_SIZES` sizes."""
    values = 2
    while values < max(spans) and math.prod(min(one, values + 1) for one in spans) <= _GRID_SIZES:
        values += 1
    return values


def _thinned(places: Ints) -> Ints:
    """At most `_OPENED` of these places, evenly spread, with the first and the last."""
    if len(places) <= _OPENED:
        return places
    return places[np.rint(np.linspace(0, len(places) - 1, _OPENED)).astype(np.int64)]


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
