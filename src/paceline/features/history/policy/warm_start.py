"""The size that a job begins with, from those at which jobs like it have ended.

Reference: DLRover-RM, Algorithm 1: the `SIMILAR` most similar jobs, smoothed exponentially from the
least to the most similar, so that the most similar one weighs most.
"""

from collections.abc import Iterator, Sequence
from functools import reduce

import msgspec
from msgspec.structs import replace

from paceline.features.history.policy.features import JobFeatures
from paceline.features.sizes.policy.observation import ResourceBounds
from paceline.policy.job_size import JobSize, ResourcePrices

SIMILAR = 5
"""k: so many similar jobs count."""
SMOOTHING = 0.5
"""mu: what each more similar job weighs against all less similar ones."""
FARTHEST = 0.3
"""Jobs at a greater distance are not similar: another script with other arguments, say."""


MARGIN = 0.05
"""Distance beyond that of the most similar job from which a job does not count. A run with another
batch size says little beside one with the same."""


class FinishedSize(msgspec.Struct, frozen=True, kw_only=True):
    """Features of an earlier job, and the size that it had come to."""

    job_id: str
    ended_s: float
    features: JobFeatures
    final: JobSize


class SimilarJob(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier job, and how far it is from the one that begins."""

    job_id: str
    distance: float
    """Distance from the new job: 0, alike in all that is known, to 1."""
    final: JobSize


class WarmStart(msgspec.Struct, frozen=True, kw_only=True):
    """The size to begin with, and where it comes from."""

    size: JobSize
    similar: tuple[SimilarJob, ...]
    """The most similar first."""

    @property
    def confidence(self) -> float:
        """1 less the distance of the most similar job."""
        return 1.0 - self.similar[0].distance


def warm_start(
    features: JobFeatures,
    earlier: Sequence[FinishedSize],
    bounds: ResourceBounds | None = None,
    prices: ResourcePrices | None = None,
) -> WarmStart | None:
    """Find the size that a job should begin with.

    Args:
        features: what is known of it before it trains.
        earlier: jobs that have ended.
        bounds: what the job may have; None: anything.
        prices: for a bound on cost.

    Returns:
        The size; None: no earlier job is similar, or no size like theirs is within the bounds.
    """
    near = similar_jobs(features, earlier)
    if not near:
        return None
    size = smoothed([one.final for one in reversed(near)])
    fitting = within(size, bounds or ResourceBounds(), prices or ResourcePrices())
    return None if fitting is None else WarmStart(size=fitting, similar=near)


def similar_jobs(features: JobFeatures, earlier: Sequence[FinishedSize]) -> tuple[SimilarJob, ...]:
    """Return the most similar of earlier jobs, the most similar first; of equals the newest."""
    apart = [(distance(features, one.features), -one.ended_s, one) for one in earlier]
    nearest = sorted(apart, key=lambda each: each[:2])[:SIMILAR]
    return tuple(
        SimilarJob(job_id=one.job_id, distance=far, final=one.final)
        for far, _, one in nearest
        if far <= min(FARTHEST, nearest[0][0] + MARGIN)
    )


# --------------------------------------------------------------------------- distance


def distance(one: JobFeatures, other: JobFeatures) -> float:
    """Return Gower's distance of two jobs: the mean over the features that are known of both.

    Sizes are compared by their ratio instead of their share of the range: they span decades, and
    the range of a history of few jobs means nothing.
    """
    apart = list(_differences(one, other))
    return sum(apart) / len(apart) if apart else 1.0


def _differences(one: JobFeatures, other: JobFeatures) -> Iterator[float]:
    theirs = msgspec.structs.asdict(other)
    for name, mine in msgspec.structs.asdict(one).items():
        value = theirs[name]
        if mine is None or value is None:
            continue
        if isinstance(mine, dict):
            names = mine.keys() | value.keys()
            each = [_ratio(mine.get(table, 0), value.get(table, 0)) for table in names]
            yield sum(each) / len(each) if each else 0.0
        elif isinstance(mine, int):
            yield _ratio(mine, value)
        else:
            yield float(mine != value)


def _ratio(one: float, other: float) -> float:
    """0: equal; towards 1: one is many times the other."""
    return 1.0 - min(one, other) / max(one, other) if max(one, other) > 0 else 0.0


# --------------------------------------------------------------------------- sizes


def smoothed(sizes: Sequence[JobSize]) -> JobSize:
    """Return one size for several, the last of which weighs most."""

    def amount(name: str) -> float:
        return _smooth([getattr(size, name) for size in sizes])

    return JobSize(
        workers=max(1, round(amount("workers"))),
        servers=max(1, round(amount("servers"))) if sizes[-1].servers else 0,
        worker_cpu=amount("worker_cpu"),
        server_cpu=amount("server_cpu"),
        worker_memory=round(amount("worker_memory")),
        server_memory=round(amount("server_memory")),
    )


def _smooth(values: Sequence[float]) -> float:
    """Smooth exponentially; 0 is no limit: whether there is one, the last value says."""
    limits = [value for value in values if value]
    if not values[-1]:
        return 0.0
    return reduce(lambda less, more: SMOOTHING * more + (1.0 - SMOOTHING) * less, limits)


def within(size: JobSize, bounds: ResourceBounds, prices: ResourcePrices) -> JobSize | None:
    """Return the same size with as many nodes as the bounds allow; None: none of them fits."""
    if not size.servers:
        bounds = replace(bounds, min_servers=0)
    workers = _clipped(size.workers, bounds.min_workers, bounds.max_workers)
    servers = _clipped(size.servers, bounds.min_servers, bounds.max_servers) if size.servers else 0
    fitting = replace(size, workers=workers, servers=servers)
    while bounds.excess(fitting, prices):
        if fitting.workers > max(1, bounds.min_workers):
            fitting = replace(fitting, workers=fitting.workers - 1)
        elif fitting.servers > max(1, bounds.min_servers):
            fitting = replace(fitting, servers=fitting.servers - 1)
        else:
            return None
    return fitting


def _clipped(count: int, least: int, most: int | None) -> int:
    return max(least, count if most is None else min(count, most))
