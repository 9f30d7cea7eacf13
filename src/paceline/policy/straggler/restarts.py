"""KILL_RESTART by cost: when a straggler is expected to cost more than its restart.

Nobody tells how long a straggler will last. Here one of age a is as likely to end between a and 2 a
as after 2 a, whatever a is (durations have no scale of their own); so until the end of the job, a
time l away, it is expected to last for a * ln(1 + l / a). It is restarted when what that costs is
more than the restart. While l is above 1.7 a, that is no later than by the ski rental of FALCON,
which restarts when the straggler has cost as much as the restart would; short of the job's end it
does not restart at all.

Reference: AntDT section V-E-2 (the five parts of a restart); FALCON section 4.2 (ski rental).
Differs: AntDT restarts whoever is slow over a window of fixed length. Here the restart's cost is
measured in this job, the platform's pending time is part of it, and it counts what the job loses
by it, not what the node does: the other workers do its share meanwhile.
"""

import dataclasses
import math
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from paceline.policy.stats.regimes import Regime
from paceline.policy.straggler.actions import KillRestart
from paceline.policy.straggler.observation import Observation, RestartCost
from paceline.policy.straggler.solvers import Floats

_SIGMAS = 3.0


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
    delay_s: float = 0.0
    """For so long after the decision nothing is saved."""


def latency_s(seen: Observation, cost: RestartCost) -> float:
    """From the kill until the new process does its share."""
    pending_s = cost.pending_s if seen.pending_s is None else seen.pending_s
    return pending_s + cost.latency_s - cost.pending_s


def worth_while(
    seen: Observation, rule: Rule, candidates: list[Candidate], left_s: float, limit: int
) -> list[KillRestart]:
    """Those that are expected to cost more than their restart, dearest first.

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
        age_s = max(seen.now_s - each.regime.since_s, 1e-9)
        gain_s = each.gain * _expected_s(age_s, each.delay_s, left_s)
        price_s = each.cost_s * 2.0**each.restarts * (1 + futile - (each.restarts > 0))
        if gain_s <= price_s:
            continue
        reason = (
            f"{each.slowness:.2f} times the usual for {each.regime.iterations} iterations; "
            f"expected to cost {gain_s:.3g} s more, a restart {each.cost_s:.3g} s"
        )
        if price_s > each.cost_s:
            reason += f", and must be worth {price_s:.3g} s, since restarts did not help before"
        action = KillRestart(node=each.node, reason=reason, gain_s=gain_s, cost_s=each.cost_s)
        due.append((each.gain, action))
    due.sort(key=lambda one: -one[0])
    return [action for _, action in due[: max(limit, 0)]]


def _expected_s(age_s: float, from_s: float, until_s: float) -> float:
    """How much of a time ahead a straggler of this age is expected to be there for."""
    return age_s * math.log((age_s + max(from_s, until_s)) / (age_s + from_s))


def server_candidates(seen: Observation, rule: Rule, step_s: float) -> list[Candidate]:
    """Servers that take longer than is usual, by more than chance; none while one is replaced.

    A slow server goes on serving until its successor has its buckets; meanwhile the start of the
    successor takes what one node of the job has, which on shared machines the others lack.
    """
    if seen.replacing:
        return []
    cost = seen.server_restart
    if cost.stall_s is None:
        cost_s = latency_s(seen, cost) + cost.redo_s
    else:
        start_s = cost.latency_s - cost.pending_s
        cost_s = cost.stall_s + start_s / (len(seen.workers) + len(seen.servers))
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
            cost_s=max(cost_s, step_s),
            delay_s=latency_s(seen, cost),
        )
        for (server, regime), time_s in zip(known, times_s, strict=True)
        if time_s >= rule.slowness * usual_s > 0.0
        and time_s - usual_s > _SIGMAS * regime.scatter * time_s / math.sqrt(regime.iterations)
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
