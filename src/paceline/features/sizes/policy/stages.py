"""The way from one size of a job to another, such that no stage is larger than the larger end.

What becomes smaller does so first: quotas, then numbers of nodes. So a job that moves cores from
its workers to its servers never has more of them than its bounds allow.
"""

from msgspec.structs import replace

from paceline.policy.job_size import JobSize


def next_stage(now: JobSize, target: JobSize) -> JobSize | None:
    """The size to ask for next; None: the target is there.

    Args:
        now: as ordered last, and in effect.
        target: where the job is to arrive.
    """
    smaller = replace(
        now,
        worker_cpu=_smaller(now.worker_cpu, target.worker_cpu),
        server_cpu=_smaller(now.server_cpu, target.server_cpu),
        worker_memory=int(_smaller(now.worker_memory, target.worker_memory)),
        server_memory=int(_smaller(now.server_memory, target.server_memory)),
    )
    fewer = replace(
        smaller,
        workers=min(now.workers, target.workers),
        servers=min(now.servers, target.servers),
    )
    granted = replace(target, workers=fewer.workers, servers=fewer.servers)
    for stage in (smaller, fewer, granted, target):
        if stage.differing(now):
            return stage
    return None


def _smaller(now: float, target: float) -> float:
    """The smaller of two quotas; 0 is none, which is the largest."""
    return target if target and (not now or target < now) else now


def quota(
    now: float, role: float, target: float, own: float | None = None, *, alone: bool = False
) -> float:
    """Cores of a node whose role gets another quota; 0 is no limit.

    A node that has more than its role keeps it, and more for the role takes nothing from any node.

    Args:
        now: cores of the node.
        role: the least of its role's nodes.
        target: what the role gets.
        own: what the node gets, whatever its role does; None: as its role.
        alone: whether single nodes of the role get something of their own. Then less for the role
            is for them only.
    """
    if own is not None:
        return own
    if _smaller(now, target) == now:  # no less than it has
        return target
    return target if now == role and not alone and _smaller(role, target) == target else now
