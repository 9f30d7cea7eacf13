"""The page of a worker that shares a device, and the gate at which its process waits."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.base.errors import ConfigError
from paceline.features.sharing.gate_page import (
    BEAT,
    FREE,
    HELD,
    HELD_AT,
    STALE_S,
    GateOrder,
    GatePage,
)
from paceline.features.sharing.policy.duty import LEAST_DUTY, idle_s
from paceline.features.sharing.process import gate as gates
from paceline.features.sharing.process.gaps import NUM_WAITS, InputGaps
from paceline.features.sharing.process.gate import MOST_CREDIT_S, Gate
from paceline.features.sharing.wire import GateMode, SharingDecision


class UsedDevice:
    """A device, used by as much as a test says."""

    used_s = 0.0
    rest_s = 1e-3

    def __init__(self) -> None:
        self.told = list[str]()
        """When the job left it, and came back."""
        self.queue: Callable[[], bool] | None = None

    def busy_s(self) -> float:
        return self.used_s

    def leave(self) -> None:
        self.told.append("leave")

    def enter(self) -> None:
        self.told.append("enter")

    def work(self) -> Callable[[], bool] | None:
        return self.queue


class Gated:
    """A gate whose job uses the device for a while, then comes to it."""

    def __init__(self, folder: Path) -> None:
        self.page = GatePage.create(folder / "worker-0.share", "cpu:0", "opportunistic")
        self.device, self.waits_s = UsedDevice(), list[float]()
        self.gate = Gate(self.page, self.device, self.waits_s.append)

    def come(self, used_s: float) -> float:
        """Come to the gate, long after the last time; how long it held the job."""
        self.device.used_s += used_s
        self.gate._due_s = 0.0
        start_s = time.monotonic()
        self.gate.tick()
        return time.monotonic() - start_s


@pytest.fixture
def gated(tmp_path: Path) -> Gated:
    return Gated(tmp_path)


def later(after_s: float, act: object, *args: object) -> threading.Timer:
    timer = threading.Timer(after_s, act, args)  # type: ignore[arg-type]
    timer.start()
    return timer


def test_without_an_order_nobody_waits(gated: Gated) -> None:
    assert gated.come(1.0) < 0.1
    assert gated.page.words[HELD] == 0.0


def test_a_job_idles_for_what_it_has_used(gated: Gated) -> None:
    gated.page.order(GateMode.DUTY, 0.25, "")
    assert 0.029 <= gated.come(0.01) < 0.2
    assert gated.page.words[HELD] == pytest.approx(sum(gated.waits_s))
    assert time.monotonic() - gated.page.words[HELD_AT] < 1.0
    gated.page.order(GateMode.DUTY, 1.0, "")
    assert gated.come(0.5) < 0.1


def test_what_a_job_used_while_it_was_free_is_not_owed(gated: Gated) -> None:
    gated.page.order(GateMode.DUTY, 0.5, "")
    gated.come(0.01)
    gated.page.order(GateMode.OFF, 1.0, "")
    assert gated.come(60.0) < 0.1
    gated.page.order(GateMode.DUTY, 0.5, "")
    assert gated.come(60.0) < 0.3, "119 s would be owed"
    assert gated.come(0.2) >= 0.15


def test_short_waits_are_put_together(gated: Gated) -> None:
    gated.page.order(GateMode.DUTY, 0.5, "")
    for _ in range(30):
        gated.come(0.0004)
    assert 0 < len(gated.waits_s) <= 12
    assert sum(gated.waits_s) >= 0.011


def test_a_wait_that_ends_late_counts_for_what_comes(gated: Gated) -> None:
    gated.page.order(GateMode.PAUSE, 0.5, "")
    timer = later(0.1, gated.page.order, GateMode.DUTY, 0.5, "")
    gated.come(0.0)
    timer.join()
    waits = len(gated.waits_s)
    gated.come(0.9 * MOST_CREDIT_S)
    assert len(gated.waits_s) == waits
    assert gated.come(0.02) >= 0.019, "but for no more than that"


def test_a_pause_lasts_until_another_order(gated: Gated) -> None:
    gated.page.order(GateMode.PAUSE, 1.0, "")
    timer = later(0.2, gated.page.order, GateMode.DUTY, 1.0, "")
    assert 0.15 <= gated.come(0.01) < 0.45, "it is woken, and does not look around"
    timer.join()


def test_a_raised_duty_ends_a_wait(gated: Gated) -> None:
    gated.page.order(GateMode.DUTY, LEAST_DUTY, "")
    timer = later(0.1, gated.page.order, GateMode.DUTY, 0.9, "")
    assert 0.05 <= gated.come(0.05) < 0.4, "2.45 s at the duty before"
    timer.join()


def test_in_gap_mode_a_job_waits_while_the_guaranteed_one_is_busy(
    gated: Gated, tmp_path: Path
) -> None:
    other = GatePage.create(tmp_path / "worker-1.share", "cpu:0", "guaranteed")
    gated.page.order(GateMode.GAP, 1.0, str(other.path))
    assert gated.come(0.01) < 0.1, "it says nothing"
    other.say_busy()
    timer = later(0.1, other.say_idle)
    assert 0.05 <= gated.come(0.01) < 0.4
    timer.join()
    assert gated.come(0.01) < 0.1


def test_a_gap_is_waited_for_no_longer_than_at_the_least_duty(gated: Gated, tmp_path: Path) -> None:
    other = GatePage.create(tmp_path / "worker-1.share", "cpu:0", "guaranteed")
    other.say_busy()
    gated.page.order(GateMode.GAP, 1.0, str(other.path))
    assert 0.24 <= gated.come(0.005) < 0.6
    gated.page.order(GateMode.GAP, 1.0, str(tmp_path / "gone.share"))
    assert gated.come(0.005) < 0.1


def test_the_device_is_told_that_the_job_leaves_it_while_it_waits(gated: Gated) -> None:
    gated.page.order(GateMode.DUTY, 0.25, "")
    gated.come(0.01)
    assert gated.device.told == ["leave", "enter"]
    gated.come(0.0)
    assert gated.device.told == ["leave", "enter"], "it did not wait"


def test_a_gap_is_waited_for_after_the_time_that_is_owed(gated: Gated, tmp_path: Path) -> None:
    other = GatePage.create(tmp_path / "worker-1.share", "cpu:0", "guaranteed")
    other.say_busy()
    gated.page.order(GateMode.GAP, LEAST_DUTY, str(other.path))
    timer = later(0.2, other.say_idle)
    assert 0.19 <= gated.come(0.003) < 0.6, "0.15 s are owed, then it waits for the gap"
    timer.join()


def test_without_a_device_coordinator_the_least_duty_holds(gated: Gated) -> None:
    gated.page.order(GateMode.PAUSE, 1.0, "")
    gated.page.words[BEAT] -= STALE_S
    assert 0.24 <= gated.come(0.005) < 0.6


class Steady:
    """A job that uses the device all the time, but for waits; its clock is a test's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.passages = time.monotonic(), 0
        self.gated = Gated(folder)
        monkeypatch.setattr(gates, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(self.gated.page, "await_order", self._wait)
        monkeypatch.setattr(self.gated.device, "busy_s", self._busy_s)
        self.held_s = self.used_s = 0.0

    def _wait(self, _number: int, timeout_s: float) -> None:
        self.now_s += timeout_s
        self.held_s += timeout_s

    def _busy_s(self) -> float:
        self.passages += 1
        return self.used_s

    def compute(self, seconds: float, every_s: float = 2e-5) -> None:
        """Compute for so long, and come to the gate again and again."""
        for _ in range(round(seconds / every_s)):
            self.now_s += every_s
            self.used_s += every_s
            self.gated.page.words[BEAT] = self.now_s
            self.gated.gate.tick()


@pytest.mark.parametrize("duty", [0.02, 0.3, 0.6, 0.95])
def test_what_is_not_looked_at_is_owed_all_the_same(
    duty: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Steady(tmp_path, monkeypatch)
    job.gated.page.order(GateMode.DUTY, duty, "")
    job.compute(0.4)
    wanted_s = idle_s(0.4, duty)
    assert job.held_s == pytest.approx(wanted_s, abs=2 * gates.LEAST_IDLE_S + 0.01 * wanted_s)
    assert max(job.gated.waits_s) <= gates.LEAST_IDLE_S + idle_s(2 * 2e-5, duty)


def test_soon_after_a_passage_only_another_order_or_a_busy_job_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, other = Steady(tmp_path, monkeypatch), GatePage.create(tmp_path / "other", "cpu:0", "auto")
    page = job.gated.page
    page.order(GateMode.GAP, 1.0, str(other.path))
    job.passages = 0
    job.compute(0.1)
    assert 90 <= job.passages <= 110, "of 5000"
    other.say_busy()
    monkeypatch.setattr(other.__class__, "await_idle", lambda _page, _number, _s: other.say_idle())
    before = job.passages
    job.compute(2e-5)
    assert job.passages == before + 1
    page.order(GateMode.DUTY, 0.5, "")
    job.compute(2e-5)
    assert job.passages == before + 2


def test_a_job_that_ends_is_let_go(gated: Gated) -> None:
    gated.page.order(GateMode.PAUSE, 1.0, "")
    gated.page.words[FREE] = 1.0
    assert gated.come(1.0) < 0.1


def test_a_process_that_the_script_forks_is_not_held(gated: Gated) -> None:
    gated.page.order(GateMode.PAUSE, 1.0, "")
    gated.gate.free()
    assert gated.come(1.0) < 0.1


def test_a_signal_ends_a_wait_if_its_handler_frees_the_gate(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: gated.gate.free())
    monkeypatch.setattr(gates, "LOOK_S", 30.0)  # it is not found by a look
    gated.page.order(GateMode.PAUSE, 1.0, "")
    timer = later(0.1, os.kill, os.getpid(), signal.SIGUSR1)
    try:
        assert 0.05 <= gated.come(1.0) < 5.0
    finally:
        signal.signal(signal.SIGUSR1, before)
    timer.join()


# ---------------------------------------------------------------------- the page


def test_an_order_is_given_once(gated: Gated) -> None:
    page = gated.page
    page.order(GateMode.DUTY, 0.5, "x")
    assert page.newest == GateOrder(1, GateMode.DUTY, 0.5, "x")
    page.words[BEAT] = 0.0
    page.order(GateMode.DUTY, 0.5, "x")
    assert page.newest.number == 1
    assert page.words[BEAT] > 0
    page.order(GateMode.OFF, 1.0, "")
    assert page.newest == GateOrder(2, GateMode.OFF, 1.0, "")


def test_a_successor_of_the_agent_goes_on_with_its_page(gated: Gated) -> None:
    gated.page.order(GateMode.DUTY, 0.5, "")
    again = GatePage.create(gated.page.path, "cpu:0", "opportunistic")
    assert again.newest == gated.page.newest
    assert (again.device, again.share, again.node) == ("cpu:0", "opportunistic", "worker-0")


def test_a_page_is_of_the_living_while_they_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.share"
    page = GatePage.create(path, "cpu:0", "auto")
    seen = GatePage.open(path)
    assert seen.is_held
    page.close()
    del page
    assert not seen.is_held


def test_a_file_of_another_version_is_no_page(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.share"
    path.write_bytes(b"x" * 10_000)
    with pytest.raises(ConfigError, match="no page of this version"):
        GatePage.open(path)
    assert GatePage.create(path, "cpu:0", "auto").share == "auto"


def test_decisions_are_read_once_and_the_oldest_are_lost(gated: Gated) -> None:
    page = gated.page
    for number in range(20):
        page.tell(SharingDecision(cause="within", mode=GateMode.DUTY, num_others=number))
    read = list(page.decisions(0))
    assert [decision.num_others for _, decision in read] == list(range(5, 20))
    assert read[-1][0] == 20
    assert not list(page.decisions(20))


# ---------------------------------------------------------------------- gaps


def test_a_job_tells_of_its_gaps_if_they_are_long(tmp_path: Path) -> None:
    page = GatePage.create(tmp_path / "worker-0.share", "cpu:0", "guaranteed")
    gaps = InputGaps(page, UsedDevice())
    with gaps:
        pass
    assert not page.tells_gaps
    for _ in range(NUM_WAITS):
        with gaps:
            time.sleep(0.002)
    assert page.tells_gaps
    assert page.busy_number % 2
    with gaps:
        assert not page.busy_number % 2
    for _ in range(NUM_WAITS):
        with gaps:
            pass
    assert not page.tells_gaps


def test_a_job_is_idle_when_the_device_has_done_its_work(tmp_path: Path) -> None:
    page = GatePage.create(tmp_path / "worker-0.share", "cuda:0", "guaranteed")
    device = UsedDevice()
    gaps, done = InputGaps(page, device), threading.Event()
    device.queue = done.is_set
    for _ in range(NUM_WAITS):
        done.clear()
        with gaps:
            done.set()
            time.sleep(0.01)
    assert page.tells_gaps
    done.clear()
    with gaps:
        time.sleep(0.02)
        assert page.busy_number % 2, "its work is not done"
        done.set()
        time.sleep(0.02)
        assert not page.busy_number % 2
    assert page.busy_number % 2
    done.clear()
    for _ in range(NUM_WAITS):
        with gaps:
            time.sleep(0.002)
    assert not page.tells_gaps, "it waits for its input while the device computes"
    assert device.told == ["leave", "enter"] * (2 * NUM_WAITS + 1)
