"""Choice of the devices that a job gets, and of those that it waits for."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from paceline.features.cluster.policy.facts import ClusterDevice, ClusterFacts, ClusterJob


def by_node(devices: Iterable[ClusterDevice]) -> list[list[ClusterDevice]]:
    """The devices of each machine, in their order."""
    nodes: dict[str, list[ClusterDevice]] = {}
    for device in devices:
        nodes.setdefault(device.node, []).append(device)
    return list(nodes.values())


def fits(devices: Sequence[ClusterDevice], job: ClusterJob) -> bool:
    """Tell whether a job could run if all these devices were free."""
    groups = by_node(devices) if job.one_node else [devices]
    return any(len(group) >= job.size for group in groups)


def choose(
    devices: Iterable[ClusterDevice], cost: Callable[[ClusterDevice], float], job: ClusterJob
) -> tuple[str, ...]:
    """The devices of a job: the cheapest, and all on one machine if that can be.

    Args:
        devices: those that it may have.
        cost: what the job should avoid.
        job: the job.

    Returns:
        As many as it needs; none: there are too few, or too few on one machine if it must be one.
    """
    ranked = sorted(devices, key=cost)
    nodes = by_node(ranked)
    large = [node[: job.size] for node in sorted(nodes, key=len) if len(node) >= job.size]
    if large:
        # Take the one of equal machines that is filled best.
        found = min(large, key=lambda part: sum(map(cost, part)))
    elif job.one_node or len(ranked) < job.size:
        return ()
    else:
        # Take as few machines as can be.
        found = [one for node in sorted(nodes, key=len, reverse=True) for one in node][: job.size]
    return tuple(device.name for device in found)


def exclusively(facts: ClusterFacts, job: ClusterJob, *, shared: bool) -> tuple[str, ...]:
    """Choose devices on which a job can be the only guaranteed one now.

    Args:
        facts: the cluster.
        job: the job, whose own reservation does not count.
        shared: whether opportunistic jobs may be there.
    """
    kept = facts.reserved(but=job.job_id) | facts.on_devices("guaranteed").keys()
    others = facts.on_devices("opportunistic")
    if not shared:
        kept |= others.keys()
    free = (one for one in facts.devices if one.name not in kept)
    return choose(free, lambda one: others.get(one.name, 0), job)


def to_reserve(facts: ClusterFacts, job: ClusterJob, *, shared: bool) -> tuple[str, ...]:
    """Choose all devices of a job that cannot start now: those that will be free first.

    Nobody has reserved any of them. So every reservation waits for running jobs only, never for
    another reservation, and reservations cannot wait for each other in a circle.

    Returns:
        As many as it needs; none: others have reserved too many.
    """
    busy_s: dict[str, float] = {}
    for each in facts.jobs:
        if each.kind == "guaranteed" or not shared:
            left_s = facts.left_s(each)
            busy_s |= {name: max(left_s, busy_s.get(name, 0.0)) for name in each.devices}
    kept = facts.reserved(but=job.job_id)
    open_ = (one for one in facts.devices if one.name not in kept)
    return choose(open_, lambda one: busy_s.get(one.name, 0.0), job)


def on_leftovers(
    facts: ClusterFacts, job: ClusterJob, loads: Mapping[str, float], most: int
) -> tuple[str, ...]:
    """Choose the devices of an opportunistic job, the least loaded first.

    Args:
        facts: the cluster.
        job: the job.
        loads: of the devices that may take another job.
        most: opportunistic jobs on one device.
    """
    others = facts.on_devices("opportunistic")
    open_ = (one for one in facts.devices if one.name in loads and others.get(one.name, 0) < most)
    return choose(open_, lambda one: loads[one.name], job)
