"""Why a job waits in the queue of the cluster, or runs only on what others leave."""

from collections.abc import Callable

from paceline.base.errors import PacelineError
from paceline.base.processes import is_locked
from paceline.features.cluster.client import expect
from paceline.features.cluster.folder import ClusterDir
from paceline.features.cluster.wire import GetQueue, QueueRow, QueueRows
from paceline.jobs.why import AskedWhy, Reason, WhyQuestion
from paceline.jobs.wording import lasting


def reasons(asked: AskedWhy, add: Callable[[Reason], None]) -> None:
    """Say which place a job has in the queue, and for what it waits."""
    folder = ClusterDir()
    if (asked.facts is not None and asked.facts.outcome) or not folder.lock.exists():
        return
    if not is_locked(folder.lock):
        return
    try:
        rows = expect(QueueRows, folder, GetQueue()).rows
    except (PacelineError, OSError):
        return  # the scheduler is busy, or leaves: nothing is known of the queue
    waiting = [row for row in rows if row.state == "waiting"]
    found = [row for row in rows if row.job_id.startswith(asked.job) and row.state != "over"]
    if len(found) != 1:
        return
    (row,) = found
    more = f"paceline cluster explain {row.job_id}"
    if row.state == "waiting":
        add(Reason(WhyQuestion.WAITS, _waits(row, waiting.index(row) + 1, len(waiting)), more))
    elif row.kind == "opportunistic":
        told = (
            f"It runs opportunistically on {', '.join(row.devices)}, with what guaranteed jobs "
            f"leave: {row.why}."
        )
        add(Reason(WhyQuestion.SLOW, told, more))


def _waits(row: QueueRow, place: int, count: int) -> str:
    why = f": it {row.why}" if row.why.startswith(("needs", "waits")) else f": {row.why}"
    left = "" if row.wait_s is None else f"; expected to wait {lasting(row.wait_s)} more for quota"
    place_ = f"as number {place} of {count}" if count > 1 else "alone"
    return f"It waits in the cluster's queue, {place_}{why if row.why else ''}{left}."
