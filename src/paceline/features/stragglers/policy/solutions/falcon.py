"""``falcon``: the planner of fail-slow events, where paceline divides the work.

To do nothing (S1) costs time with every step. Once the loss has reached the price of a cure, the
planner applies it: another division of the step (S2, ADJUST_BS), then the restart of the slowest
worker (S4, KILL_RESTART). When no worker is slow any more, shares are even again.
`paceline.policy.cures` decides. A solution remembers nothing, so the planner's state is
read off each observation.

Reference: FALCON sections 4.1 to 4.3 (arXiv:2410.12588).
Differs: a worker is slow against the fastest of its kind, by the times of its own computing. The
division is exact, in samples, by measured costs. A plan that went back and forth recently makes the
next division dearer. A restart has the price that ``auto`` reckons with.
"""

from typing import Annotated, ClassVar

from msgspec import Meta

from paceline.features.stragglers.policy import restarts
from paceline.features.stragglers.policy.division import divided
from paceline.features.stragglers.policy.paces import (
    elapsed,
    paces_s,
    step_candidates,
    steps_left,
)
from paceline.features.stragglers.policy.slow_workers import SlowWorkers, work
from paceline.features.stragglers.policy.solution import (
    SYNCHRONOUS,
    Compared,
    Part,
    Seconds,
    Solution,
    Steps,
    adjusted,
    even,
)
from paceline.policy.actions import AnyAction, KillRestart
from paceline.policy.cures import (
    AnyCureAct,
    ApplyCure,
    Cure,
    CureOption,
    CureTrial,
    CureUndone,
    EventFacts,
    Fault,
    PlannerRules,
    PlannerState,
    RevertCure,
    decide,
)
from paceline.policy.observation import Observation

_MOST_DOUBLINGS = 3
"""Most doublings of the price of a division: a change of the plan costs little, however often."""
NO_PLACES = "ranks of a data-parallel job have no places to exchange"


class Falcon(Solution, frozen=True):
    """``falcon``: ADJUST_BS, then KILL_RESTART, each when as much was lost as it costs."""

    modes: ClassVar[tuple[str, ...]] = SYNCHRONOUS

    every_steps: Steps = 1
    every_s: Seconds = 0.5
    slowness: Annotated[float, Meta(gt=1)] = 1.1
    """A slow worker takes at least so many times what the fastest one takes for an even share."""
    division_s: Seconds = 1.0
    """Price of a division; at least that of a healthy step."""
    growth: Annotated[float, Meta(gt=1)] = 2.0
    """A worker gets at most so many times its present, or an even, share."""
    min_gain: Part = 0.1
    """Part of the slowness that another division must take away, ..."""
    least_gain: Part = 0.02
    """... and part of a healthy step."""
    settle: Annotated[int, Meta(ge=1)] = 5
    """Steps from a change of the plan to the next one."""
    calm: Annotated[int, Meta(ge=1)] = 5
    """Steps without a slow worker, before shares are even again."""
    memory: Annotated[int, Meta(ge=1)] = 500
    """Steps during which a plan that went back and forth makes the next division dearer."""
    max_restarts: Annotated[int, Meta(ge=0)] = 3
    """Restarts of one worker. Each doubles the price of the next."""

    def decide(self, seen: Observation) -> list[AnyAction]:
        """Ask the planner, and do what it applies or takes back."""
        slow = SlowWorkers.of(seen, self.slowness)
        if slow is None or seen.mode not in SYNCHRONOUS or not (slow.faults or slow.uneven):
            return []
        costs = slow.in_proportion(seen)
        shares = divided(seen, costs, self.growth)
        saved_s = float(slow.now_s.max() - costs.times_s(work(seen, shares)).max())
        worst = self._worst(seen, slow) if slow.faults else None
        facts = EventFacts(
            step=seen.step,
            step_s=slow.step_s,
            steps=self._steps_lost(seen, slow),
            healthy_s=slow.healthy_s,
            faults=slow.faults,
            options=self._options(seen, slow, worst),
        )
        actions: list[AnyAction] = []
        for act in decide(self._state(seen, slow, saved_s), facts, self._rules())[1]:
            if isinstance(act, ApplyCure) and act.cure is Cure.RESTART and worst is not None:
                lost_s = slow.gap_s * facts.steps
                actions += [_restart(act, worst, lost_s, _price_s(seen, worst))]
            elif isinstance(act, ApplyCure):
                reason = f"{act.reason}; a step of {slow.step_s - saved_s:.3g} s is expected"
                gain_s = saved_s * min(elapsed(seen), steps_left(seen))
                actions += adjusted(seen.workers, shares.tolist(), reason, gain_s)
            elif isinstance(act, RevertCure):
                actions += adjusted(seen.workers, _even(seen), act.reason)
        return actions

    def compared(self, seen: Observation, action: AnyAction) -> Compared:
        """Compare each worker's time for an even share; see `Solution.compared`."""
        slow = SlowWorkers.of(seen, self.slowness)
        names = [worker.node for worker in seen.workers]
        restarted = action.node if isinstance(action, KillRestart) else ""
        if slow is None or (restarted and restarted not in names):
            return super().compared(seen, action)
        times_s, usual_s = paces_s(seen, slow.fleet)
        known = [worker.regime is not None for worker in seen.workers]
        measured = zip(names, times_s.tolist(), known, strict=True)
        return Compared(
            times_s={name: time_s for name, time_s, is_known in measured if is_known},
            usual_s=float(usual_s[names.index(restarted)]) if restarted else None,
            verb="takes",
        )

    # ------------------------------------------------------------------ what can be had

    def _worst(self, seen: Observation, slow: SlowWorkers) -> restarts.Candidate | None:
        """The worker whose restart would save most; None: none is sure to be worth one."""
        rule = restarts.RestartRule(slowness=self.slowness, max_restarts=self.max_restarts)
        found, _ = step_candidates(seen, slow.fleet, rule, self.growth)
        ripe = [each for each in found if restarts.is_ripe(seen, rule, each)]
        return max(ripe, key=lambda each: each.gain, default=None)

    def _options(
        self, seen: Observation, slow: SlowWorkers, worst: restarts.Candidate | None
    ) -> tuple[CureOption, ...]:
        start_s = restarts.latency_s(seen, seen.worker_restart)
        restart_s = start_s if worst is None else _price_s(seen, worst)
        why_not = ""
        if seen.absent:
            why_not = "a worker is absent already"
        elif worst is None:
            why_not = "no worker is slow for long enough, and for what a restart cures"
        elif slow.gap_s * steps_left(seen) < restart_s:
            why_not = "the job ends before that pays"
        division_s = max(self.division_s, slow.healthy_s)
        return (
            CureOption(cure=Cure.MICRO_BATCHES, cost_s=division_s),
            CureOption(cure=Cure.TOPOLOGY, cost_s=start_s, unavailable=NO_PLACES),
            CureOption(cure=Cure.RESTART, cost_s=restart_s, unavailable=why_not),
        )

    # ------------------------------------------------------------------ the planner's state

    def _rules(self) -> PlannerRules:
        return PlannerRules(
            settle=self.settle, calm=self.calm, memory=self.memory, min_gain=self.min_gain
        )

    def _steps_lost(self, seen: Observation, slow: SlowWorkers) -> int:
        """Steps since the slowness began, or since the last change of the plan has settled."""
        lost_s = seen.now_s - slow.since_s
        changed_s = _since_change_s(seen)
        if changed_s is not None:
            lost_s = min(lost_s, changed_s - self.settle * slow.step_s)
        return max(int(lost_s / slow.step_s), 0)

    def _state(self, seen: Observation, slow: SlowWorkers, saved_s: float) -> PlannerState:
        """Return the planner's state as it would be."""
        division, trial = Cure.MICRO_BATCHES, None
        calm = elapsed(seen) if all(each.regime is not None for each in seen.workers) else 0
        changed_s = _since_change_s(seen)
        if changed_s is not None:
            calm = min(calm, int(changed_s / slow.step_s))
            if changed_s < self.settle * slow.step_s:
                trial = CureTrial(cure=division, before_s=slow.step_s, renewed=True)
        worth_s = max(self.min_gain * slow.gap_s, self.least_gain * slow.healthy_s)
        return PlannerState(
            faults=slow.faults or (Fault(cause="computation"),),  # those that are over
            applied=(division,) if slow.uneven else (),
            done_with=(division,) if saved_s < worth_s else (),
            trial=trial,
            fewer=max(calm - 1, 0),
            undone=self._undone(seen, slow.step_s),
        )

    def _undone(self, seen: Observation, step_s: float) -> dict[Cure, CureUndone]:
        """Count every second recent change of the plan as one that took another back."""
        recent = [ago_s for ago_s in seen.changes_s if ago_s < self.memory * step_s]
        if len(recent) < 2:
            return {}
        step = seen.step - int(recent[0] / step_s)
        times = min(len(recent) // 2, _MOST_DOUBLINGS)
        return {Cure.MICRO_BATCHES: CureUndone(step=step, times=times)}


def _even(seen: Observation) -> list[int]:
    """Even shares, in whole batches of the accumulation in force where that can be."""
    unit = seen.workers[0].accumulation
    unit = 1 if seen.global_batch % unit else unit
    return [unit * each for each in even(seen.global_batch // unit, len(seen.workers))]


def _since_change_s(seen: Observation) -> float | None:
    """How long ago the plan was changed, or another action took effect; None: never."""
    ago_s = [*seen.changes_s[:1], seen.since_action_s]
    return min((each for each in ago_s if each is not None), default=None)


def _price_s(seen: Observation, worst: restarts.Candidate) -> float:
    """Return the cost of restarts until one cures."""
    cured = restarts.cures(seen.outcomes, worst.role)
    return (worst.cost_s + (1.0 - cured) * worst.futile_s) * 2.0**worst.restarts / cured


def _restart(
    act: AnyCureAct, worst: restarts.Candidate, lost_s: float, price_s: float
) -> KillRestart:
    """KILL_RESTART; as much is expected to be lost again as was."""
    reason = f"{worst.slowness:.2f} times the usual; {act.reason}"
    return KillRestart(node=worst.node, reason=reason, gain_s=lost_s, cost_s=price_s)
