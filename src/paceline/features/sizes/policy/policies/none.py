"""The policy that leaves a job as it is."""

from paceline.features.sizes.policy.history import SizingHistory
from paceline.features.sizes.policy.observation import ResourceObservation
from paceline.features.sizes.policy.plan import Hold, ResourcePlan
from paceline.features.sizes.policy.planner import ResourcePolicy


class KeepSize(ResourcePolicy, frozen=True):
    """No change, whatever is seen."""

    def decide(self, seen: ResourceObservation, history: SizingHistory) -> ResourcePlan | Hold:
        del seen, history
        return Hold(cause="not_asked")
