"""What the report tells of decisions."""

import io
from pathlib import Path

from msgspec import structs
from rich.console import Console

from paceline.base.jobdir import JobDir
from paceline.features.report.page import render
from paceline.features.report.text import show
from paceline.features.stragglers.policy.decision_log import log_of
from paceline.features.stragglers.stories import Story
from paceline.features.stragglers.telling import decision_rows
from tests.unit.jobs.test_facts import QUIET
from tests.unit.stragglers.test_cli_decisions import log, write

DECIDED = Story(
    t=5.9,
    no=3,
    what="KILL_RESTART worker-1",
    seen="worker-1 took 500.0 ms, the 2 others 100.0 ms on average",
    rule="nd: 0.5 s over L_per >= 1.5 * 0.233 s",
    became="in effect after 6.00 s",
    outcome="800 samples/s before, 1,200 samples/s after",
)


def test_decisions_are_rows_with_their_reasons_and_what_came_of_them() -> None:
    assert decision_rows([DECIDED], 0.0) == [
        (
            "0:06",
            "KILL_RESTART worker-1",
            f"{DECIDED.seen}; {DECIDED.rule}",
            f"{DECIDED.became}; {DECIDED.outcome}",
        )
    ]


def test_a_report_has_a_section_about_decisions_if_there_were_any(tmp_path: Path) -> None:
    job = JobDir(tmp_path)
    told = structs.replace(QUIET, path=str(tmp_path))
    assert "<h2>Decisions</h2>" not in render(told)
    write(log_of(job), log())
    page = render(told)
    assert "<h2>Decisions</h2>" in page
    assert "nd: 0.5 s over L_per &gt;= 1.5 * 0.233 s" in page
    out = io.StringIO()
    show(told, Console(file=out, width=200))
    assert "KILL_RESTART worker-1" in out.getvalue()
