"""What the next master of a job finds on its machine."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.agent import take_over as module
from paceline.agent.take_over import take_over
from paceline.base.jobdir import JobDir
from paceline.jobs.handed_on import TakenOver, read_taken
from paceline.master.journal import Journal
from paceline.protocol.nodes.journal_keeper import JournalKeeper
from paceline.protocol.nodes.resizing import NodesResized, NodesSized, OrderedSize
from paceline.wire.messages.keeping import KeeperGround
from paceline.wire.spec import JobSpec, NodeSpec, load


def sized(cpu: float, memory_bytes: int) -> NodesSized:
    worker = OrderedSize(cpu=(cpu,), memory_bytes=memory_bytes)
    return NodesSized(sizes={"worker": worker, "server": OrderedSize()})


def test_the_next_master_has_the_sizes_that_were_ordered_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node has joined before these orders."""
    started: list[Any] = []
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "start_detached", lambda *args: started.append(args))
    records = [sized(1.0, 1 << 30), NodesResized(), sized(2.0, 2 << 30), NodesResized()]
    before = Journal(tmp_path / "journal")
    before.append(records)
    keeper = SimpleNamespace(records=before.encoded(), seat="seat", term=2)
    before.close()
    ground = KeeperGround(job_id="train-1", launched_s=1.0, identity=b"", authority_key=b"",
                          host="old")  # fmt: skip
    workers = NodeSpec(count=3, cpu=(0.5,), memory_bytes=4 << 30)
    spec = JobSpec(script="train.py", workers=workers, listen="10.0.0.5")
    taken = TakenOver(before="old", lost_s=1.0)
    node = JobDir.create("node")
    job = take_over(node, spec, ground, cast(JournalKeeper, keeper), taken)
    there = load(job.spec)
    assert there.workers == NodeSpec(count=3, cpu=(2.0,), memory_bytes=2 << 30)
    assert (there.servers, there.listen) == (spec.servers, "10.0.0.5")
    assert read_taken(job) == taken and len(started) == 1
    journal = Journal(job.journal)
    assert [*journal.replay()] == records
    journal.close()
    for made in (node, job):
        shutil.rmtree(made.run_dir)
