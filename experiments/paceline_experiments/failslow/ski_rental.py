"""Costs of the planner for an event, over those of one that knows how long the event lasts.

For one cure the ratio is at most 2, up to one step's loss. For several nothing is proved; `main`
prints what random events give.
"""

import random
from collections.abc import Callable, Sequence
from statistics import mean

import msgspec

from paceline.policy.cures import (
    ApplyCure,
    Cure,
    CureOption,
    EventFacts,
    Fault,
    PlannerRules,
    PlannerState,
    decide,
)

HEALTHY_S = 1.0


class EmulatedCure(msgspec.Struct, frozen=True):
    """A cure whose effect is known."""

    cure: Cure
    cost_s: float
    leaves: float
    """Part of the slowness that it leaves."""


class EventCost(msgspec.Struct, frozen=True):
    """Time lost to an event, cures included."""

    planner_s: float
    optimum_s: float
    """Seconds lost with the best cure, or none, applied at the event's first step."""

    @property
    def ratio(self) -> float:
        """Factor over the optimum that the planner paid."""
        return self.planner_s / self.optimum_s


def play_event(
    gaps_s: Sequence[float], cures: Sequence[EmulatedCure], rules: PlannerRules | None = None
) -> EventCost:
    """Let the planner go through an event of slow computing.

    Args:
        gaps_s: by step, what it takes above the healthy time without a cure; positive.
        cures: what is to be had.
        rules: of the planner; None: those by default.
    """
    state, leaves, paid_s = PlannerState(), 1.0, 0.0
    options = tuple(CureOption(cure=each.cure, cost_s=each.cost_s) for each in cures)
    known = {each.cure: each for each in cures}
    for step, gap_s in enumerate(gaps_s):
        if not leaves:
            break  # nothing is lost any more
        paid_s += leaves * gap_s
        facts = EventFacts(
            step=step,
            step_s=HEALTHY_S + leaves * gap_s,
            healthy_s=HEALTHY_S,
            faults=(Fault(cause="computation", ranks=(0,)),),
            options=options,
        )
        state, acts = decide(state, facts, rules or PlannerRules())
        for act in acts:
            if isinstance(act, ApplyCure):
                paid_s += known[act.cure].cost_s
                leaves = min(leaves, known[act.cure].leaves)
    ignored_s = sum(gaps_s)
    best_s = min((each.cost_s + each.leaves * ignored_s for each in cures), default=ignored_s)
    return EventCost(planner_s=paid_s, optimum_s=min(ignored_s, best_s))


def ratios(events: int, draw: Callable[[random.Random], EventCost], seed: int = 1) -> list[float]:
    """Return the ratios of random events, the least first."""
    numbers = random.Random(seed)
    return sorted(draw(numbers).ratio for _ in range(events))


def several_cures(numbers: random.Random) -> EventCost:
    """Play an event of any length with all cures, each dearer and better than the one before."""
    costs_s = sorted(10.0 ** numbers.uniform(0.0, 3.0) for _ in Cure)
    leaves = (numbers.uniform(0.2, 0.8), numbers.uniform(0.0, 0.2), 0.0)
    steps = round(10.0 ** numbers.uniform(0.0, 4.0))
    cures = [EmulatedCure(*each) for each in zip(Cure, costs_s, leaves, strict=True)]
    return play_event([numbers.uniform(0.1, 1.0)] * steps, cures)


def main() -> None:
    """Print the ratios of events with several cures."""
    found = ratios(2000, several_cures)
    middle, high = found[len(found) // 2], found[int(0.95 * len(found))]
    print(
        f"{len(found)} events, three cures: planner over optimum {middle:.2f} in the middle, "
        f"{mean(found):.2f} on average, {high:.2f} at 95 %, {found[-1]:.2f} at most"
    )


if __name__ == "__main__":
    main()
