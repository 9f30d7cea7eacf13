"""Port of resource policies: an observation and the job's history in, a plan out.

A policy of a user derives from `ResourcePolicy`, and is found by an entry point of the group
``paceline.resources`` (see `paceline.features.sizes.policy.registry`).
"""

import msgspec

from paceline.features.sizes.policy.history import SizingHistory
from paceline.features.sizes.policy.memory_forecast import memory_plan
from paceline.features.sizes.policy.observation import ResourceObservation
from paceline.features.sizes.policy.plan import Hold, ResourcePlan


class ResourcePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all resource policies; the fields are the parameters that a user may set.

    It remembers nothing between two questions, reads no clock and draws no numbers but from a seed
    that is a parameter, so that a log of observations can be replayed with any policy. It is asked
    only when the job has settled (`paceline.features.sizes.policy.steering`).
    """

    def decide(self, seen: ResourceObservation, history: SizingHistory) -> ResourcePlan | Hold:
        """The size that the job should have, or why it stays as it is."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it decides")

    def urgent(self, seen: ResourceObservation, history: SizingHistory) -> ResourcePlan | None:
        """A change that does not wait until the job has settled, as memory that runs out; or None.

        Unlike `decide` it is asked at each observation while no change is under way.
        """
        return memory_plan(seen, history)
