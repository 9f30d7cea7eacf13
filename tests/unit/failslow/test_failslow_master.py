"""Fail-slow in a master: which nodes are checked, what is kept, told and shown."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from paceline.base.jobdir import JobDir
from paceline.base.numbering import Inc
from paceline.features.failslow.events import (
    CheckedEvent,
    DiagnosedEvent,
    RelievedEvent,
    SlowedEvent,
    SlowNodeEvent,
)
from paceline.features.failslow.master import FailSlowPart
from paceline.features.failslow.wire import (
    AtMeeting,
    CallsTold,
    Checked,
    CheckKept,
    CheckNode,
    GoOn,
    NodeChecked,
    NodeSpeed,
)
from paceline.master.feature_record import FeatureKept
from paceline.master.journal import decode
from paceline.wire.client import Shown
from paceline.wire.codec import encode
from paceline.wire.spec import JobSpec

FINE = NodeSpeed(threads=1, matmul_flops=50e9, copy_bytes_per_s=10e9)
SLOW = msgspec.structs.replace(FINE, matmul_flops=1e9)


class Here:
    """A master's part of a job with two workers, and what came of it."""

    def __init__(self, path: Path, **spec: Any) -> None:
        self.told: list[Any] = []
        self.kept: list[Any] = []
        self.sent: list[tuple[int, Any]] = []
        nodes = {
            f"worker-{rank}": SimpleNamespace(
                name=f"worker-{rank}", life=SimpleNamespace(inc=Inc(rank + 1), is_alive=True)
            )
            for rank in range(2)
        }
        by_inc = {one.life.inc: one for one in nodes.values()}
        self.monitor = SimpleNamespace(nodes={})
        core: Any = SimpleNamespace(
            job=JobDir(path),
            spec=JobSpec(script="train.py", **spec),
            roster=SimpleNamespace(
                nodes=nodes, wanted_workers=lambda: [*nodes.values()], node_of=by_inc.get
            ),
            monitor=self.monitor,
            wall=lambda: 9.0,
            steady=lambda: 9.0,
            tell=self.told.append,
            keep=self.kept.append,
            send=lambda inc, body: self.sent.append((inc, body)),
        )
        self.part = FailSlowPart(core)
        self.part.begin()

    def hear(self, rank: int, body: Any) -> None:
        self.part.heard(f"worker-{rank}", Inc(rank + 1), raw(body))


def raw(body: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(body))


def test_a_check_is_ordered_kept_told_and_shown(tmp_path: Path) -> None:
    here = Here(tmp_path, strategy="allreduce")
    assert here.part.wants_links
    assert here.part.starts("worker-0") == CheckNode() and here.part.starts("server-0") is None
    here.hear(0, Checked(inc=Inc(1), speed=FINE))
    here.hear(1, Checked(inc=Inc(2), speed=SLOW))
    assert here.kept == here.part.kept()
    assert here.kept == [
        NodeChecked(node="worker-0", speed=FINE),
        NodeChecked(node="worker-1", speed=SLOW),
    ]
    assert here.sent == [(1, CheckKept()), (2, CheckKept())]
    assert [type(one) for one in here.told] == [CheckedEvent, CheckedEvent, SlowNodeEvent]
    (table,) = here.part.shown().tables
    assert [row[0] for row in table.rows] == ["worker-0", "worker-1"]
    assert here.part.starts("worker-0") is None


def test_a_job_without_preflight_checks_no_node(tmp_path: Path) -> None:
    here = Here(tmp_path, strategy="allreduce", preflight=False)
    assert not here.part.wants_links and here.part.starts("worker-0") is None
    assert here.part.shown() == Shown()


def test_what_a_master_before_has_kept_is_known_and_told_no_more(tmp_path: Path) -> None:
    here = Here(tmp_path)
    for record in (
        NodeChecked(node="worker-0", speed=FINE),
        NodeChecked(node="worker-1", speed=SLOW),
    ):
        here.part.apply(raw(record))
    here.part.begin()
    assert here.part.starts("worker-1") is None
    here.hear(1, Checked(inc=Inc(2), speed=SLOW))
    assert not here.told and not here.kept


def test_a_record_of_an_earlier_release_is_the_feature_s() -> None:
    """The journal had it as a record of the core."""
    written = encode(NodeChecked(node="worker-0", speed=FINE))
    record = decode(written)
    assert record == FeatureKept(feature="failslow", body=msgspec.Raw(written))
    with pytest.raises(msgspec.ValidationError):
        decode(encode({"type": "NeverHeardOf"}))


def test_what_is_slow_in_a_script_is_shown_with_its_figures(tmp_path: Path) -> None:
    here = Here(tmp_path, strategy="script")
    assert not here.part.wants_links and here.part.starts("worker-0") is None
    here.monitor.nodes["worker-0"] = SimpleNamespace(facts=SimpleNamespace(bpt_s=0.5))

    def figures() -> dict[tuple[str, ...], float]:
        shown = here.part.shown().figures
        return {(one.name, *one.labels.values()): one.value for one in shown}

    assert figures()["job_slow",] == 0
    assert (figures()["job_step_seconds",], figures()["job_step_ratio",]) == (0.5, 1.0)
    here.part.happened(SlowedEvent(t=9.0, step=40, before_s=0.25, after_s=0.5))
    found = DiagnosedEvent(
        t=11.0, culprit="computation", nodes=("worker-1",), ratio=2.5, took_s=2.0
    )
    here.part.happened(found)
    assert (figures()["job_slow",], figures()["job_step_ratio",]) == (1, 2.0)
    assert figures()["job_onsets",] == figures()["job_diagnoses", "computation"] == 1
    (part,) = here.part.shown().slow
    assert (part.culprit, part.nodes, part.ratio) == ("computation", ("worker-1",), 2.5)
    here.part.happened(RelievedEvent(t=20.0, step=90, before_s=0.5, after_s=0.25))
    assert not here.part.shown().slow


def test_a_rank_that_comes_to_a_meeting_which_nobody_called_goes_on(tmp_path: Path) -> None:
    here = Here(tmp_path, strategy="script")
    here.hear(0, AtMeeting(Inc(1), 7, 30))
    assert here.sent == [(1, GoOn(Inc(1), 7))]


def test_an_agent_s_word_on_another_life_is_dropped(tmp_path: Path) -> None:
    here = Here(tmp_path, strategy="script")
    told = {"asked": 1, "noted": {}}
    for node, inc in (("worker-0", 1), ("worker-0", 2), ("worker-0", 99)):
        body = msgspec.convert({"type": "CallsTold", "node": node, "inc": inc, **told}, CallsTold)
        here.part.heard_agent(node, raw(body))
    assert not here.told and not here.sent
