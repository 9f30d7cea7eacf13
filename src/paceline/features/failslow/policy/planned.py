"""Log of the planner: a JSON line for each time that it did something, in ``cures.jsonl`` of a job.

A line holds what the planner did, and all that this follows from, so that it can be asked again.
Earlier releases wrote the lines to ``decisions.jsonl``.
"""

import msgspec

from paceline.policy.cures import (
    AdviseCure,
    AnyCureAct,
    EventFacts,
    PlannerRules,
    PlannerState,
    decide,
)


class CurePlanned(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The planner of a script did something: its acts, and all that they follow from."""

    t: float = 0.0
    """Unix time at which it was written."""
    before: PlannerState
    facts: EventFacts
    rules: PlannerRules
    acts: tuple[AnyCureAct, ...] = ()
    no: int = 0

    @property
    def advised(self) -> AdviseCure | None:
        """Advice for a person, if one of the acts gives some."""
        return next((act for act in self.acts if isinstance(act, AdviseCure)), None)

    @property
    def lost_s(self) -> float:
        """Seconds that the slowness has cost until then."""
        gap_s = max(self.facts.step_s - self.facts.healthy_s, 0.0)
        return self.before.loss_s + gap_s * self.facts.steps

    def acts_now(self, _: object = None) -> tuple[AnyCureAct, ...]:
        """Return what the planner, which is paceline's own code, would do today."""
        return decide(self.before, self.facts, self.rules)[1]
