"""The policy ``sample_optimise_adjust``: used cores are measured, then all is set at once.

Reference: DLRover sections 4.1 and 4.2 (Eq. 10 and 11, three stages).
Differs: the first stage is the size at which the job began, whatever that is. A server's size is
half of what one node may have where no pending times are known (16 of 32 cores in the paper).
"""

import math

from msgspec.structs import replace

from paceline.features.sizes.policy.causes import ALGORITHMS, diagnose
from paceline.features.sizes.policy.history import MeasuredSize, SizingHistory
from paceline.features.sizes.policy.observation import ResourceObservation
from paceline.features.sizes.policy.plan import Aim, Hold, Relief, ResourcePlan
from paceline.features.sizes.policy.planner import ResourcePolicy
from paceline.policy.job_size import JobSize


class SampleOptimiseAdjust(ResourcePolicy, frozen=True):
    """DLRover's three stages: servers, then workers, then what is hot or idle."""

    def decide(self, seen: ResourceObservation, history: SizingHistory) -> ResourcePlan | Hold:
        now = history.measured_at(seen.size)
        if now is None or now.worker_cores is None or now.server_cores is None:
            return Hold(cause="too_little_measured", detail="used cores are not known")
        if seen.bounds.cores is None:
            return Hold(cause="bounds", detail="it needs a bound on all cores")
        done = {each.relieves for each in history.outcomes}
        if "server_work" not in done:
            return _staged(seen, now, _servers(seen, now), "server_work", "learn")
        if "compute" not in done:
            return _staged(seen, now, _workers(seen, now), "compute", "faster")
        cause, server = diagnose(seen)
        plan = ALGORITHMS[cause](seen, history, server) if cause in ALGORITHMS else None
        if plan is None and cause == "slow_server" and not seen.bounds.has_other_machines:
            return Hold(cause="bounds", detail="a server is slow, and there is no other machine")
        return plan or Hold(cause="no_gain", detail=cause)


def _servers(seen: ResourceObservation, now: MeasuredSize) -> JobSize:
    """Stage 2, first half: the servers for as many workers as the cores suffice for."""
    total = seen.bounds.cores or 0.0
    worker = _up(now.worker_cores or 0.0, seen)
    for_each = _served(now)
    workers = max(math.floor(total / (worker + for_each)), 1)
    of_servers = max(total - workers * worker, for_each)
    most = seen.bounds.max_node_cores
    usual = _quick_size(seen) or (most / 2.0 if most else of_servers)
    servers = max(math.ceil(of_servers / usual - 1e-6), 1, seen.bounds.min_servers)
    cores = _down(of_servers / servers, seen)
    present = min(seen.size.workers, max(math.floor((total - servers * cores) / worker), 1))
    return replace(seen.size, workers=present, servers=servers, server_cpu=cores, worker_cpu=worker)


def _workers(seen: ResourceObservation, now: MeasuredSize) -> JobSize:
    """Stage 2, second half: as many workers as the servers can serve, by what one takes now."""
    size, total = seen.size, seen.bounds.cores or 0.0
    of_servers = size.servers * size.server_cpu
    fitting = (total - of_servers) / (size.worker_cpu or 1.0) + 1e-6
    workers = math.floor(min(of_servers / max(_served(now), 1e-9), fitting))
    return replace(size, workers=max(min(workers, seen.bounds.max_workers or workers), 1))


def _served(now: MeasuredSize) -> float:
    """Cores of all servers that one worker takes (the paper's s hat)."""
    return (now.server_cores or 0.0) * now.size.servers / now.size.workers


def _quick_size(seen: ResourceObservation) -> float | None:
    """The largest node that waits hardly longer for a place than the smallest."""
    if not seen.pending:
        return None
    least_s = min(each.seconds for each in seen.pending)
    return max(each.cores for each in seen.pending if each.seconds <= 1.5 * least_s + 1.0)


def _up(cores: float, seen: ResourceObservation) -> float:
    step = seen.bounds.core_step
    rounded = max(math.ceil(cores / step - 1e-6) * step, seen.bounds.min_node_cores)
    return round(min(rounded, seen.bounds.max_node_cores or rounded), 9)


def _down(cores: float, seen: ResourceObservation) -> float:
    step = seen.bounds.core_step
    rounded = max(math.floor(cores / step + 1e-6) * step, seen.bounds.min_node_cores)
    return round(min(rounded, seen.bounds.max_node_cores or rounded), 9)


def _staged(
    seen: ResourceObservation, now: MeasuredSize, target: JobSize, relieves: Relief, aim: Aim
) -> ResourcePlan | Hold:
    if not target.differing(seen.size):
        return Hold(cause="no_gain", detail=f"it has the size of its stage: {relieves}")
    per_s = now.rate.per_s
    return ResourcePlan(
        target=target,
        aim=aim,
        relieves=relieves,
        present_per_s=per_s,
        expected_per_s=per_s * target.workers / seen.size.workers,
        allowed_loss=0.2 if aim == "learn" else 0.0,
        cost_s=seen.stall_s(target),
        cost_per_hour=target.cost(seen.prices) - seen.size.cost(seen.prices),
        confidence=0.6,
    )
