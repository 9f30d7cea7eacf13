"""Why a job waits in the queue: its place, the reason of the policy, and how long it will be."""

from pathlib import Path

import pytest

from paceline.features.cluster import reasons as telling
from paceline.features.cluster.folder import ClusterDir
from paceline.features.cluster.wire import QueueRow, QueueRows
from paceline.jobs.why import AskedWhy, Reason, WhyQuestion


def row(job_id: str, state: str, **fields: object) -> QueueRow:
    values = {
        "job_id": job_id,
        "tenant": "vision",
        "state": state,
        "asked": "guaranteed",
        "kind": "",
        "size": 1,
        "devices": (),
        "since_s": 0.0,
        "wait_s": None,
        "why": "",
    }
    return QueueRow(**(values | fields))  # type: ignore[arg-type]


ROWS = (
    row("a-1", "running", kind="opportunistic", devices=("cpu:0",), why="quota is used up"),
    row("b-1", "waiting", why="waits behind c-1 of vision", wait_s=200.0),
    row("c-1", "waiting", why="needs 1 of the quota of vision, which uses 1 of 1"),
)


def answer(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Reason]:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    folder = ClusterDir()
    folder.path.mkdir(exist_ok=True)
    folder.lock.touch()
    monkeypatch.setattr(telling, "is_locked", lambda _: True)
    monkeypatch.setattr(telling, "expect", lambda *_: QueueRows(rows=ROWS))
    found: list[Reason] = []
    telling.reasons(AskedWhy(job, None, None), found.append)
    return found


def test_a_job_in_the_queue_says_its_place_and_for_what_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = answer("b-1", tmp_path, monkeypatch)
    assert first.question is WhyQuestion.WAITS
    assert first.sentence == (
        "It waits in the cluster's queue, as number 1 of 2: it waits behind c-1 of vision; "
        "expected to wait 3 min 20 s more for quota."
    )
    (second,) = answer("c", tmp_path, monkeypatch)
    assert second.sentence == (
        "It waits in the cluster's queue, as number 2 of 2: it needs 1 of the quota of vision, "
        "which uses 1 of 1."
    )
    assert second.more == "paceline cluster explain c-1"


def test_a_job_on_what_others_leave_says_why_it_may_be_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (reason,) = answer("a-1", tmp_path, monkeypatch)
    assert reason.question is WhyQuestion.SLOW
    assert "on cpu:0, with what guaranteed jobs leave: quota is used up." in reason.sentence


def test_a_job_that_the_queue_does_not_know_gets_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer("x", tmp_path, monkeypatch) == []
    assert answer("", tmp_path, monkeypatch) == [], "several jobs fit"
