"""Why a job has its size: the last plan, whether it is in effect, and what it brought."""

import pytest
from msgspec import structs

from paceline.features.sizes.events import (
    SizeChangedEvent,
    SizeJudgedEvent,
    SizeKeptEvent,
    SizePlannedEvent,
)
from paceline.features.sizes.reasons import reasons
from paceline.jobs.why import AskedWhy, Reason
from paceline.wire.events.base import Event
from paceline.wire.spec import ResourcesSpec
from tests.unit.jobs.test_facts import START, facts

PLAN = SizePlannedEvent(t=4.0, plan="workers 2 -> 3: relieves the workers")
CHANGED = SizeChangedEvent(t=9.6, size="3 workers, 1 server", took_s=5.6)
JUDGED = SizeJudgedEvent(
    t=11.0, before_per_s=100.0, after_per_s=148.0, expected_per_s=150.0, found="faster"
)
KEPT = SizeKeptEvent(t=11.0, cause="no change is worth its price")


def answer(*events: Event, policy: str = "none") -> list[Reason]:
    told = facts(*START, *events)
    spec = structs.replace(told.spec, resources=ResourcesSpec(policy=policy))
    found: list[Reason] = []
    reasons(AskedWhy("demo-1", structs.replace(told, spec=spec), None), found.append)
    return found


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ((PLAN,), "Its size changes since 0:04: workers 2 -> 3: relieves the workers."),
        (
            (PLAN, CHANGED, JUDGED),
            "It has 3 workers, 1 server since 0:10: workers 2 -> 3: relieves the workers; "
            "measured: faster: 148 samples/s after 100, 150 were expected.",
        ),
        ((KEPT,), "It keeps its size: no change is worth its price."),
    ],
)
def test_the_last_change_is_told_with_its_plan_and_what_it_brought(
    events: tuple[Event, ...], sentence: str
) -> None:
    (reason,) = answer(*events)
    assert reason.sentence == sentence
    assert reason.is_found == (events != (KEPT,))


def test_a_policy_that_changed_nothing_is_named_and_none_says_nothing() -> None:
    assert answer() == []
    (reason,) = answer(policy="rm")
    assert reason.sentence == "Its size is as at its start: policy rm changed nothing."
