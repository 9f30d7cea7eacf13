"""KILL_RESTART by cost: when a straggler has cost as much as its restart would.

Reference: AntDT section V-E-2 (the five parts of a restart); FALCON section 4.2 and the classical
ski rental: whoever rents until the rent paid equals the price, and then buys, pays at most twice
what it would have paid knowing the future.
Differs: AntDT restarts whoever is slow over a window of fixed length. Here the restart's cost is
measured in this job, the platform's pending time is part of it, and it counts what the job loses
by it, not what the node does: the other workers do its share meanwhile.
"""

import dataclasses
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from paceline.policy.stats.regimes import Regime
from paceline.policy.straggler.actions import KillRestart
from paceline.policy.straggler.observation import Observation, RestartCost
from paceline.policy.straggler.solvers import Floats


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a restart may be worth while for."""

    slowness: Annotated[float, Meta(gt=1)] = 1.1
    """A straggler takes at least so many times what is usual."""
    min_iterations: Annotated[int, Meta(ge=1)] = 20
    """Iterations that it must have been seen for."""
    max_restarts: Annotated[int, Meta(ge=0)] = 3
    """Of one node. Each doubles what the next must be worth."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A straggler, and what its restart would change."""

    node: str
    regime: Regime
    restarts: int
    slowness: float
    """Its time over the usual."""
    gain: float
    """Part of the job's time that its recovery would save."""
    cost_s: float
    """What the job loses by the restart."""


def latency_s(seen: Observation, cost: RestartCost) -> float:
    """From the kill until the new process does its share."""
    pending_s = cost.pending_s if seen.pending_s is None else seen.pending_s
    return pending_s + cost.start_s + cost.rebuild_s + cost.restore_s


def worth_while(
    seen: Observation, rule: Rule, candidates: list[Candidate], left_s: float, limit: int
) -> list[KillRestart]:
    """Those that have cost as much as their restart would, dearest first.

    Args:
        seen: the job.
        rule: whom a restart may be worth while for.
        candidates: stragglers.
        left_s: what is left of the job at its present speed.
        limit: restarts at most.
    """
    due: list[tuple[float, KillRestart]] = []
    # Where restarts were seen not to help, the next one is less likely to.
    futile = sum(each.restarts > 0 for each in candidates)
    for each in candidates:
        if (
            not each.regime.verified
            or each.regime.iterations < rule.min_iterations
            or each.restarts >= rule.max_restarts
        ):
            continue
        lost_s = each.gain * (seen.now_s - each.regime.since_s)
        price_s = each.cost_s * 2.0**each.restarts * (1 + futile - (each.restarts > 0))
        gain_s = each.gain * left_s
        if lost_s < price_s or gain_s <= price_s:
            continue
        reason = (
            f"{each.slowness:.2f} times the usual for {each.regime.iterations} iterations, "
            f"which cost {lost_s:.3g} s; a restart costs {each.cost_s:.3g} s"
        )
        if price_s > each.cost_s:
            reason += f", and must be worth {price_s:.3g} s, since restarts did not help before"
        action = KillRestart(node=each.node, reason=reason, gain_s=gain_s, cost_s=each.cost_s)
        due.append((each.gain, action))
    due.sort(key=lambda one: -one[0])
    return [action for _, action in due[: max(limit, 0)]]


def server_candidates(seen: Observation, rule: Rule, step_s: float) -> list[Candidate]:
    """Servers that take longer than is usual."""
    cost = seen.server_restart
    # A slow server goes on serving until its successor has its buckets.
    stall_s = latency_s(seen, cost) + cost.redo_s if cost.stall_s is None else cost.stall_s
    known = [(server, server.regime) for server in seen.servers if server.regime is not None]
    times_s = [_mean_s(regime) for _, regime in known]
    usual_s = float(np.median(times_s)) if times_s else 0.0
    return [
        Candidate(
            node=server.node,
            regime=regime,
            restarts=server.restarts,
            slowness=time_s / usual_s,
            gain=min((time_s - usual_s) / step_s, 1.0),
            cost_s=max(stall_s, step_s),
        )
        for (server, regime), time_s in zip(known, times_s, strict=True)
        if time_s >= rule.slowness * usual_s > 0.0
    ]


def worker_candidates(
    seen: Observation, rule: Rule, slowness: Floats, gain: Floats, cost_s: Floats
) -> list[Candidate]:
    """Workers that take longer than is usual; arrays in the observation's order."""
    return [
        Candidate(
            node=worker.node,
            regime=worker.regime,
            restarts=worker.restarts,
            slowness=float(slowness[index]),
            gain=float(gain[index]),
            cost_s=float(cost_s[index]),
        )
        for index in np.flatnonzero((slowness >= rule.slowness) & (gain > 0.0)).tolist()
        if (worker := seen.workers[index]).regime is not None
    ]


def _mean_s(regime: Regime) -> float:
    iterations = sum(point.iterations for point in regime.points)
    return sum(point.iterations * point.compute_s for point in regime.points) / iterations
