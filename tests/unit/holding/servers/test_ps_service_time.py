"""A server's own time per request, as its step ledger shows it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.protocol.holding.servers.server import ServerState
from paceline.runtime.server.scripts import Scripts
from paceline.runtime.server.server import ServerProcess, WaitingPull
from paceline.runtime.server.service_time import NOTE_S, ServiceTime
from paceline.wire.messages.data import Pull
from paceline.wire.step_ledger import StepLedgerReader, StepLedgerWriter, StepRecord

PATIENCE_S = 0.05


class Serving:
    """A server whose turns take as long as a test says."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 100.0
        path = folder / "server-0.ledger"
        self.service = ServiceTime(StepLedgerWriter(path, inc=1), PATIENCE_S, lambda: self.now_s)
        self.reader = StepLedgerReader(path)

    def turn(self, wait_s: float, work_s: float, answers: int) -> None:
        self.service.wait()
        self.now_s += wait_s
        self.service.work()
        self.now_s += work_s
        for _ in range(answers):
            self.service.round_done()
        self.service.rest(step=7)

    def records(self) -> tuple[StepRecord, ...]:
        page = self.reader.read()
        assert page is not None
        return page.records


def test_work_is_shared_by_the_requests_that_were_answered(tmp_path: Path) -> None:
    serving = Serving(tmp_path)
    serving.turn(wait_s=0.04, work_s=0.02, answers=1)
    serving.turn(wait_s=0.03, work_s=0.03, answers=0)
    serving.turn(wait_s=0.01, work_s=0.05, answers=4)
    first, second = serving.records()
    assert (first.step, first.samples) == (7, 1)
    assert first.server_s == pytest.approx(0.02)
    assert first.wait_s == pytest.approx(0.04)
    assert second.samples == 4
    assert second.server_s == pytest.approx((0.03 + 0.05) / 4)
    assert second.bpt_s == pytest.approx(0.12)


def test_requests_in_quick_succession_make_one_record(tmp_path: Path) -> None:
    serving = Serving(tmp_path)
    for _ in range(10):
        serving.turn(wait_s=0.004, work_s=0.004, answers=1)
    (record,) = serving.records()
    assert record.samples == pytest.approx(NOTE_S / 0.008, abs=1)
    assert record.server_s == pytest.approx(0.004)


def test_a_wait_longer_than_it_can_be_is_work_that_the_machine_held_up(tmp_path: Path) -> None:
    serving = Serving(tmp_path)
    serving.turn(wait_s=2.05, work_s=0.0, answers=1)
    (record,) = serving.records()
    assert record.server_s == pytest.approx(2.0)


def test_a_pull_that_only_asks_how_far_the_job_is_is_no_request() -> None:
    answered: list[int] = []
    edge: Any = object.__new__(ServerProcess)
    edge.inc, edge.state = 1, ServerState(1)
    edge.route, edge.asked, edge.handler_s = {7: b"worker-7"}, {}, {}
    edge.store = SimpleNamespace(dense=dict, scripts=Scripts())
    edge.data = SimpleNamespace(send=lambda *_: None)
    edge.service = SimpleNamespace(round_done=lambda: answered.append(1))

    for dense in (False, True):
        edge.asked[7] = WaitingPull(1, (), 0.0)
        edge._answer(Pull(epoch_no=1, inc=7, ticket=1, dense=dense))

    assert len(answered) == 1
