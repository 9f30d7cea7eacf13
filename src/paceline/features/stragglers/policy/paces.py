"""Times of workers now, the usual ones, and what their restarts would save and cost.

Reference: none; see `paceline.features.stragglers.policy.restarts`.
"""

import statistics

import numpy as np

from paceline.features.stragglers.policy import restarts
from paceline.features.stragglers.policy.division import StepModel
from paceline.features.stragglers.policy.fleet import Fleet
from paceline.features.stragglers.policy.restarts import Candidate, RestartRule
from paceline.features.stragglers.policy.solution import SYNCHRONOUS
from paceline.features.stragglers.policy.solvers import Floats
from paceline.policy.observation import Observation

_NO_END = 1e9
"""Stands for the steps that are left of a job whose length is not known."""
_UNSEEN_STEPS = 3
"""Steps with an even share until a worker that is slow again has said so and has a smaller one."""


def paces_s(seen: Observation, fleet: Fleet) -> tuple[Floats, Floats]:
    """Return each worker's time for an even share of a step, or a contribution, and the usual."""
    sizes, wait_s = fleet.shares.astype(np.float64), 0.0
    if seen.mode in SYNCHRONOUS:
        sizes = np.full(len(seen.workers), seen.global_batch / len(seen.workers))
    elif seen.mode == "asp":
        # In SSP a fast worker waits for the slowest, and its waits say nothing about itself.
        paces = [worker.short for worker in seen.workers]
        waits_s = [max(pace.bpt_s - pace.compute_s, 0.0) if pace else 0.0 for pace in paces]
        wait_s = float(np.median(waits_s))
    usual_s = fleet.usual_delays_s + fleet.usual_slopes_s * sizes
    return fleet.times_s(sizes) + wait_s, usual_s + wait_s


def steps_left(seen: Observation) -> float:
    """Steps until the job's end; a very large number where that is not known."""
    return _NO_END if seen.steps_left is None else seen.steps_left


def elapsed(seen: Observation) -> int:
    """Iterations since anyone changed; a straggler is expected to last for as long again."""
    return min(worker.regime.iterations for worker in seen.workers if worker.regime is not None)


def besides_s(seen: Observation) -> float:
    """The part of a step that is not the slowest worker's computation."""
    paces = [worker.short for worker in seen.workers if worker.short is not None]
    if not paces:
        return 0.0
    slowest_s = max(pace.compute_s for pace in paces)
    return max(statistics.median(pace.bpt_s for pace in paces) - slowest_s, 0.0)


def step_candidates(
    seen: Observation, fleet: Fleet, rule: RestartRule, growth: float
) -> tuple[list[Candidate], float]:
    """The slow workers of a synchronous job, and the time of a step with the best division.

    Args:
        seen: the job.
        fleet: present costs.
        rule: which workers are slow.
        growth: see `StepModel`.
    """
    times_s, usual_s = paces_s(seen, fleet)
    slowness = times_s / usual_s
    slow = np.flatnonzero(slowness >= rule.slowness).tolist()
    gain, cost_s = np.zeros(len(usual_s)), np.zeros(len(usual_s))
    # What a worker costs as it is now, however long that lasts.
    step = StepModel(seen, fleet, growth, np.ones(len(usual_s)))
    level_s = step.level_s()
    step_s = level_s + besides_s(seen)
    latency_s = restarts.latency_s(seen, seen.worker_restart)
    for worker, restart in zip(slow, step.restarts(slow), strict=True):
        gain[worker] = restart.gain * level_s / step_s
        cost_s[worker] = latency_s * restart.absence + seen.worker_restart.redo_s + step_s
    found = restarts.worker_candidates(
        seen,
        rule,
        slowness=slowness,
        gain=gain,
        cost_s=cost_s,
        futile_s=_UNSEEN_STEPS * (slowness - 1.0) * usual_s,
    )
    return found, step_s
