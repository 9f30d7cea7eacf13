"""What the loop remembers, when another master goes on with it."""

import pytest

from paceline.features.sizes.loop import SizingKept, by_another_clock
from paceline.features.sizes.policy.history import AvoidedSize, SizingHistory
from paceline.features.sizes.policy.steering_state import SteeringState
from paceline.policy.job_size import JobSize


@pytest.mark.parametrize("now_s", [130.0, 5.0], ids=["the same clock", "after a reboot"])
def test_a_size_is_avoided_for_as_long_as_was_left(now_s: float) -> None:
    size = JobSize(workers=1)
    avoided = AvoidedSize(origin=size, target=JobSize(workers=2), until_s=160.0, why="worse")
    kept = SizingKept(
        state=SteeringState(history=SizingHistory(avoided=(avoided,))), at_s=100.0, wall_s=5000.0
    )
    state = by_another_clock(kept, now_s, 5030.0)
    assert state.history.avoided[0].until_s - now_s == 30.0
