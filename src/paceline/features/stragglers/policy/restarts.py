"""KILL_RESTART by cost: when a straggler is expected to cost more than its restart.

Nobody tells how long a straggler will last. It is expected to last as those of this job before it
did (`paceline.policy.stats.spells`), and as long as it has outlived them all, one of age a is as
likely to end between a and 2 a as after 2 a: until the end of the job, a time l away, it is
expected to last for a * ln(1 + l / a). It is restarted when what that costs, times the probability
that a restart cures, is more than the restart. That probability is learnt from the restarts of this
job and of earlier ones on the same backend: each counts for a cure as far as the straggler would
not have healed without it.

Reference: AntDT section V-E-2 (the five parts of a restart); FALCON section 4.2 (ski rental).
Differs: AntDT restarts a node that is slow over a window of fixed length. Here the cost is measured
in this job, the platform's pending time is part of it, and it counts what the job loses
by it, not what the node does: the other workers do its share meanwhile. Where it does not cure, all
wait for the new process, which has an even share at first, until that is seen: a part of the price.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from paceline.features.stragglers.policy.fleet import Fleet
from paceline.features.stragglers.policy.solvers import Floats
from paceline.policy.actions import KillRestart
from paceline.policy.observation import Observation, RestartCost, RestartOutcome
from paceline.policy.stats.regimes import Regime
from paceline.policy.stats.windows import Pace

_SIGMAS = 3.0
_PRIOR = (3.0, 1.0)
"""Restarts that are taken to have cured, and to have been futile, before any was seen."""
_NEWEST = 3, 4.0
"""Iterations and seconds that tell whether a node is slow still."""
_STOLEN = 0.5
"""A node that is slow for so large a part since its machine does other work is let be."""


class RestartRule(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes for which a restart may be worthwhile."""

    slowness: Annotated[float, Meta(gt=1)] = 1.1
    """A straggler takes at least so many times what is usual."""
    min_iterations: Annotated[int, Meta(ge=1)] = 20
    """Iterations that it must have been seen for."""
    min_slow_s: Annotated[float, Meta(ge=0)] = 10.0
    """Seconds that it must have been slow for: load comes and goes."""
    min_cut_s: Annotated[float, Meta(ge=0)] = 3.0
    """Seconds that it must have been slow for if the kernel says that its machine has cut its cpu
    quota."""
    max_restarts: Annotated[int, Meta(ge=0)] = 3
    """Restarts of one node. Each doubles what the next must be worth."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A straggler, and what its restart would change."""

    node: str
    role: str
    """``worker`` or ``server``."""
    regime: Regime
    restarts: int
    slowness: float
    """Ratio of the node's time to the usual one."""
    gain: float
    """Part of the job's time that its recovery would save."""
    cost_s: float
    """Seconds that the job loses by the restart."""
    delay_s: float = 0.0
    """Seconds after the decision during which nothing is saved."""
    futile_s: float = 0.0
    """Seconds that the job loses besides if the new process is as slow, until that is seen."""


def latency_s(seen: Observation, cost: RestartCost) -> float:
    """Seconds from the kill until the new process does its share."""
    pending_s = cost.pending_s if seen.pending_s is None else seen.pending_s
    return pending_s + cost.latency_s - cost.pending_s


def cures(outcomes: Iterable[RestartOutcome], role: str) -> float:
    """Probability that a restart cures, by what restarts have done: the mean of a Beta."""
    cured, futile = _PRIOR
    for each in outcomes:
        if each.role == role:
            cured += each.weight * each.cured
            futile += not each.cured
    return cured / (cured + futile)


def slowness(seen: Observation, node: str) -> float | None:
    """How many times the usual a node takes; None: it is not measured, or there is no other."""
    if any(each.node == node for each in seen.servers):
        times_s, usual_s = server_times_s(seen)
        if len(times_s) < 2 or node not in times_s or not usual_s:
            return None
        return times_s[node] / usual_s
    workers = [each for each in seen.workers if each.regime is not None]
    names = [each.node for each in workers]
    if node not in names or len(names) < 2:
        return None
    fleet, index = Fleet.measured(workers), names.index(node)
    expected_s = fleet.usual_delays_s + fleet.usual_slopes_s * fleet.shares
    return float(fleet.times_s(fleet.shares)[index] / expected_s[index])


def server_times_s(seen: Observation) -> tuple[dict[str, float], float]:
    """Return each measured server's time for its own work of an iteration, and the usual; s."""
    times_s = {each.node: _mean_s(each.regime) for each in seen.servers if each.regime is not None}
    return times_s, float(np.median(list(times_s.values()))) if times_s else 0.0


def is_ripe(seen: Observation, rule: RestartRule, candidate: Candidate) -> bool:
    """Whether it is surely slow, for long enough, and was not restarted too often."""
    regime = candidate.regime
    age_s = seen.now_s - regime.since_s if regime.reported_s is None else regime.reported_s
    least_s = min(rule.min_cut_s, rule.min_slow_s) if regime.is_cut else rule.min_slow_s
    return (
        regime.verified
        and regime.iterations >= rule.min_iterations
        and age_s >= least_s
        and candidate.restarts < rule.max_restarts
    )


def worth_while(
    seen: Observation, rule: RestartRule, candidates: list[Candidate], left_s: float, limit: int
) -> list[KillRestart]:
    """Those that are expected to cost more than their restart, dearest first.

    Args:
        seen: the job.
        rule: whom a restart may be worth while for.
        candidates: stragglers, all of one role.
        left_s: what is left of the job at its present speed.
        limit: restarts at most.
    """
    due: list[tuple[float, KillRestart]] = []
    for each in candidates:
        if not is_ripe(seen, rule, each):
            continue
        age_s = max(seen.now_s - each.regime.since_s, 1e-9)
        spells = seen.server_spells if each.role == "server" else seen.worker_spells
        cured = cures(seen.outcomes, each.role)
        gain_s = cured * each.gain * spells.expected_s(age_s, each.delay_s, left_s)
        cost_s = each.cost_s + (1.0 - cured) * each.futile_s
        price_s = cost_s * 2.0**each.restarts
        if gain_s <= price_s:
            continue
        reason = (
            f"{each.slowness:.2f} times the usual for {each.regime.iterations} iterations"
            f"{', since its machine has cut its cpu quota' if each.regime.is_cut else ''}; "
            f"a restart, which cures {100 * cured:.0f} % of stragglers here, is expected to save "
            f"{gain_s:.3g} s and to cost {cost_s:.3g} s"
        )
        if each.restarts:
            reason += f", and must be worth {price_s:.3g} s, since one did not help before"
        action = KillRestart(node=each.node, reason=reason, gain_s=gain_s, cost_s=cost_s)
        due.append((each.gain, action))
    due.sort(key=lambda one: -one[0])
    return [action for _, action in due[: max(limit, 0)]]


def server_candidates(seen: Observation, rule: RestartRule, step_s: float) -> list[Candidate]:
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
        start_s = cost.start_s + cost.restore_s
        cost_s = cost.stall_s + start_s / (len(seen.workers) + len(seen.servers))
        # A successor waits for no script, as the first servers of a job did.
        cost = msgspec.structs.replace(cost, rebuild_s=0.0)
    known = [(server, server.regime) for server in seen.servers if server.regime is not None]
    times_s, usual_s = server_times_s(seen)
    return [
        Candidate(
            node=server.node,
            role="server",
            regime=regime,
            restarts=server.restarts,
            slowness=time_s / usual_s,
            # Cured it would be as the others: of two servers the usual time is half its own.
            gain=min((time_s - _of_others_s(times_s, server.node)) / step_s, 1.0),
            cost_s=max(cost_s, step_s),
            delay_s=latency_s(seen, cost),
        )
        for (server, regime), time_s in zip(known, times_s.values(), strict=True)
        if is_slow_server(regime, time_s, usual_s, rule.slowness)
        and not _is_starved(server.short, regime, time_s - usual_s)
    ]


def _of_others_s(times_s: dict[str, float], node: str) -> float:
    return float(np.median([time_s for name, time_s in times_s.items() if name != node]))


def is_slow_server(regime: Regime, time_s: float, usual_s: float, slowness: float) -> bool:
    """Whether a server takes so many times the usual, by more than chance."""
    by_chance_s = _SIGMAS * regime.scatter * time_s / math.sqrt(regime.iterations)
    return time_s >= slowness * usual_s > 0.0 and time_s - usual_s > by_chance_s


def worker_candidates(
    seen: Observation,
    rule: RestartRule,
    *,
    slowness: Floats,
    gain: Floats,
    cost_s: Floats,
    futile_s: Floats,
) -> list[Candidate]:
    """Workers that take longer than is usual; arrays in the observation's order.

    See `Candidate` for what they hold.
    """
    return [
        Candidate(
            node=worker.node,
            role="worker",
            regime=worker.regime,
            restarts=worker.restarts,
            slowness=float(slowness[index]),
            gain=float(gain[index]),
            cost_s=float(cost_s[index]),
            futile_s=float(futile_s[index]),
        )
        for index in np.flatnonzero((slowness >= rule.slowness) & (gain > 0.0)).tolist()
        if (worker := seen.workers[index]).regime is not None
        and not _is_over(worker.regime, float(slowness[index]))
        and not _is_starved(
            worker.short,
            worker.regime,
            (1.0 - 1.0 / float(slowness[index])) * _mean_s(worker.regime),
        )
    ]


def _is_over(regime: Regime, slowness: float) -> bool:
    """Whether its newest iterations are nearer to what is usual than to what it has taken so far.

    A mean stays large for a while after short bursts, of which nothing is left to be cured.
    """
    iterations, span_s, total_s, samples = 0, 0.0, 0.0, 0.0
    for stretch in reversed(regime.trail):
        enough = iterations >= _NEWEST[0] and span_s >= _NEWEST[1]
        if enough or stretch.t_s <= regime.since_s:
            break
        iterations += stretch.iterations
        span_s += stretch.span_s
        total_s += stretch.iterations * stretch.compute_s
        samples += stretch.iterations * stretch.samples
    if not samples:
        return False
    count = sum(point.iterations for point in regime.points)
    size = sum(point.iterations * point.batch_size for point in regime.points) / count
    # The size may have changed meanwhile, and the costs be a delay or in proportion to it.
    recent_s = total_s / iterations
    part = max(recent_s, recent_s * size * iterations / samples) / _mean_s(regime)
    return part < (1.0 + 1.0 / slowness) / 2.0


def _is_starved(pace: Pace | None, regime: Regime, excess_s: float) -> bool:
    """Whether what a node takes more than others is its wait for a processor that others use.

    That is the load of its machine, which no restart cures. The load may have come and gone again
    since the regime began, or have come just now.
    """
    stolen_s = max(regime.stolen_s, pace.stolen_s if pace else 0.0)
    return stolen_s >= _STOLEN * excess_s > 0.0


def _mean_s(regime: Regime) -> float:
    iterations = sum(point.iterations for point in regime.points)
    return sum(point.iterations * point.compute_s for point in regime.points) / iterations
