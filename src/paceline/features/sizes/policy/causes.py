"""Why a job is slower than it could be, and which algorithm helps: a pure diagnosis and a table.

Reference: DLRover sections 4.2 (hot and idle servers), 4.3 (cause, then algorithm) and 5.4 (root
cause of a slow server: use above its peers' means load, else the machine).
"""

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Literal

from msgspec.structs import replace

from paceline.features.sizes.policy.history import SizingHistory
from paceline.features.sizes.policy.observation import NodeUse, ResourceObservation
from paceline.features.sizes.policy.plan import NodeTarget, ResourcePlan
from paceline.policy.job_size import CLOSE

SizeCause = Literal["hot_server", "slow_server", "few_server_cores", "idle_server_cores", "none"]

_SLOW = 1.5
"""Times its peers' service time that a server is slow from."""
_ABOVE = 1.2
"""Times its peers' use from which on a server has more load than they."""
_FULL = 0.9
"""Used part of its quota from which a server is short of cores (the paper's threshold)."""
_IDLE = 0.5
"""Used part of their quota below which servers' cores are idle."""
_CONFIDENCE = 0.6
"""Confidence in plans by a formula, which no model backs."""


def diagnose(seen: ResourceObservation) -> tuple[SizeCause, NodeUse | None]:
    """The cause, and the server it concerns, if it is one of them."""
    servers = [each for each in seen.of_role("server") if each.use is not None]
    if not servers:
        return "none", None
    for each in servers:
        peers = [other for other in servers if other is not each]
        if not peers:
            continue
        usual = statistics.median(other.use or 0.0 for other in peers)
        has_more = (each.use or 0.0) > _ABOVE * usual
        if has_more and (each.use or 0.0) >= _FULL:
            return "hot_server", each
        if _is_slow(each, peers):
            return ("hot_server" if has_more else "slow_server"), each
    mean = statistics.fmean(each.use or 0.0 for each in servers)
    if mean >= _FULL:
        return "few_server_cores", None
    return ("idle_server_cores" if mean < _IDLE else "none"), None


def _is_slow(server: NodeUse, peers: list[NodeUse]) -> bool:
    times_s = [each.service_s for each in peers if each.service_s is not None]
    if server.service_s is None or not times_s:
        return False
    return server.service_s > _SLOW * statistics.median(times_s)


def relieve_hot(
    seen: ResourceObservation, history: SizingHistory, server: NodeUse | None
) -> ResourcePlan | None:
    """More cores for the hot server: its share of what all workers need of the servers.

    One that has fewer than its peers gets as many at least: its load may be like theirs.
    """
    used = [each.used_cores or 0.0 for each in seen.of_role("server")]
    if server is None or not server.used_cores or not sum(used):
        return None
    alone = _served_by_one(history)
    needed = server.used_cores / sum(used) * alone * seen.size.workers if alone else 0.0
    # Without a sample of one worker: cores that lower its use to half.
    cores = max(needed or 2.0 * server.used_cores, _usual_cores(seen, server))
    spare = math.inf if seen.bounds.cores is None else seen.bounds.cores - _granted(seen)
    if spare < seen.bounds.core_step:
        return None  # all cores are given away: the server's must come from other nodes
    cores = min(cores, server.granted_cores + spare, seen.bounds.max_node_cores or math.inf)
    cores = round(math.floor(cores / seen.bounds.core_step + 1e-6) * seen.bounds.core_step, 9)
    if cores <= server.granted_cores * (1.0 + 1e-6):
        return None
    peers = [each.use or 0.0 for each in seen.of_role("server") if each is not server]
    headroom = _FULL / max(peers) if peers and max(peers) > 0.0 else 1.0
    factor = max(min(cores / server.granted_cores, headroom), 1.0)
    target = NodeTarget(node=server.node, cpu=cores, memory=server.granted_bytes)
    plan = _plan(seen, history, factor)
    extra = (cores - server.granted_cores) * seen.prices.core
    others = (each.granted_cores for each in seen.of_role("server") if each is not server)
    return replace(
        plan,
        target=replace(seen.size, server_cpu=min([cores, *others])),
        nodes=(target,),
        relieves="hot_server",
        cost_per_hour=extra,
    )


def has_fewer_cores(seen: ResourceObservation, server: NodeUse) -> bool:
    """Whether a server was granted less than its peers."""
    return server.granted_cores < _usual_cores(seen, server) * (1.0 - CLOSE)


def _usual_cores(seen: ResourceObservation, server: NodeUse) -> float:
    peers = [each.granted_cores for each in seen.of_role("server") if each is not server]
    return statistics.median_low(peers) if peers else 0.0


def _granted(seen: ResourceObservation) -> float:
    """Cores of all nodes, with those of single ones beyond the size of their role."""
    usual = {"worker": seen.size.worker_cpu, "server": seen.size.server_cpu}
    more = (each.granted_cores - usual[each.role] for each in seen.nodes)
    return seen.size.cores + sum(max(each, 0.0) for each in more)


def migrate(
    seen: ResourceObservation, history: SizingHistory, server: NodeUse | None
) -> ResourcePlan | None:
    """Another machine for a server that is slow although it has no more load than its peers.

    None where there is no other machine. A solution against stragglers may replace it there.
    """
    if not seen.bounds.has_other_machines:
        return None
    peers = [
        each.service_s for each in seen.of_role("server") if each is not server and each.service_s
    ]
    if server is None or server.service_s is None or not peers:
        return None
    batches = [each.batch_s for each in seen.of_role("worker") if each.batch_s]
    step_s = statistics.median(batches) if batches else 0.0
    saved_s = min(server.service_s - statistics.median(peers), 0.9 * step_s)
    factor = step_s / (step_s - saved_s) if step_s else 1.1
    target = NodeTarget(
        node=server.node, cpu=server.granted_cores, memory=server.granted_bytes, migrate=True
    )
    return replace(_plan(seen, history, factor), nodes=(target,), relieves="slow_machine")


def add_server_cores(
    seen: ResourceObservation, history: SizingHistory, server: NodeUse | None
) -> ResourcePlan | None:
    """Twice the cores for each server, or as many as the bounds allow."""
    del server
    size, bounds = seen.size, seen.bounds
    spare = (bounds.cores - _granted(seen)) / size.servers if bounds.cores is not None else math.inf
    cores = min(2.0 * size.server_cpu, size.server_cpu + spare, bounds.max_node_cores or math.inf)
    cores = round(math.floor(cores / bounds.core_step + 1e-6) * bounds.core_step, 9)
    if cores <= size.server_cpu:
        return None
    target = replace(size, server_cpu=cores)
    plan = _plan(seen, history, cores / size.server_cpu)
    cost = target.cost(seen.prices) - size.cost(seen.prices)
    stall_s = seen.stall_s(target)
    return replace(plan, target=target, relieves="server_work", cost_per_hour=cost, cost_s=stall_s)


def add_workers(
    seen: ResourceObservation, history: SizingHistory, server: NodeUse | None
) -> ResourcePlan | None:
    """Plan as many workers as the servers' idle cores can serve: min(s_total / s hat, sqrt(K)).

    K is the number of batches that are left. DLRover launches workers beyond the quota as
    opportunistic ones; here the bounds hold.
    """
    del server
    size, bounds = seen.size, seen.bounds
    used = sum(each.used_cores or 0.0 for each in seen.of_role("server"))
    if not used:
        return None
    workers = size.servers * size.server_cpu / (used / size.workers)
    if seen.samples_left is not None:
        workers = min(workers, math.sqrt(seen.samples_left / seen.batch_at(size.workers)))
    if bounds.cores is not None:
        spare = (bounds.cores - _granted(seen)) / (size.worker_cpu or 1.0)
        workers = min(workers, size.workers + spare + 1e-6)
    count = math.floor(min(workers, bounds.max_workers or math.inf))
    if count <= size.workers:
        return None
    target = replace(size, workers=count)
    cost = target.cost(seen.prices) - size.cost(seen.prices)
    return replace(
        _plan(seen, history, count / size.workers),
        target=target,
        relieves="idle_server_cores",
        cost_per_hour=cost,
        cost_s=seen.stall_s(target),
    )


Algorithm = Callable[[ResourceObservation, SizingHistory, NodeUse | None], ResourcePlan | None]

ALGORITHMS: Mapping[SizeCause, Algorithm] = {
    "hot_server": relieve_hot,
    "slow_server": migrate,
    "few_server_cores": add_server_cores,
    "idle_server_cores": add_workers,
}
"""Algorithm that helps against each cause; ``none`` has no algorithm."""


def _served_by_one(history: SizingHistory) -> float | None:
    """Cores of all servers that one worker took when it was alone; None: it never was."""
    return next(
        (
            each.server_cores * each.size.servers
            for each in reversed(history.measured)
            if each.size.workers == 1 and each.server_cores is not None
        ),
        None,
    )


def _plan(seen: ResourceObservation, history: SizingHistory, factor: float) -> ResourcePlan:
    now = history.measured[-1].rate.per_s if history.measured else 0.0
    return ResourcePlan(
        target=seen.size,
        present_per_s=now,
        expected_per_s=now * factor,
        expected_error=0.0,
        confidence=_CONFIDENCE,
    )
