"""Sharing of devices in a master: what agents tell is kept, told and shown; an upgrade stays."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from paceline.base.jobdir import JobDir
from paceline.features.sharing.log import explain, log_of, read_sharing
from paceline.features.sharing.master import SharingPart
from paceline.features.sharing.wire import (
    GateMode,
    MemoryLimit,
    SharingDecision,
    SharingEvent,
    SharingTold,
    UpgradeNode,
    UpgradeShare,
)
from paceline.wire.codec import encode
from paceline.wire.spec import JobSpec, ShareSpec, load, save

ARRIVAL = SharingDecision(cause="arrival", mode=GateMode.DUTY, duty=0.02, guaranteed="a")
SPEC = JobSpec(script="train.py", share=ShareSpec(device="cpu:0"))


class Here:
    """A master's part of a job with a worker and a server, and what came of it."""

    def __init__(self, path: Path, spec: JobSpec = SPEC) -> None:
        self.told: list[Any] = []
        self.sent: list[tuple[str, Any]] = []
        self.job = JobDir(path)
        nodes = {
            name: SimpleNamespace(name=name, role=name.partition("-")[0])
            for name in ("worker-0", "server-0")
        }
        core: Any = SimpleNamespace(
            job=self.job,
            spec=spec,
            roster=SimpleNamespace(nodes=nodes),
            wall=lambda: 9.0,
            tell=self.told.append,
            send_agent=lambda node, body: self.sent.append((node, body)),
        )
        self.part = SharingPart(core)

    def hear(self, decision: SharingDecision) -> None:
        self.part.heard_agent("worker-0", raw(SharingTold(decision=decision)))


def raw(body: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(body))


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def test_a_decision_is_kept_once_told_and_shown(here: Here) -> None:
    here.hear(ARRIVAL)
    here.hear(ARRIVAL)
    here.hear(msgspec.structs.replace(ARRIVAL, cause="within"))
    assert [line.decision.cause for line in read_sharing(log_of(here.job))] == ["arrival", "within"]
    assert here.told == [SharingEvent(node="worker-0", device="cpu:0", decision=ARRIVAL)]
    shown = here.part.shown()
    ((row,),) = [table.rows for table in shown.tables]
    assert row[:3] == ("worker-0", "cpu:0", "auto, opportunistic now")
    assert shown.nodes["worker-0"]["sharing"]["cause"] == "within"
    assert shown.nodes["worker-0"]["memory"] is None


def test_a_limit_of_another_job_is_no_limit_of_this_one(here: Here) -> None:
    for worker in (f"{here.job.job_id}/worker-0", "other/worker-0"):
        limit = MemoryLimit(worker=worker, limit_bytes=9, cause="unused")
        here.hear(SharingDecision(cause="memory", mode=GateMode.OFF, memory=limit))
    assert here.part.shown().nodes["worker-0"]["memory"]["worker"].startswith(here.job.job_id)
    assert len(read_sharing(log_of(here.job))) == 2


def test_an_upgrade_is_in_the_spec_and_told_to_agents_that_come(here: Here) -> None:
    save(SPEC, here.job.spec)
    here.part.agent_came("worker-0")
    assert not here.sent
    assert here.part.answer(raw(UpgradeShare()))
    assert load(here.job.spec).share.kind == "guaranteed"
    assert here.sent == [("worker-0", UpgradeNode()), ("server-0", UpgradeNode())]
    here.part.agent_came("worker-0")
    assert len(here.sent) == 3
    assert here.part.answer(raw(UpgradeShare())) and len(here.sent) == 3, "again: nothing"


def test_a_job_that_shares_nothing_has_nothing_to_show(tmp_path: Path) -> None:
    alone = Here(tmp_path, JobSpec(script="train.py"))
    alone.hear(ARRIVAL)
    assert not alone.part.answer(raw(UpgradeShare()))
    assert not alone.part.shown().tables and not alone.part.shown().nodes
    told: list[Any] = []
    log_of(alone.job).unlink(missing_ok=True)
    explain(alone.job, told.append)
    assert not told


def test_decisions_are_explained(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobDir, "launched_s", lambda _job: 0.0)
    here.hear(ARRIVAL)
    told: list[Any] = []
    explain(here.job, told.append)
    ((head, line),) = told
    assert head == f"{here.job.job_id}: shares a device, 1 decision"
    assert line.endswith("worker-0  2% of the device: a is there, and does not run steadily yet")
