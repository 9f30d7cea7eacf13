"""What a master keeps of the loop that finds the job's size."""

import msgspec

from paceline.policy.resources.steering_state import SteeringState


class SizingKept(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Journal: what the loop remembers, and the change that is under way."""

    state: SteeringState
    at_s: float = 0.0
    """When it was written, by the clock of the times in it, which a reboot sets back."""
    wall_s: float = 0.0
    """The same in Unix time."""
