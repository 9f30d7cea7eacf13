"""Sliding windows end at whichever of iterations and time is reached first."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.policy.stats.windows import Window, WindowMeans


def report(
    t_s: float, iterations: int = 10, bpt_s: float = 1.0, compute_s: float = 1.0
) -> WindowMeans:
    return WindowMeans(t_s=t_s, iterations=iterations, samples=64, compute_s=compute_s, bpt_s=bpt_s)


def test_a_window_of_iterations_keeps_the_fewest_reports_that_reach_it() -> None:
    window = Window(25, None)
    for number in range(1, 6):
        window.add(report(10.0 * number, compute_s=float(number)))
    pace = window.pace(50.0)
    assert pace is not None
    assert (pace.iterations, pace.seconds, pace.samples, pace.compute_s) == (30, 30.0, 64.0, 4.0)


def test_a_window_of_time_keeps_the_fewest_reports_that_span_it() -> None:
    window = Window(None, 25.0)
    for number in range(1, 6):
        window.add(report(10.0 * number))
    pace = window.pace(50.0)
    assert pace is not None
    assert pace.seconds == 30.0


@pytest.mark.parametrize(("bpt_s", "full_after"), [(0.01, 20), (2.0, 10), (60.0, 1)])
def test_a_window_is_full_at_whichever_limit_the_job_reaches(bpt_s: float, full_after: int) -> None:
    window = Window(200, 200.0)
    reports = 0
    while not window.full():
        reports += 1
        window.add(report(10.0 * bpt_s * reports, bpt_s=bpt_s))
    assert reports == full_after


def test_means_are_over_iterations_and_not_over_reports() -> None:
    window = Window(100, None)
    window.add(report(10.0, iterations=10, compute_s=1.0))
    window.add(report(40.0, iterations=30, compute_s=3.0))
    pace = window.pace(40.0)
    assert pace is not None
    assert pace.compute_s == 2.5


def test_speed_is_a_mean_of_ratios_and_smoothed_over_reports() -> None:
    window = Window(20, None, smoothing=0.5)
    for number, compute_s in enumerate((1.0, 2.0, 4.0), start=1):
        window.add(report(10.0 * number, compute_s=compute_s))
    pace = window.pace(30.0)
    assert pace is not None
    assert pace.throughput == (32.0 + 16.0) / 2
    assert pace.smoothed == ((64.0 + 32.0) / 2 + 16.0) / 2


def test_a_cleared_window_knows_nothing() -> None:
    window = Window(10, None)
    window.add(report(10.0))
    window.clear()
    assert not window.full()
    assert window.pace(10.0) is None


def test_what_is_older_than_the_window_is_no_news() -> None:
    window = Window(10, 100.0)
    assert window.pace(0.0) is None
    window.add(report(10.0))
    assert window.pace(110.0) is not None
    assert window.pace(110.1) is None


def test_a_window_counted_in_iterations_only_never_expires() -> None:
    window = Window(10, None)
    window.add(report(10.0))
    assert window.pace(1e9) is not None


@pytest.mark.parametrize("limits", [(None, None), (0, 5.0), (5, -1.0)])
def test_a_window_without_a_positive_limit_is_refused(limits: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match="at least one, above 0"):
        Window(*limits)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(1e-3, 1e6)), min_size=1, max_size=60),
    st.integers(1, 100),
)
def test_running_sums_are_the_sums_of_what_is_in_the_window(
    steps: list[tuple[int, float]], limit: int
) -> None:
    window, kept, t_s = Window(limit, None), [], 0.0
    for iterations, compute_s in steps:
        t_s += iterations
        window.add(report(t_s, iterations, compute_s=compute_s))
        kept.append((iterations, compute_s))
        while sum(count for count, _ in kept[1:]) >= limit:
            kept.pop(0)
    pace = window.pace(t_s)
    assert pace is not None
    count = sum(count for count, _ in kept)
    assert pace.iterations == count
    # Rounding is of the size of the largest value that was in the window lately.
    expected = sum(count * value for count, value in kept) / count
    assert pace.compute_s == pytest.approx(expected, rel=1e-9, abs=1e-8)
