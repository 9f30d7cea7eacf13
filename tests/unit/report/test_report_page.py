"""The report's page: figures first, charts before prose, gaps as gaps, narrow screens and paper."""

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import structs

from paceline.base.jobdir import JobDir
from paceline.features.report.charts import MOST_POINTS, Chart, stretches
from paceline.features.report.content import LogTail, page_of
from paceline.features.report.numbers import numbers
from paceline.features.report.page import asset, render
from paceline.features.report.tiles import tiles
from paceline.jobs.curves import CurvePoint
from paceline.jobs.facts import Facts, work_out
from paceline.jobs.history import MetricsPoint, NodePoint
from paceline.jobs.incidents import Incident
from paceline.jobs.outcome import Outcome
from paceline.wire.events.nodes import NodeStartedEvent
from paceline.wire.spec import JobSpec

SPEC = JobSpec(script="/train.py")
DONE = Outcome(state="finished", exit_code=0, jct_s=80.0, committed=3000, total=4000)


def point(t: float, count: int) -> MetricsPoint:
    return MetricsPoint(
        t, count, 100.0, {"worker-0": NodePoint(samples=count, bpt_s=0.01, cpu_s=t)}
    )


BEFORE = [point(t, 100 * t) for t in range(1, 11)]
AFTER = [point(t, 100 * t - 5000) for t in range(60, 81)]


def facts(
    points: list[MetricsPoint], outcome: Outcome | None = DONE, spec: JobSpec = SPEC
) -> Facts:
    born = [NodeStartedEvent(t=0.5, node="worker-0", inc=1)]
    return work_out(JobDir(Path("/jobs/x")), spec, outcome, born, points, launched_s=0.0)


# --------------------------------------------------------------------------- gaps


def test_measurements_are_divided_where_none_was_made() -> None:
    assert stretches([*BEFORE, *AFTER]) == [BEFORE, AFTER]
    assert stretches(BEFORE) == [BEFORE]
    rarer = [point(10.0 + 2 * k, 1000) for k in range(1, 11)]  # as in a job of weeks
    assert stretches([*BEFORE, *rarer]) == [[*BEFORE, *rarer]]
    assert stretches([]) == [[]]
    assert stretches(BEFORE[:1]) == [BEFORE[:1]]


def gap_of(chart: Chart) -> tuple[float, float]:
    """The moments between which the lines of a chart have a gap."""
    dates, *lines = chart.columns
    (at,) = {k for line in lines for k, value in enumerate(line) if value is None}
    before, after = dates[at - 1], dates[at + 1]
    assert before is not None and after is not None
    return before, after


def test_no_line_crosses_a_time_without_measurements() -> None:
    page = page_of(facts([*BEFORE, *AFTER]))
    assert [one.name for one in page.charts] == ["throughput", "batch-times", "samples"]
    for one in page.charts:
        assert gap_of(one)[0] == 10.0 and gap_of(one)[1] >= 60.0
        assert [(band.since, band.until) for band in one.bands] == [(10.0, 60.0)]
        assert "grey: nothing was measured" in one.caption


def test_a_long_job_has_bounded_points_and_its_whole_mean() -> None:
    long = [point(float(t), 100 * t) for t in range(1, 20_000)]
    throughput, *rest = page_of(facts(long)).charts
    for one in (throughput, *rest):
        assert len(one.columns[0]) <= MOST_POINTS
    assert set(throughput.columns[1]) == {100.0}


# --------------------------------------------------------------------------- figures


def test_the_figures_are_completion_samples_throughput_incidents_cost() -> None:
    hurt = structs.replace(
        facts([*BEFORE, *AFTER]),
        training_s=30.0,
        incidents=(
            Incident(10.0, "a", "b", stalled_s=2.0),
            Incident(11.0, "a", "b", stalled_s=2.5, undone=260),
            Incident(50.0, "a", "b", stalled_s=None),
            Incident(60.0, "stopped by paceline stop", "cut 3 was made", kind="stop"),
            Incident(70.0, "resumed", "went on from cut 3", stalled_s=9.0, kind="resume"),
        ),
    )
    shown = {one.name: (one.value, one.note) for one in tiles(hurt)}
    assert shown == {
        "time taken": ("80.0 s", "from launch to end"),
        "samples trained": ("3,000", "75 % of 4,000"),
        "speed": ("100 samples/s", "mean over 30.0 s of training"),
        "failures and kills": ("3", "0 processes started again"),
        "time lost": ("≤ 3.50 s", "without progress; 260 samples trained twice"),
        "processor time": ("80.0 s", "used by 1 worker"),
    }
    found = msgspec.to_builtins(numbers(hurt))
    assert (found["stalled_s"], found["undone"]) == (3.5, 260)


def test_a_job_without_incidents_lost_nothing_and_one_that_runs_has_no_end() -> None:
    shown = {one.name: one.value for one in tiles(facts(BEFORE, None))}
    assert shown["time lost"] == "none"
    assert shown["time so far"] == "10.0 s"
    script = facts(BEFORE, spec=structs.replace(SPEC, strategy="script"))
    names = {one.name for one in tiles(script)}
    assert names == {"time taken", "failures and kills", "processor time"}


def test_figures_come_first_then_what_the_script_logged_then_how_it_ran() -> None:
    failed = structs.replace(DONE, state="failed", exit_code=1, error="it broke", traceback="File")
    told = structs.replace(facts(BEFORE, failed), curves={"loss": [CurvePoint(1, 1, 1.0, 0.5)]})
    order = [one.name for one in page_of(told).blocks]
    assert order == [
        "done", "tiles", "traceback", "words", "logged", "chart-curve-loss", "chart-throughput",
        "lives", "incidents", "workers", "chart-batch-times", "chart-samples", "facts",
    ]  # fmt: skip


# --------------------------------------------------------------------------- screens and paper


def test_a_narrow_screen_and_paper_have_styles_of_their_own() -> None:
    page = render(facts(BEFORE))
    assert 'name="viewport" content="width=device-width' in page
    style = asset("page.css")
    narrow = style[style.index("@media screen and (max-width") : style.index("@page")]
    assert "grid-template-columns: 1fr 1fr" in narrow
    assert ".facts th, .facts td { display: block" in narrow
    # What is wider than the screen moves in a place of its own, and the page does not.
    assert ".scroll > svg { min-width" in narrow
    shown = page[: page.index('<script type="application/json"')]
    for wide in ("<svg", "<table"):
        assert shown.count(wide) == len(re.findall(rf'<div class="scroll">{wide}', shown))
    paper = style[style.index("@media print") :]
    assert ".scroll { overflow: visible" in paper
    assert "break-inside: avoid" in paper


def test_the_file_runs_no_script_but_its_own() -> None:
    evil = LogTail(node='x onmouseover=alert(1) "', lines=("</pre><script>alert(1)</script>",))
    page = render(facts(BEFORE), (evil,))
    assert '<details id="log-x onmouseover=alert(1) &quot;" open>' in page
    assert page.count("<script") == 2
    policy = re.search(r"script-src 'sha256-([^']+)'", page)
    script = page[page.rindex("<script>") + len("<script>") : page.rindex("</script>")]
    assert policy is not None
    assert policy[1] == b64encode(sha256(script.encode()).digest()).decode()
