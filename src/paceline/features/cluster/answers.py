"""Answers to what people ask about a cluster."""

from collections.abc import Mapping

from paceline.features.cluster.book import ClusterBook, JobEntry
from paceline.features.cluster.folder import ClusterConfig
from paceline.features.cluster.policy.facts import ClusterFacts
from paceline.features.cluster.wire import DeviceRow, DeviceRows, QueueRow, QueueRows, TenantRow


def queue_rows(
    book: ClusterBook, held: Mapping[str, str], left_s: Mapping[str, float]
) -> QueueRows:
    """List all jobs.

    Args:
        book: the jobs.
        held: why jobs wait, by id.
        left_s: how much longer they will wait for quota.
    """
    rows = (
        _row(entry, held.get(job_id, ""), left_s.get(job_id))
        for job_id, entry in book.entries.items()
    )
    return QueueRows(rows=tuple(rows))


def _row(entry: JobEntry, held: str, left_s: float | None) -> QueueRow:
    job, (since_s, why) = entry.job, list(entry.told())[-1]
    state = "running" if entry.launched else "starting"
    if entry.over is not None:
        state = "over"
    elif job.kind is None:
        state, why, since_s = "waiting", held, job.submitted_s
    else:
        since_s, why = job.started_s, entry.why()
    return QueueRow(
        job_id=job.job_id,
        tenant=job.tenant,
        state=state,
        asked=job.asked,
        kind=job.kind or "",
        size=job.size,
        devices=job.devices,
        since_s=since_s,
        wait_s=left_s if state == "waiting" else None,
        why=why,
    )


def device_rows(config: ClusterConfig, facts: ClusterFacts) -> DeviceRows:
    """List all devices and tenants."""

    def jobs(kind: str | None, name: str) -> tuple[str, ...]:
        has = (job for job in facts.jobs if name in (job.devices if kind else job.reserved))
        return tuple(job.job_id for job in has if job.kind == kind)

    devices = (
        DeviceRow(
            device=one.name,
            node=one.node,
            load=one.load,
            guaranteed="".join(jobs("guaranteed", one.name)),
            opportunistic=jobs("opportunistic", one.name),
            reserved="".join(jobs(None, one.name)),
        )
        for one in facts.devices
    )
    tenants = (
        TenantRow(tenant=one.name, quota=one.quota, used=facts.used_by(one.name))
        for one in facts.tenants
    )
    return DeviceRows(policy=config.policy, devices=tuple(devices), tenants=tuple(tenants))
