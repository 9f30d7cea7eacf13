"""Jobs of the past on the page of all jobs: the newest of those that were removed since."""

import time
from collections.abc import Callable

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.optional import complaint
from paceline.jobs.overview import OverviewTable
from paceline.jobs.wording import age, clock, speed

COLUMNS = ("job", "end", "samples", "speed", "took", "ended")
LIMIT = 50


def tell(add: Callable[[OverviewTable], None]) -> None:
    """Add a table of jobs that are in the history only."""
    if complaint("the history", "sqlalchemy", "alembic"):
        return
    from paceline.features.history.shown import open_history  # SQLAlchemy takes 0.2 s

    try:
        past = open_history(None).newest(LIMIT)
    except ConfigError:  # nobody keeps one here
        return
    there = {job.job_id for job in JobDir.all()}
    rows = [
        (
            job.job_id,
            str(job.end),
            f"{job.samples:,}",
            speed(job.samples_per_s),
            clock(job.jct_s),
            f"{age(time.time() - job.ended_s)} ago",
        )
        for job in past
        if job.job_id not in there
    ]
    if rows:
        add(OverviewTable("Earlier jobs, whose files were removed", columns=COLUMNS, rows=rows))
