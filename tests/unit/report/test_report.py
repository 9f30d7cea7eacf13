"""The report of a job in words, and the page made of it."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec import structs
from rich.console import Console

from paceline.base.jobdir import JobDir
from paceline.features.failslow.events import CheckedEvent
from paceline.features.failslow.wire import NodeSpeed
from paceline.features.report.charts import RED
from paceline.features.report.content import page_of
from paceline.features.report.page import render
from paceline.features.report.text import figures, incident_rows, show
from paceline.jobs.curves import CurvePoint
from paceline.jobs.facts import Facts, work_out
from paceline.jobs.history import MetricsPoint, NodePoint
from paceline.jobs.outcome import Outcome
from paceline.wire.spec import JobSpec
from tests.unit.jobs.test_facts import (
    END,
    EVENTFUL,
    FINISHED,
    QUIET,
    RESUMED,
    START,
    WORKER_KILLED,
    facts,
)


def test_steps_that_were_declared_short_are_told() -> None:
    outcome = Outcome(state="finished", exit_code=0, short_steps=12, left_out=3400)

    told = dict(figures(facts(*START, *END, outcome=outcome)))
    assert told["steps declared short"] == "12 (3,400 samples came later in their epoch)"
    assert "steps declared short" not in dict(figures(QUIET))


def test_a_job_that_was_resumed_with_more_workers_says_so() -> None:
    assert dict(figures(QUIET))["asked for"].startswith("1 worker, ")
    assert "then 3" not in dict(figures(QUIET))["asked for"]
    more = facts(*START, *RESUMED, *END, outcome=FINISHED)
    assert dict(figures(more))["asked for"].startswith("1 worker, then 3, ")


def test_a_job_without_an_end_or_a_start_can_be_reported() -> None:
    spec = JobSpec(script="/train.py")
    empty = work_out(JobDir(Path("/jobs/x")), spec, None, [], [], launched_s=0.0)
    assert figures(empty)
    assert "never measured" in render(empty)


ONE_LOST = [*START, *WORKER_KILLED]


UNTIMED = [
    MetricsPoint(float(t), 10 * t, 0.0, {"worker-0": NodePoint(samples=t)}) for t in range(1, 9)
]


@pytest.mark.parametrize("outcome", [None, FINISHED, Outcome(state="failed", exit_code=1)])
def test_a_job_whose_batches_were_not_timed_can_be_drawn(
    outcome: Outcome | None,
) -> None:
    page = page_of(lost_one(UNTIMED, outcome))
    assert [one.name for one in page.charts] == ["throughput", "samples"]


@pytest.mark.parametrize("outcome", [None, FINISHED, Outcome(state="failed", exit_code=1)])
@pytest.mark.parametrize(
    "seen",
    [
        [MetricsPoint(1.0, 0, 0.0)],
        [MetricsPoint(float(t), 0, 0.0, {"worker-0": NodePoint()}) for t in range(1, 9)],
    ],
    ids=["no node was measured", "no worker got a sample"],
)
def test_a_job_without_samples_has_its_lives_drawn_and_no_empty_axes(
    seen: list[MetricsPoint], outcome: Outcome | None
) -> None:
    page = page_of(lost_one(seen, outcome))
    assert page.charts == ()
    html = "".join(one.html for one in page.blocks)
    assert "No worker got a sample." in html
    assert html.count("<svg") == 1
    assert "Lives of the nodes" in html


def lost_one(seen: list[MetricsPoint], outcome: Outcome | None) -> Facts:
    """A job that lost a worker."""
    spec = JobSpec(script="/train.py")
    return work_out(JobDir(Path("/jobs/x")), spec, outcome, ONE_LOST, seen, launched_s=0.0)


class _Checker(HTMLParser):
    """Collects ids and what a page loads; checks that elements are closed in order."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.loads.append(value or "")
        if tag in ("link", "img", "iframe"):
            self.loads.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    return render(EVENTFUL)


def test_the_page_is_well_formed_and_loads_nothing(page: str) -> None:
    checker = _Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.loads == []
    assert len(checker.ids) == len(set(checker.ids))


def test_the_page_says_all_that_the_text_says(page: str) -> None:
    assert "Finished: 1,000 of 1,000 samples" in page
    rows = incident_rows(EVENTFUL)
    assert rows
    for row in rows:
        for cell in row:
            assert cell in page
    assert "--lr &lt;0.1&gt;" in page


def test_the_charts_mark_the_incidents_and_lives_have_the_colours_of_their_ends(page: str) -> None:
    throughput = {one.name: one for one in page_of(EVENTFUL).charts}["throughput"]
    assert [one.label for one in throughput.marks] == ["1", "2", "3"]
    (drawing,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert ElementTree.fromstring(drawing).get("width") is None
    assert drawing.count(f'fill="{RED}"') >= 2  # two killed lives


def test_no_text_of_a_job_ends_the_script_that_holds_its_charts() -> None:
    odd = structs.replace(EVENTFUL, curves={"</script><b>": [CurvePoint(1, 1, 1.0, 0.5)]})
    page = render(odd)
    assert "</script><b>" not in page
    charts = page[page.index('id="charts">') + 12 :]
    (name, *_) = [one["name"] for one in json.loads(charts[: charts.index("</script>")])]
    assert name == "curve-</script><b>"


def test_a_failed_job_shows_the_users_traceback() -> None:
    failed = Outcome(state="failed", exit_code=3, error="worker-0: x", traceback="File <train>\n")
    told = facts(*START, outcome=failed)
    assert "File &lt;train&gt;" in render(told)
    out = io.StringIO()
    show(told, Console(file=out, width=200))
    assert out.getvalue().splitlines()[1] == "    File <train>"


def test_what_hung_threads_did_and_what_nodes_can_do_is_shown() -> None:
    speed = NodeSpeed(threads=1, matmul_flops=5e10, copy_bytes_per_s=1e10)
    checked = CheckedEvent(t=1.0, node="worker-0", inc=1, speed=speed)
    stacks = (("worker-1", 'incarnation 2\nFile "train.py", line 7 in <module>\n'),)
    told = structs.replace(facts(checked), stacks=stacks)
    console = Console(file=io.StringIO(), width=200)
    show(told, console)
    for shown in (console.file.getvalue(), render(told)):  # type: ignore[attr-defined]
        assert "the threads of worker-1 did when it hung" in shown
        assert "line 7 in" in shown
        assert "50.0 GFLOP/s" in shown
