"""The queue on the page of all jobs."""

import time
from collections.abc import Callable

from paceline.base.errors import PacelineError
from paceline.base.processes import is_locked
from paceline.features.cluster.client import expect
from paceline.features.cluster.folder import ClusterDir
from paceline.features.cluster.wire import GetQueue, QueueRows
from paceline.jobs.overview import OverviewTable
from paceline.jobs.wording import age

COLUMNS = ("job", "tenant", "state", "for", "devices", "why")


def tell(add: Callable[[OverviewTable], None]) -> None:
    """Add the jobs that wait or run, if there is a scheduler."""
    folder = ClusterDir()
    if not is_locked(folder.lock):
        return
    try:
        found = expect(QueueRows, folder, GetQueue())
    except PacelineError as error:
        add(OverviewTable("Queue", line=str(error)))
        return
    rows = [
        (
            row.job_id,
            row.tenant,
            row.state,
            age(time.time() - row.since_s),
            " ".join(row.devices) or "-",
            row.why,
        )
        for row in found.rows
        if row.state != "over"
    ]
    line = "" if rows else "Nobody waits, and nothing runs."
    add(OverviewTable("Queue", line=line, columns=COLUMNS, rows=rows))
