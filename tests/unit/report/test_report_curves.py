"""The report's drawings of what a script has logged."""

import math
from pathlib import Path

from msgspec import structs

from paceline.base.jobdir import JobDir
from paceline.features.report.charts import MOST_POINTS, broken, curve_charts, envelope
from paceline.features.report.content import MAX_CURVES
from paceline.features.report.page import render
from paceline.jobs.curves import CurvePoint
from paceline.jobs.facts import work_out
from paceline.jobs.history import MetricsPoint
from paceline.wire.spec import JobSpec


def point(step: int, value: float = 0.5) -> CurvePoint:
    return CurvePoint(step, 8 * step, float(step), value)


FACTS = work_out(
    JobDir(Path("/jobs/x")),
    JobSpec(script="/train.py"),
    None,
    [],
    [MetricsPoint(t=1.0, committed=0, samples_per_s=0.0)],
    launched_s=0.0,
)


def test_a_gap_is_a_gap() -> None:
    drawn = broken([point(step) for step in (1, 2, 3, 30, 31)])
    assert [samples for samples, _ in drawn] == [8, 16, 24, 132, 240, 248]
    assert math.isnan(drawn[3][1])
    assert not any(math.isnan(value) for _, value in broken([point(s) for s in (10, 20, 30)]))
    assert broken([]) == []
    assert broken([point(1)]) == [(8, 0.5)]


def test_a_long_curve_is_drawn_with_bounded_points_and_keeps_its_spikes() -> None:
    points = [point(step, 9.0 if step == 5_003 else 0.5) for step in range(10_000)]
    found = envelope(points, MOST_POINTS)
    assert len(found) <= MOST_POINTS
    assert max(one.value for one in found) == 9.0
    assert [one.samples for one in found] == sorted({one.samples for one in found})
    assert envelope(points[:5], MOST_POINTS) == points[:5]


def test_new_points_leave_the_drawn_ones_as_they_are() -> None:
    points = [point(step, step % 7) for step in range(10_000)]
    sooner, later = envelope(points[:-100], MOST_POINTS), envelope(points, MOST_POINTS)
    assert later[: len(sooner) - 2] == sooner[:-2]


def test_what_is_not_finite_is_a_cross_and_no_value() -> None:
    odd = [float("nan"), float("inf"), -float("inf")]
    for values in (odd, [0.5, *odd, 0.25], [1e300, -1e300, 5e-324, *odd]):
        points = [point(step, value) for step, value in enumerate(values, start=1)]
        (chart,) = curve_charts(structs.replace(FACTS, curves={"loss": points}))
        assert [dots.at for dots in chart.dots] == [
            tuple(one.samples for one in points if not math.isfinite(one.value))
        ]
        assert all(value is None or math.isfinite(value) for value in chart.columns[1])
    many = [point(step, math.nan) for step in range(20 * MOST_POINTS)]
    (chart,) = curve_charts(structs.replace(FACTS, curves={"loss": many}))
    assert len(chart.dots[0].at) <= MOST_POINTS
    assert chart.dots[0].at[-1] > 0.99 * many[-1].samples


def test_what_people_ask_for_first_is_drawn_first() -> None:
    names = ["lr", "val/acc", "acc", "val/loss", "loss", "grad_norm"]
    found = structs.replace(FACTS, curves={name: [point(1)] for name in names})
    drawn = [chart.title for chart in curve_charts(found)]
    assert drawn == ["loss", "val/loss", "acc", "val/acc", "lr", "grad_norm"]


def test_each_name_has_its_drawing_up_to_a_bound() -> None:
    found = {f"m{k}": [point(1), point(2)] for k in range(MAX_CURVES + 3)}
    page = render(structs.replace(FACTS, curves=found))
    for k in range(MAX_CURVES):
        assert page.count(f"<h3>m{k}</h3>") == 1
    assert f"<h3>m{MAX_CURVES}</h3>" not in page
    assert "3 more are in curves.jsonl" in page


def test_a_job_that_logs_nothing_has_no_such_drawing() -> None:
    assert "What the script logged" not in render(FACTS)
    assert "What the script logged" not in render(structs.replace(FACTS, curves={"loss": []}))
