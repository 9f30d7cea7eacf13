"""What takes long is done less often; what is quick keeps its pace."""

import time

import pytest

from paceline.base.pacing import MOST, Pacing


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The processor time of this thread, by hand."""
    spent = [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: spent[0])
    return spent


def test_what_is_quick_keeps_its_pace(cpu: list[float]) -> None:
    pace = Pacing(2.0)
    assert pace.is_due(5.0)
    with pace.doing(5.0):
        cpu[0] += 0.001
    assert not pace.is_due(6.99)
    assert pace.is_due(7.0)


def test_what_takes_long_takes_a_small_part_of_the_time_also_if_it_fails(cpu: list[float]) -> None:
    pace, now_s = Pacing(), 0.0

    def fail() -> None:
        with pace.doing(now_s):
            cpu[0] += 0.1
            raise ValueError("x")

    while now_s < 100.0:
        if pace.is_due(now_s):
            with pytest.raises(ValueError, match="x"):
                fail()
        now_s += 0.2
    assert 0.9 * 100.0 * MOST <= cpu[0] <= 100.0 * MOST + 0.1
