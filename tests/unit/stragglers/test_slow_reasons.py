"""Why a job is slow: which node, since when, what was done, and where nothing is known."""

from pathlib import Path

import msgspec
import pytest

from paceline.base.jobdir import JobDir
from paceline.features.stragglers.events import NodesComparedEvent
from paceline.features.stragglers.reasons import reasons
from paceline.jobs.facts import Facts, work_out
from paceline.jobs.outcome import Outcome
from paceline.jobs.why import AskedWhy, Reason
from paceline.wire.events.base import Event
from paceline.wire.events.nodes import NodeStartedEvent
from paceline.wire.spec import JobSpec
from tests.unit.stragglers.test_spells import FOUND, GONE


def answer(*events: Event, workers: int = 2) -> list[Reason]:
    born = [NodeStartedEvent(t=1.0, node=f"worker-{n}", inc=n + 1) for n in range(workers)]
    done = Outcome(state="finished", exit_code=0, jct_s=40.0)
    job, spec = JobDir(Path("/jobs/demo-1")), JobSpec(script="/train.py")
    facts: Facts = work_out(job, spec, done, [*born, *events], [], launched_s=0.0)
    found: list[Reason] = []
    reasons(AskedWhy("demo-1", facts, None), found.append)
    return found


COMPARED = NodesComparedEvent(t=5.0, count=2)


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ((COMPARED,), "Nothing was slow, nothing was done."),
        (
            (COMPARED, FOUND),
            "worker-1 computed 2.50 times as long as usual from 0:08 to the end, nothing was done.",
        ),
        (
            (COMPARED, msgspec.structs.replace(FOUND, done="restarted 1 time"), GONE),
            "worker-1 computed 2.50 times as long as usual from 0:08 to 0:30, restarted 1 time, "
            "and then was well again.",
        ),
    ],
)
def test_why_names_who_was_slow_since_when_and_what_was_done(
    events: tuple[Event, ...], sentence: str
) -> None:
    (reason,) = answer(*events)
    assert reason.sentence == sentence
    assert reason.is_found == (len(events) > 1)


def test_where_nobody_was_compared_nothing_is_claimed() -> None:
    assert answer() == []
    (alone,) = answer(workers=1)
    assert "not known" in alone.sentence
    assert not alone.is_found
