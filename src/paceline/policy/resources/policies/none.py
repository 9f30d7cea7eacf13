"""The policy that leaves a job as it is."""

from paceline.policy.resources.history import SizingHistory
from paceline.policy.resources.observation import ResourceObservation
from paceline.policy.resources.plan import Hold, ResourcePlan
from paceline.policy.resources.planner import ResourcePolicy


class KeepSize(ResourcePolicy, frozen=True):
    """No change, whatever is seen."""

    def decide(self, seen: ResourceObservation, history: SizingHistory) -> ResourcePlan | Hold:
        del seen, history
        return Hold(cause="not_asked")
