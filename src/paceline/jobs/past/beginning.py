"""What a job can learn from the history before it begins."""

from paceline.jobs.outcome import End
from paceline.jobs.past.book import JobFilter, PastJobs
from paceline.jobs.past.making import submitted_features
from paceline.jobs.past.place import HistoryPlace
from paceline.policy.resources.observation import ResourceBounds, ResourcePrices
from paceline.policy.resources.warm_start import FinishedSize, WarmStart, warm_start
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
    wanted = JobFilter(backend=spec.backend, strategy=spec.strategy, end=End.FINISHED)
    earlier = [
        FinishedSize(job_id=job.job_id, ended_s=job.ended_s, features=job.features, final=job.final)
        for job in PastJobs(place).newest(REMEMBERED_JOBS, wanted)
    ]
    return warm_start(submitted_features(spec), earlier, bounds, prices)
