"""A part of a feature that waits is named, one that takes most of the time must go."""

import queue
import threading
from pathlib import Path

import pytest

from paceline.master import feature_time
from paceline.master.feature_time import ENDED, FeatureTime


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(feature_time.time, "perf_counter", lambda: now[0])
    return now


def test_the_third_long_call_is_told_and_no_later_one(tmp_path: Path, clock: list[float]) -> None:
    times = FeatureTime(tmp_path / "out")

    def waits(seconds: float) -> str:
        clock[0] += seconds
        return "found"

    told = [times.timed("slow", lambda: waits(0.7)) for _ in range(5)]
    assert told == [("found", pytest.approx(0.7) if at == 2 else None) for at in range(5)]
    assert [times.timed("quick", lambda: waits(0.4))[1] for _ in range(5)] == [None] * 5
    times.close()


def test_a_part_that_takes_most_of_a_window_must_go_and_others_stay(
    tmp_path: Path, clock: list[float]
) -> None:
    times = FeatureTime(tmp_path / "out")

    def waits(seconds: float) -> None:
        clock[0] += seconds

    for _ in range(4):
        times.timed("greedy", lambda: waits(3.0))
        times.timed("modest", lambda: waits(1.9))
        assert not times.took_most()
    clock[0] += 0.5
    assert times.took_most() == {
        "greedy": "it took 12 s of 20 s of the master's time, and must not wait"
    }
    clock[0] += 100.0  # the machine stood still, and nobody of ours did
    assert not times.took_most()
    times.close()


def test_a_master_whose_part_never_returns_ends_and_the_next_one_leaves_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_time, "LOOK_S", 0.01)
    monkeypatch.setattr(feature_time, "NEVER_S", 0.05)
    codes, over = queue.SimpleQueue[int](), threading.Event()

    def end(code: int) -> None:
        codes.put(code)
        over.set()

    times = FeatureTime(tmp_path / "out", end)
    assert not times.take_left_out()
    times.timed("hangs", lambda: over.wait(10.0))
    assert codes.get(timeout=10.0) == ENDED
    assert FeatureTime(tmp_path / "out").take_left_out() == {"hangs"}
    assert not FeatureTime(tmp_path / "out").take_left_out(), "a later master tries it again"
