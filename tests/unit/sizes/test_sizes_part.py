"""The feature's part in a master: what it keeps, when it acts, and a policy that is not there."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from paceline.base.jobdir import JobDir
from paceline.features.sizes.loop import SizingKept
from paceline.features.sizes.master import SizesPart
from paceline.features.sizes.policy.history import AvoidedSize, SizingHistory
from paceline.features.sizes.policy.steering_state import SteeringState
from paceline.master.feature_port import Core
from paceline.master.monitor import Monitor
from paceline.policy.job_size import JobSize
from paceline.wire.spec import JobSpec, ResourcesSpec

AVOIDED = AvoidedSize(
    origin=JobSize(workers=1), target=JobSize(workers=2), until_s=160.0, why="worse"
)
STATE = SteeringState(history=SizingHistory(avoided=(AVOIDED,)))


class Master:
    """As much of a master as the part sees."""

    def __init__(self, folder: Path, policy: str) -> None:
        self.failed: list[str] = []
        self.is_ending = False
        self.looks = 0
        scene = SimpleNamespace(is_ending=lambda: self.is_ending, state=SimpleNamespace())
        core = SimpleNamespace(
            job=JobDir(folder),
            spec=JobSpec(script="t.py", resources=ResourcesSpec(policy=policy)),
            roster=SimpleNamespace(of_role=self.look),
            monitor=Monitor(),
            wall=lambda: 5030.0,
            steady=lambda: 130.0,
            scene=scene,
            nodes=None,
            tell=None,
            fail=self.failed.append,
        )
        self.part = SizesPart(cast(Core, core))

    def look(self, _role: str) -> list[Any]:
        self.looks += 1
        return [SimpleNamespace(name="server-0")]


@pytest.mark.parametrize("policy", ["none", "rm"])
def test_what_a_former_master_kept_is_gone_on_with_and_kept(tmp_path: Path, policy: str) -> None:
    master = Master(tmp_path, policy)
    assert master.part.kept() == []
    kept = SizingKept(state=STATE, at_s=100.0, wall_s=5000.0)
    master.part.apply(msgspec.Raw(msgspec.msgpack.encode(kept)))
    master.part.begin()
    (again,) = master.part.kept()
    assert again == SizingKept(state=STATE, at_s=130.0, wall_s=5030.0)
    assert master.failed == []


def test_a_policy_that_is_not_there_ends_the_job(tmp_path: Path) -> None:
    master = Master(tmp_path, "nobodys")
    master.part.begin()
    (why,) = master.failed
    assert "no resource policy 'nobodys'" in why


def test_nothing_is_looked_at_once_the_job_is_about_to_end(tmp_path: Path) -> None:
    master = Master(tmp_path, "none")
    master.part.tick(1.0)
    assert master.looks
    master.is_ending, master.looks = True, 0
    master.part.tick(9.0)
    assert not master.looks
