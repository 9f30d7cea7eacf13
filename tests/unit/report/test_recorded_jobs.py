"""Reports of jobs that an earlier version has recorded: its events had words and no fields.

Beside the events and measurements of each job lies what that version made of them.
"""

import io
from pathlib import Path

import pytest
from rich.console import Console

from paceline.base.jobdir import JobDir
from paceline.features.failslow import events as failslow
from paceline.features.report.text import show
from paceline.jobs.facts import Facts, work_out
from paceline.jobs.history import read_events, read_metrics
from paceline.jobs.in_words import paragraph
from paceline.jobs.outcome import Outcome
from paceline.wire.events.base import PlainEvent
from paceline.wire.spec import JobSpec

RECORDED = Path(__file__).with_name("recorded")
SPECS = {
    "servers": JobSpec(script="/home/me/train.py", strategy="ps", mode="asp"),
    "group": JobSpec(script="/home/me/train.py", strategy="allreduce"),
    "shards": JobSpec(script="/home/me/train.py", strategy="fsdp"),
}


def read(name: str) -> Facts:
    events = read_events(RECORDED / f"{name}.events.jsonl")
    points = read_metrics(RECORDED / f"{name}.metrics.jsonl")
    total, start_s = points[-1].committed, events[0].t
    took_s = events[-1].t - start_s
    outcome = Outcome(state="finished", exit_code=0, jct_s=took_s, committed=total, total=total)
    job = JobDir(Path("/jobs/recorded-1"))
    return work_out(job, SPECS[name], outcome, events, points, launched_s=start_s)


def written(facts: Facts) -> str:
    """The report, the lives and the paragraph of a job."""
    file, start_s = io.StringIO(), facts.started_s
    show(facts, Console(file=file, width=200))
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    lives = [
        f"{one.node} {one.inc} {one.start_s - start_s:.3f} {one.end_s - start_s:.3f} {one.how}: "
        f"{one.reason}"
        for one in facts.lives
    ]
    return "\n".join([*lines, "", *lives, "", paragraph(facts), ""])


@pytest.mark.parametrize("name", SPECS)
def test_a_job_that_was_recorded_before_is_reported_as_it_was_then(name: str) -> None:
    assert written(read(name)) == (RECORDED / f"{name}.report.txt").read_text()


@pytest.mark.parametrize("name", SPECS)
def test_nearly_all_its_events_are_known(name: str) -> None:
    told = failslow.read(read(name).events)
    unknown = [event.name for event in told if isinstance(event, PlainEvent)]
    assert set(unknown) <= {"scaled"}
