"""``auto``: paceline's own solution.

It differs from AntDT-ND in four ways. A change point, and not a window of fixed length, says since
when a node is slow, so that it reacts, and takes back, within tens of iterations. The time of a
batch is affine in its size: delay + slope * samples. Work is divided whenever that is worth more
than it costs, whether or not anyone is a straggler by some factor. And a restart is a matter of
cost (`paceline.features.stragglers.policy.restarts`).

Reference: AntDT section VI-A (what it replaces); FALCON sections 3.2 and 4.2 (change points, cost).
"""

import math
import statistics
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from paceline.features.stragglers.policy import chance, restarts
from paceline.features.stragglers.policy.division import StepModel, in_force
from paceline.features.stragglers.policy.fleet import Fleet
from paceline.features.stragglers.policy.paces import elapsed, paces_s, step_candidates, steps_left
from paceline.features.stragglers.policy.solution import (
    SYNCHRONOUS,
    Compared,
    Part,
    Seconds,
    Solution,
    Steps,
    adjusted,
)
from paceline.features.stragglers.policy.solvers import Floats
from paceline.features.stragglers.policy.trials import Patience
from paceline.policy.actions import (
    AnyAction,
    KillRestart,
    Partial,
)
from paceline.policy.observation import Observation

_MIN_SERVER_ITERATIONS = 2
"""However many updates they have: the first one of a fresh server is not like the others."""
_UNTOLD_GAIN = 0.1
"""Part of a step that a change must save before it is known how iterations scatter."""
_MINUTE_S = 60.0


class Auto(Solution, frozen=True):
    """``auto``: ADJUST_BS, partial steps and KILL_RESTART, by gain and cost."""

    every_steps: Steps = 2
    every_s: Seconds = 1.0
    min_gain: Part = 0.01
    """A step must get faster by this part of it; before work is divided again, also by more than
    may be chance in how slow the slowest worker seems."""
    growth: Annotated[float, Meta(gt=1)] = 2.0
    """A worker gets at most so many times its present, or an even, share: nobody knows what it
    takes for more."""
    slowness: Annotated[float, Meta(gt=1)] = 1.1
    """A node that is restarted takes at least so many times what is usual."""
    min_iterations: Annotated[int, Meta(ge=1)] = 20
    """A worker that is restarted was slow for at least so many iterations."""
    min_server_updates: Annotated[int, Meta(ge=1)] = 10
    """A server that is replaced was slow for at least so many updates, of which an iteration
    without common steps has one per worker, and for two iterations. The others cannot do its work,
    as with workers."""
    min_slow_s: Seconds = 10.0
    """A node that is restarted was slow for at least so many seconds."""
    min_cut_s: Seconds = 3.0
    """Least seconds for which it was slow if its machine has cut its cpu quota: the kernel says so,
    and that is no passing load."""
    max_restarts: Annotated[int, Meta(ge=0)] = 3
    """Restarts of one node. Each doubles what the next must be worth."""
    changes_per_minute: Annotated[int, Meta(ge=1)] = 2
    """Decisions that change the plan, in any minute."""
    min_short_gain: Part = 0.02
    """Steps without all of their samples must surely be faster by this part."""
    restarts_at_once: Part = 0.3
    """Part of the workers that may restart at once; one always may."""

    def decide(self, seen: Observation) -> list[AnyAction]:
        """Cheap cures first; what they leave is what a restart is held against."""
        regimes = [worker.regime for worker in seen.workers if worker.regime is not None]
        if not regimes:
            return []
        scatter = chance.scatter(regimes)
        fleet = Fleet.of(seen.workers, scatter)
        if seen.mode in SYNCHRONOUS:
            return self._synchronous(seen, fleet, scatter)
        return self._asynchronous(seen, fleet)

    def compared(self, seen: Observation, action: AnyAction) -> Compared:
        """Compare each node's time since its last change point; see `Solution.compared`.

        Where work is divided, what it is expected to take while the division lasts.
        """
        known = [worker.regime is not None for worker in seen.workers]
        server_times_s, server_s = restarts.server_times_s(seen)
        if isinstance(action, KillRestart) and action.node in server_times_s:
            return Compared(times_s=server_times_s, usual_s=server_s, verb="takes")
        names = [worker.node for worker in seen.workers]
        is_gone = isinstance(action, KillRestart) and action.node not in names
        if is_gone or not any(known):
            return super().compared(seen, action)
        regimes = [worker.regime for worker in seen.workers if worker.regime is not None]
        fleet = Fleet.of(seen.workers, chance.scatter(regimes))
        times, usual = paces_s(seen, fleet)
        verb, usual_s = "takes", None
        if isinstance(action, KillRestart):
            usual_s = float(usual[names.index(action.node)])
        elif seen.mode in SYNCHRONOUS:
            times = fleet.expected(fleet.lasting(seen)).times_s(fleet.shares)
            verb = "is expected to take"
        measured = zip(names, times.tolist(), known, strict=True)
        times_s = {name: time_s for name, time_s, is_known in measured if is_known}
        return Compared(times_s=times_s, usual_s=usual_s, verb=verb)

    def _may_change(self, seen: Observation) -> bool:
        """Whether the job has a change of plan left."""
        recent = sum(ago_s < _MINUTE_S for ago_s in seen.changes_s)
        return recent < self.changes_per_minute

    # ------------------------------------------------------------------ bsp, all-reduce

    def _synchronous(self, seen: Observation, fleet: Fleet, scatter: float) -> list[AnyAction]:
        actions: list[AnyAction] = []
        if self._may_change(seen):
            actions += self._divide(seen, fleet, scatter)
        candidates, step_s = step_candidates(seen, fleet, self._rule(), self.growth)
        return actions + self._restarts(seen, candidates, steps_left(seen) * step_s, step_s)

    def _divide(self, seen: Observation, fleet: Fleet, scatter: float) -> list[AnyAction]:
        """ADJUST_BS and whom not to wait for, each where a step gets faster by what it is worth."""
        calm = scatter * chance.largest_normal(len(seen.workers)) < self.min_short_gain
        if calm and in_force(seen) == Patience() and not fleet.differs.any() and _are_even(fleet):
            return []  # as nearly all of the time
        step = StepModel(seen, fleet, self.growth, fleet.lasting(seen))
        present_s = step.present_s
        slowest = int(fleet.times_s(fleet.shares).argmax())
        # Before it is known how times go up and down by themselves, only a large gain is one.
        regimes = [worker.regime for worker in seen.workers if worker.regime is not None]
        told = scatter and (chance.drift(regimes) is not None)
        min_gain = self.min_gain if told else max(self.min_gain, _UNTOLD_GAIN)
        worth_s = max(min_gain, float(fleet.by_chance[slowest])) * present_s
        best = step.best(self.min_short_gain, worth_s)
        reason = f"a step should take {best.step_s:.3g} s instead of {present_s:.3g} s"
        beyond = [seen.workers[index].node for index in np.flatnonzero(best.beyond_help)]
        if beyond:
            reason += f"; not waited for: {', '.join(beyond)}"
        gain_s = (present_s - best.step_s) * min(elapsed(seen), steps_left(seen))
        actions = _patience(best.patience, in_force(seen), reason)
        return actions + adjusted(seen.workers, best.shares.tolist(), reason, gain_s)

    # ------------------------------------------------------------------------ asp, ssp

    def _asynchronous(self, seen: Observation, fleet: Fleet) -> list[AnyAction]:
        """Restarts alone: the master sizes leases by what was measured, so they follow speed."""
        sizes = fleet.shares.astype(np.float64)
        times_s, usual_s = paces_s(seen, fleet)
        gain, absence = _asynchronous_gains(seen.mode, sizes, times_s, usual_s)
        latency_s = restarts.latency_s(seen, seen.worker_restart)
        candidates = restarts.worker_candidates(
            seen,
            self._rule(),
            slowness=times_s / usual_s,
            gain=gain,
            cost_s=absence * latency_s + seen.worker_restart.redo_s / len(times_s) + usual_s,
            futile_s=np.zeros(len(times_s)),  # nobody has more to do for it
        )
        # In SSP everybody goes at the pace of the slowest.
        own_s = times_s.max() if seen.mode == "ssp" else np.median(times_s)
        iteration_s = float(own_s) + _round_trip_s(seen)
        left_s = steps_left(seen) * iteration_s / len(seen.workers)
        return [*self._restarts(seen, candidates, left_s, iteration_s)]

    # ----------------------------------------------------------------------------- both

    def _restarts(
        self, seen: Observation, workers: list[restarts.Candidate], left_s: float, step_s: float
    ) -> list[KillRestart]:
        limit = max(1, int(self.restarts_at_once * len(seen.workers))) - seen.absent
        rule = self._rule()
        updates = 1 if seen.mode in SYNCHRONOUS else len(seen.workers)
        iterations = max(_MIN_SERVER_ITERATIONS, math.ceil(self.min_server_updates / updates))
        of_servers = msgspec.structs.replace(rule, min_iterations=iterations)
        servers = restarts.server_candidates(seen, of_servers, step_s)
        return restarts.worth_while(seen, rule, workers, left_s, limit) + restarts.worth_while(
            seen, of_servers, servers, left_s, limit=1
        )

    def _rule(self) -> restarts.RestartRule:
        return restarts.RestartRule(
            slowness=self.slowness,
            min_iterations=self.min_iterations,
            min_slow_s=self.min_slow_s,
            min_cut_s=self.min_cut_s,
            max_restarts=self.max_restarts,
        )


def _round_trip_s(seen: Observation) -> float:
    """The time of a request: the servers' work and the wire."""
    paces = [worker.short for worker in seen.workers if worker.short is not None]
    return statistics.median(pace.server_s + pace.message_s for pace in paces) if paces else 0.0


def _are_even(fleet: Fleet) -> bool:
    """Whether all take as long as the others with their shares, to a hundredth."""
    times_s = fleet.times_s(fleet.shares)
    return bool(times_s.max() <= 1.01 * times_s.min())


def _patience(new: Patience, present: Patience, reason: str) -> list[AnyAction]:
    """Return the actions by which steps wait for other workers than now."""
    if new == present:
        return []
    return [
        Partial(
            left_out=new.left_out,
            chunks=new.chunks,
            late=new.late,
            grace_s=new.grace_s,
            reason=reason,
        )
    ]


def _asynchronous_gains(
    mode: str, sizes: Floats, times_s: Floats, usual_s: Floats
) -> tuple[Floats, Floats]:
    """Parts of the job's time: saved by each worker's recovery, and lost by its absence.

    In ASP a slow worker costs what it does less than usual. In SSP everybody waits for the slowest,
    but nobody for one that is gone.
    """
    if mode == "ssp":
        slowest = times_s >= times_s.max()
        return slowest * (1.0 - usual_s / times_s), np.full(len(times_s), 1.0 / len(times_s))
    speeds, usual = sizes / times_s, sizes / usual_s
    healed = speeds.sum() - speeds + usual
    return (usual - speeds) / healed, usual / healed
