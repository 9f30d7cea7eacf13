"""Why a job has its size: what the policy changed, why, and what that brought."""

from collections.abc import Callable
from typing import assert_never

from paceline.features.sizes.events import (
    MemoryRaisedEvent,
    MemoryShortEvent,
    SizeChangedEvent,
    SizeJudgedEvent,
    SizeKeptEvent,
    SizePlannedEvent,
    read,
)
from paceline.jobs.facts import Facts
from paceline.jobs.why import AskedWhy, Reason, WhyQuestion
from paceline.jobs.wording import clock
from paceline.wire.events.base import Event


def reasons(asked: AskedWhy, add: Callable[[Reason], None]) -> None:
    """Say which change of size was the last one, and why; or why there was none."""
    facts = asked.facts
    if facts is None:
        return
    more = f"paceline explain {facts.job_id}"
    events = read(facts.events)
    for event in [e for e in events if isinstance(e, MemoryRaisedEvent | MemoryShortEvent)][-1:]:
        at = clock(event.t - facts.started_s)
        add(Reason(WhyQuestion.SIZE, f"At {at} about memory: {event.clause}.", more))
    if told := _last_change(events, facts):
        add(Reason(WhyQuestion.SIZE, told, more))
        return
    kept = next((e for e in reversed(events) if isinstance(e, SizeKeptEvent)), None)
    if kept is not None:
        add(Reason(WhyQuestion.SIZE, f"It keeps its size: {kept.cause}.", more, is_found=False))
    elif facts.spec.resources.policy != "none":
        told = f"Its size is as at its start: policy {facts.spec.resources.policy} changed nothing."
        add(Reason(WhyQuestion.SIZE, told, more, is_found=False))


PlanTakes = SizeChangedEvent | SizeJudgedEvent | SizeKeptEvent
"""Events that say what became of a plan."""


def _last_change(events: list[Event], facts: Facts) -> str:
    """Tell of the last change: the plan, whether it is in effect, and the verdict; empty: none."""
    plans = [at for at, one in enumerate(events) if isinstance(one, SizePlannedEvent)]
    if not plans:
        return ""
    plan = events[plans[-1]]
    assert isinstance(plan, SizePlannedEvent)
    at, told = clock(plan.t - facts.started_s), f"Its size changes since {{0}}: {plan.plan}"
    for event in events[plans[-1] + 1 :]:
        if not isinstance(event, PlanTakes):
            continue
        match event:
            case SizeChangedEvent():
                at = clock(event.t - facts.started_s)
                told = f"It has {event.size} since {{0}}: {plan.plan}"
            case SizeJudgedEvent():
                told += f"; measured: {event.clause}"
            case SizeKeptEvent():
                told += f"; then it kept its size: {event.cause}"
            case _:
                assert_never(event)
    return f"{told.format(at)}."
