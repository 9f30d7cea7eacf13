"""The report's drawings of what a script has logged."""

import math
import re
from collections import Counter
from pathlib import Path

from msgspec import structs

from paceline.base.jobdir import JobDir
from paceline.features.report.figures import MAX_CURVES, MAX_DRAWN, broken, curves, thinned
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


def test_a_long_curve_is_drawn_with_bounded_points() -> None:
    points = [point(step) for step in range(10_000)]
    found = thinned(points, MAX_DRAWN)
    assert len(found) == MAX_DRAWN
    assert (found[0], found[-1]) == (points[0], points[-1])
    assert thinned(points[:5], MAX_DRAWN) == points[:5]


def test_what_is_not_finite_can_be_drawn() -> None:
    odd = [float("nan"), float("inf"), -float("inf")]
    for values in (odd, [0.5, *odd, 0.25], [1e300, -1e300, 5e-324]):
        points = [point(step, value) for step, value in enumerate(values, start=1)]
        svg = curves(structs.replace(FACTS, curves={"loss": points}))
        assert svg.startswith("<svg")
        assert "nan" not in svg.lower()


def test_crosses_reach_as_far_as_the_curve() -> None:
    points = [point(step, math.nan) for step in range(10 * MAX_DRAWN)]
    svg = curves(structs.replace(FACTS, curves={"loss": points}))
    marks = re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', svg)
    ((height, number),) = Counter(y for _, y in marks).most_common(1)
    assert number == MAX_DRAWN
    crosses = [float(x) for x, y in marks if y == height]
    assert max(crosses) - min(crosses) > 200, "the left half of the figure is 324 wide"


def test_numbers_on_an_axis_are_those_that_were_logged() -> None:
    points = [point(step, 12_345_678.0 + step) for step in range(10)]
    svg = curves(structs.replace(FACTS, curves={"tokens": points}))
    labels = re.findall(r"<text[^>]*>(.*?)</text>", svg)
    assert "1.2345680" in labels, "with 1e7 above the axis"
    assert not any(label.startswith("+") for label in labels)


def test_each_name_has_its_drawing_up_to_a_bound() -> None:
    found = {f"m{k}": [point(1), point(2)] for k in range(MAX_CURVES + 3)}
    page = render(structs.replace(FACTS, curves=found))
    for k in range(MAX_CURVES):
        assert page.count(f">m{k}<") == 1
    assert f">m{MAX_CURVES}<" not in page
    assert "3 more are in curves.jsonl" in page


def test_a_job_that_logs_nothing_has_no_such_drawing() -> None:
    assert "What the script logged" not in render(FACTS)
    assert "What the script logged" not in render(structs.replace(FACTS, curves={"loss": []}))
