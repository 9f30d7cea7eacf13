"""What the report says of a script's slownesses: picture, table, matrices, one line if all is well."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from paceline.base.jobdir import JobDir
from paceline.features.failslow import sections as slow
from paceline.features.failslow.events import (
    ComparedPart,
    DiagnosedEvent,
    RelievedEvent,
    RestartAdvisedEvent,
    SlowedEvent,
)
from paceline.features.report.charts import Chart
from paceline.features.report.content import page_of
from paceline.features.report.page import render
from paceline.features.report.text import show
from paceline.jobs.facts import Facts, work_out
from paceline.jobs.history import MetricsPoint, NodePoint
from paceline.jobs.in_words import paragraph
from paceline.jobs.outcome import Outcome
from paceline.wire.events.base import Event
from paceline.wire.events.job import MasterStartedEvent
from paceline.wire.spec import JobSpec

PARTS = (
    ComparedPart("computing", ("worker-0",), 0.023, 0.023),
    ComparedPart("computing", ("worker-1",), 0.052, 0.0228),
    ComparedPart("product", ("worker-0",), 0.2, 0.17),
    ComparedPart("product", ("worker-1",), 0.2, None),
    ComparedPart("link", ("worker-0", "worker-1"), 0.4, 0.25),
    ComparedPart("link", ("worker-1", "worker-2"), 0.4, None),
)
SLOWED = SlowedEvent(t=1019.0, step=440, before_s=0.027, after_s=0.054)
FOUND = DiagnosedEvent(
    t=1022.0,
    culprit="computation",
    nodes=("worker-1",),
    ratio=2.28,
    evidence="52 ms a <step>",
    took_s=3.0,
    parts=PARTS,
)
ADVISED = RestartAdvisedEvent(
    t=1030.0, nodes=("worker-1",), lost_s=31.0, start_s=8.0, redo_s=22.0, has_saved=True
)
WELL = RelievedEvent(t=1040.0, step=900, before_s=0.054, after_s=0.028)


def script(*events: Event, end: str = "finished", timed: bool = True) -> Facts:
    """A script of a minute whose first second has the long steps of a start."""
    points = []
    for second in range(1, 61):
        step_s = 5.0 if second == 1 else 0.054 if events and 19 <= second < 40 else 0.027
        node = NodePoint(step=25 * second, bpt_s=step_s) if timed else NodePoint()
        points.append(MetricsPoint(1000.0 + second, 0, 0.0, {"worker-0": node, "worker-1": node}))
    outcome = Outcome(state=end, exit_code=0, jct_s=60.0)  # type: ignore[arg-type]
    spec = JobSpec(script="/train.py", strategy="script")
    return work_out(JobDir(Path("/jobs/x")), spec, outcome, events, points, launched_s=1000.0)


def section(facts: Facts) -> str:
    page = render(facts)
    begin = page.index("<h2>What was slow</h2>")
    return page[begin : page.index("<h2>What happened")]


def drawn(facts: Facts) -> Chart:
    (chart,) = page_of(facts).charts
    return chart


def test_a_slow_script_s_section_has_picture_story_and_matrix() -> None:
    facts = script(SLOWED, FOUND, ADVISED, WELL)
    chart, text = drawn(facts), section(facts)
    assert "healthy" in [one.name for one in chart.series]
    marked = [one.name for one in chart.dots]
    assert marked == ["slow", "verdict", "restart advised", "faster again"]
    assert [(band.since, band.until) for band in chart.bands] == [(19.0, 40.0)]
    assert "a restart without worker-1 is worth its price" in text
    assert text.index("<figure") < text.index("52 ms a &lt;step&gt;") < text.index("matrix product")
    assert (
        '<th scope=row>worker-1</th><td class="red">2.28 (52 ms)</td><td class="green">1.00*</td>'
        in text
    )
    assert "*: not measured then, compared with the median." in text
    assert '<td class="yellow">1.18</td>' in text and "<th colspan=3>link to worker</th>" in text
    assert text.count('<td class="red">1.60</td>') == 2, "a link has two ends"
    assert "At 0:22" in text


def test_the_picture_is_not_squeezed_by_the_steps_of_the_start() -> None:
    top = drawn(script(SLOWED)).top
    assert top is not None and top <= 70.2


def test_of_a_healthy_script_one_line_says_so() -> None:
    text = section(script())
    said = "Nothing was slow: 1,500 steps without a change of their pace, 27.0 ms a step (median)."
    assert f"<p>{said}</p>" in text and "<table" not in text
    shown = Console(file=io.StringIO(), width=120)
    show(script(), shown)
    assert isinstance(shown.file, io.StringIO) and said in shown.file.getvalue()
    unseen = section(script(timed=False))
    assert "No step was seen" in unseen and "<figure" not in unseen


def test_a_job_that_paceline_steers_has_no_such_section() -> None:
    steered = msgspec.structs.replace(script(), spec=JobSpec(script="/train.py"))
    assert "What was slow" not in render(steered)
    assert slow.well(steered) == ""


def test_the_result_says_what_was_slow_and_when() -> None:
    clause = "worker-1 computes 2.28 times as long"
    assert f"Slow from 0:19 to 0:40: {clause}." in paragraph(script(SLOWED, FOUND, WELL))
    told = paragraph(script(SLOWED, FOUND))
    assert f"Slow since 0:19: {clause}." in told and "Nothing went wrong" not in told
    assert "Nothing went wrong" in paragraph(script())
    again = paragraph(script(SLOWED, FOUND, MasterStartedEvent(t=1040.0, restarted=True)))
    unseen = "when the master was started again, and nobody saw whether it ended"
    assert f"Slow from 0:19 to 0:40, {unseen}: {clause}." in again
    many = [each for _ in range(5) for each in (SLOWED, FOUND, WELL)]
    assert "(2 more before)" in paragraph(script(*many))


def test_the_text_tells_the_same_story() -> None:
    console = Console(file=io.StringIO(), width=200)
    show(script(SLOWED, FOUND, WELL), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "0:19" in text and "worker-1 computes 2.28 times as long: 52 ms a <step>" in text
    assert "0:40" in text and "the job is faster" in text


@pytest.mark.parametrize("count", [3, 60])
def test_a_matrix_of_many_ranks_keeps_those_that_stand_out(count: int) -> None:
    parts = tuple(
        ComparedPart("computing", (f"worker-{n}",), 0.02 * (3 if n == count - 1 else 1), 0.02)
        for n in range(count)
    )
    text = slow.matrices(script(SLOWED, msgspec.structs.replace(FOUND, parts=parts)))
    assert text.count("<th scope=row>") == min(count, 40)
    assert f"worker-{count - 1}</th>" in text and '<td class="red">3.00' in text
