"""Steps of a script without an optimizer, taken from its calls."""

import threading

from paceline.features.failslow.process.periods import CallPeriods

STEP = [("allreduce_", 0, 4096), ("allreduce_", 0, 64), ("broadcast_", 1, 8)]


def call(periods: CallPeriods, steps: int) -> None:
    for _ in range(steps):
        for one in STEP:
            periods.called(*one)


def test_a_step_is_over_when_its_calls_come_again() -> None:
    took_s: list[float] = []
    call(CallPeriods(took_s.append, after_s=0.0), 25)
    assert 17 <= len(took_s) <= 20
    assert all(one >= 0 for one in took_s)


def test_nothing_is_inferred_before_an_optimizer_had_its_time() -> None:
    took_s: list[float] = []
    call(CallPeriods(took_s.append), 25)
    assert took_s == []


def test_an_optimizer_that_steps_ends_it() -> None:
    took_s: list[float] = []
    periods = CallPeriods(took_s.append, after_s=0.0)
    call(periods, 15)
    before = len(took_s)
    periods.end()
    call(periods, 15)
    assert 0 < before == len(took_s)


def test_calls_may_come_from_any_thread() -> None:
    took_s: list[float] = []
    periods = CallPeriods(took_s.append, after_s=0.0)
    for _ in range(10):  # as a backward pass calls, in a thread of torch's
        thread = threading.Thread(target=call, args=(periods, 2))
        thread.start()
        thread.join()
    assert len(took_s) >= 10
