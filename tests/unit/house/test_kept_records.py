"""A journal with records of a feature is read without it, kept, and read again with it."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.base import features
from paceline.base.jobdir import JobDir
from paceline.features.failslow.wire import NodeChecked, NodeSpeed
from paceline.features.history.master import SizeAtStart
from paceline.features.sizes.loop import SizingKept
from paceline.features.sizes.policy.history import SizingHistory
from paceline.features.sizes.policy.steering_state import SteeringState
from paceline.master.feature_port import MasterPart
from paceline.master.feature_record import FeatureKept
from paceline.master.journal import Journal
from paceline.master.parts import MasterParts, Times, make_parts
from paceline.master.rooms import Rooms, build
from paceline.wire import spec as specs
from paceline.wire.spec import JobSpec, NodeSpec
from tests.unit.master.test_training import NoBackend

SPEC = JobSpec(script="train.py")
SPEED = NodeSpeed(threads=2, matmul_flops=5e10, copy_bytes_per_s=1e10)
STATE = SteeringState(history=SizingHistory(changes=3, probes=1), failures=2)
RECORDS: dict[str, Any] = {
    "failslow": NodeChecked(node="worker-0", speed=SPEED),
    "history": SizeAtStart(workers=NodeSpec(count=3), servers=NodeSpec(count=2)),
    "sizes": SizingKept(state=STATE, at_s=100.0, wall_s=5000.0),
}
"""A record of each feature that keeps some."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    job = JobDir.create("kept")
    job.run_dir.rmdir()
    specs.save(SPEC, job.spec)
    return job


async def built(parts: MasterParts, times: Times) -> Rooms:
    return build(parts, times)


class NextMaster:
    """The next master of a job, which has read the journal.

    Args:
        job: its directory.
        names: of the features that are installed.
    """

    def __init__(self, job: JobDir, names: set[str]) -> None:
        found = tuple(one for one in features.installed() if one.name in names)
        backend: Any = NoBackend()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(features, "installed", lambda: found)
            parts, times = make_parts(job, SPEC, backend, lambda: 0.0, None)
            self.rooms = asyncio.run(built(parts, times))
        self.outbox = parts.outbox
        self.rooms.recovery.replay()
        self.outbox.flush()

    def begin_again(self) -> None:
        """Begin the journal again, as a long one."""
        self.outbox.journal.compact(self.rooms.recovery._snapshot())
        self.outbox.journal.close()


def kept_in(job: JobDir) -> list[FeatureKept]:
    journal = Journal(job.journal)
    found = [one for one in journal.replay() if isinstance(one, FeatureKept)]
    journal.close()
    return found


def test_each_feature_that_keeps_records_is_tried(job: JobDir) -> None:
    names = {one.name for one in features.installed()}
    parts = NextMaster(job, names).rooms.features._parts
    assert {"curves", "failslow", "sharing", "sizes", "stragglers"} <= set(parts)
    keeping = {name for name, part in parts.items() if type(part).kept is not MasterPart.kept}
    assert keeping == set(RECORDS)


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_a_feature_outlive_masters_without_it(name: str, job: JobDir) -> None:
    record = RECORDS[name]
    first = NextMaster(job, {name})
    first.rooms.features._keep(name, record)
    first.outbox.flush()
    first.outbox.journal.close()
    (kept,) = kept_in(job)

    for _ in range(2):
        without = NextMaster(job, set())
        assert not without.rooms.features._parts
        without.begin_again()
        assert kept_in(job) == [kept]

    NextMaster(job, {name}).begin_again()
    (again,) = kept_in(job)
    assert again.feature == name
    read = msgspec.msgpack.decode(again.body, type=type(record))
    if isinstance(read, SizingKept):  # written anew, by the clock of that master
        read = msgspec.structs.replace(read, at_s=100.0, wall_s=5000.0)
    assert read == record
