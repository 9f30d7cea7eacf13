"""What a job can learn from the history before it begins."""

from msgspec.structs import replace

from paceline.base.errors import PacelineError
from paceline.features.history.making import submitted_features
from paceline.features.history.place import HistoryPlace, history_place
from paceline.features.history.policy.warm_start import FinishedSize, WarmStart, warm_start
from paceline.features.sizes.policy.observation import ResourceBounds
from paceline.features.sizes.spec import bounds_of
from paceline.jobs.outcome import End
from paceline.policy.job_size import ResourcePrices
from paceline.wire.spec import JobSpec

REMEMBERED_JOBS = 1000
"""So many are compared, the newest that finished."""


def first_size(
    spec: JobSpec,
    place: HistoryPlace,
    bounds: ResourceBounds | None = None,
    prices: ResourcePrices | None = None,
) -> WarmStart | None:
    """Find the size for a job to begin with.

    Args:
        spec: of the job.
        place: of the history.
        bounds: what the job may have; None: anything.
        prices: for a bound on cost.

    Returns:
        The size; None: no finished job is similar, or no size like theirs is within the bounds.

    Raises:
        ConfigError: the history cannot be used.
    """
    # SQLAlchemy is of an extra; without it a job begins with the size of its spec.
    from paceline.features.history.book import JobFilter, PastJobs

    wanted = JobFilter(backend=spec.backend, strategy=spec.strategy, end=End.FINISHED)
    earlier = [
        FinishedSize(job_id=job.job_id, ended_s=job.ended_s, features=job.features, final=job.final)
        for job in PastJobs(place).newest(REMEMBERED_JOBS, wanted)
    ]
    return warm_start(submitted_features(spec), earlier, bounds, prices)


NAMED = frozenset({"workers.count", "servers.count", "workers.cpu", "servers.cpu"})
"""Keys of the spec by which a person has chosen the size."""


def warm_started(spec: JobSpec) -> tuple[JobSpec, WarmStart | None]:
    """Give a job that finds its size the one that jobs like it had, unless a person has chosen.

    Returns:
        The spec, and where its size comes from; None: nothing is known, and it is as before.

    Raises:
        ConfigError: the history cannot be used, and the job names it.
    """
    place = history_place(spec)
    if spec.resources.policy == "none" or place is None or NAMED & set(spec.sources):
        return spec, None
    try:
        found = first_size(spec, place, bounds_of(spec))
    except PacelineError:
        if place.named:
            raise
        return spec, None  # nobody asked for a history: the job begins colder
    if found is None or not found.size.worker_cpu:
        return spec, None
    size = found.size
    servers = spec.servers
    if size.servers:
        servers = replace(servers, count=size.servers, cpu=(size.server_cpu,))
    workers = replace(spec.workers, count=size.workers, cpu=(size.worker_cpu,))
    return replace(spec, workers=workers, servers=servers), found
