"""What the watch does where ranks, agents or numbers are not as they should be."""

import msgspec
import pytest

from paceline.agent.facts import MOST_TOOK, steps_took
from paceline.base.numbering import Inc
from paceline.features.failslow import agent
from paceline.features.failslow.agent import read_calls
from paceline.features.failslow.call_ring import (
    CallGroup,
    CallRingWriter,
    NotedCall,
    NotedStep,
    RingContents,
)
from paceline.features.failslow.events import (
    DiagnosedEvent,
    FollowsEvent,
    RelievedEvent,
    SlowedEvent,
)
from paceline.features.failslow.policy.gaps import NotProfiled
from paceline.features.failslow.policy.profile import ProfileWindow
from paceline.features.failslow.protocol.answers import ProcessorWait, ProcessorWaits, window_of
from paceline.features.failslow.protocol.meeting import MOST_TRIES
from paceline.features.failslow.protocol.watch import REST_S
from paceline.features.failslow.wire import CallsTold, TellCalls
from paceline.wire.messages.agent import StepsTook
from paceline.wire.step_ledger import Mark, StepRecord
from tests.unit.failslow import script as scripts
from tests.unit.failslow.script import SIZE, Script, advised


@pytest.mark.parametrize("step_ms", [10, 20, 50])
def test_healthy_steps_of_a_group_hide_no_slow_rank(
    step_ms: int,
) -> None:
    for healthy in range(400, 410):
        script = Script()
        script.transfer_s = step_ms / 5e3
        script.compute_s = dict.fromkeys(range(SIZE), step_ms / 1.25e3)
        script.run(healthy)
        script.compute_s[2] *= 6
        script.run(200)
        assert script.diagnosis().nodes == ("worker-2",)


def test_a_link_that_slows_soon_after_another_slowness_is_measured_a_little_later() -> None:
    script = Script()
    script.run(200)
    script.compute_s[2] *= 1.5
    script.run(40)
    script.compute_s[2] /= 1.5
    script.run(40)
    script.transfer_s *= 4
    script.link_bytes_per_s[1, 2] /= 10
    script.run(300)
    told = [event for event in script.events if isinstance(event, DiagnosedEvent)]
    assert [(event.culprit, event.nodes) for event in told] == [
        ("computation", ("worker-2",)),
        ("link", ("worker-1", "worker-2")),
    ]


def passing(script: Script) -> None:
    """All ranks compute longer for a while: nobody is to blame."""
    script.compute_s = dict.fromkeys(range(SIZE), 1.4 * scripts.COMPUTE_S)
    script.run(40)
    script.compute_s = dict.fromkeys(range(SIZE), scripts.COMPUTE_S)
    script.run(40)


def test_meetings_that_find_nothing_become_rare() -> None:
    script = Script()
    script.run(200)
    known = len(script.meetings)
    for _ in range(24):
        passing(script)
    took_s = 24 * 80 * 1.2 * scripts.COMPUTE_S
    assert took_s < (2**8 - 1) * REST_S
    assert 2 * SIZE <= len(script.meetings) - known <= 8 * SIZE
    told = script.seen(DiagnosedEvent)
    assert len(told) == len(script.seen(SlowedEvent)), "each slowness has its verdict all the same"


def test_a_slowness_that_is_over_before_the_ranks_may_meet_again_has_a_verdict() -> None:
    script = Script()
    script.run(200)
    for _ in range(4):
        passing(script)
    script.transfer_s *= 4
    script.run(40)
    script.transfer_s /= 4
    script.run(40)
    *_, slowed, diagnosed, relieved = script.events
    assert isinstance(slowed, SlowedEvent)
    assert isinstance(relieved, RelievedEvent)
    assert isinstance(diagnosed, DiagnosedEvent) and diagnosed.culprit == "nothing"
    assert "the ranks have met a short time ago" in diagnosed.sentence()


def test_a_rank_that_is_always_late_is_waited_for_a_few_times_only() -> None:
    script = Script()
    script.lateness = 10**6
    script.run(400)
    assert len({meeting.meeting for meeting in script.meetings}) == MOST_TRIES
    script.compute_s[2] *= 2
    script.run(60)
    assert script.diagnosis().nodes == ("worker-2",), "the profile tells without a meeting"
    assert len({meeting.meeting for meeting in script.meetings}) == MOST_TRIES


def test_agents_that_are_silent_at_the_start_are_asked_again() -> None:
    script = Script()
    script.answers = {0}
    script.run(25)
    assert script.watch.profile is None
    script.answers = set(range(SIZE))
    script.run(60)
    assert script.watch.profile is not None and script.watch.measured is not None


def test_a_step_without_a_batch_is_no_change_of_what_is_known() -> None:
    script = Script()
    script.amount = 100
    script.run(300)
    script.compute_s = dict.fromkeys(range(SIZE), 2 * scripts.COMPUTE_S)
    script.run(2)
    script.amount = 0
    script.run(1)
    script.amount = 100
    script.run(40)
    (slowed,) = script.seen(SlowedEvent)
    assert isinstance(slowed, SlowedEvent) and slowed.step == 301


def test_what_is_lost_is_what_the_steps_took_above_the_healthy_ones() -> None:
    script = Script()
    script.saves_every = 10
    script.run(300)
    script.compute_s[2] += 0.25
    script.run(40)
    found = advised(script)
    (plan,) = [plan for plan in script.plans if plan.advised]
    slow_steps = plan.facts.step - 300
    assert found.lost_s == pytest.approx(0.25 * slow_steps, rel=0.12)
    script.compute_s[2] -= 0.25
    script.run(60)
    assert script.seen(RelievedEvent)


def told(rank: int, *calls: NotedCall) -> CallsTold:
    steps = tuple(NotedStep(number, number, 1.0) for number in range(3))
    noted = RingContents((CallGroup("0", (0, 1), "nccl"),), calls, steps)
    return CallsTold(f"worker-{rank}", Inc(rank), 1, noted)


def window(told_by: dict[int, CallsTold]) -> ProfileWindow | NotProfiled:
    return window_of(told_by, ProcessorWaits(), {})


def test_where_no_call_s_end_is_seen_nobody_knows_what_a_rank_computed() -> None:
    blind = NotedCall(0, 0, 4, 1, 1.2, 0.0, 0)
    assert window({0: told(0, blind), 1: told(1, blind)}) is NotProfiled.BLIND
    seen = msgspec.structs.replace(blind, end_s=1.4)
    assert isinstance(window({0: told(0, seen), 1: told(1, seen)}), ProfileWindow)
    assert window({}) is NotProfiled.UNTOLD
    none_in_common = msgspec.structs.replace(told(1), noted=RingContents())
    assert window({0: told(0), 1: none_in_common}) is NotProfiled.NO_STEP


def test_steps_of_which_calls_are_missing_are_not_told(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(agent, "MOST_CALLS", 25)
    ring = CallRingWriter(tmp_path / "calls", Inc(7))
    ring.add_group(CallGroup("0", (0, 1)))
    for step in range(1, 11):
        for _ in range(10):
            ring.end(ring.begin(0, 0, 8, step))
        ring.add_step(step, float(step), 1.0)
    noted = read_calls("worker-0", tmp_path / "calls", TellCalls(Inc(7), 1, from_step=1)).noted
    assert [step.step for step in noted.steps] == [9, 10]
    assert {call.step for call in noted.calls} == {9, 10}


@pytest.mark.parametrize("mark", [Mark.NONE, Mark.CHECKPOINT])
def test_many_short_steps_are_told_in_few_parts_also_if_all_are_marked(mark: Mark) -> None:
    records = [StepRecord(*[0] * len(StepRecord._fields))._replace(step=1, marks=Mark.FIRST)]
    for step in range(2, 2002):
        records.append(records[0]._replace(step=step, bpt_s=0.001, marks=mark))
    told = steps_took(tuple(records))
    assert len(told) <= MOST_TOOK + 1
    assert sum(one.count for one in told) == 2001
    assert {one.marks for one in told[1:]} == {mark}


def test_a_node_that_is_no_rank_of_the_script_is_not_listened_to() -> None:
    script = Script()
    script.run(10)
    before = script.watch._warm
    assert script.watch.took("worker-9", [StepsTook(1, 1, 0.2)], script.now_s) == []
    assert script.watch._warm == before


def test_when_the_lowest_rank_ends_the_next_one_is_followed() -> None:
    script = Script()
    script.run(200)
    script.steps.discard(0)
    script.answers.discard(0)
    script.run(60)
    (follows,) = script.events
    assert isinstance(follows, FollowsEvent)
    assert follows.node == "worker-1" and "worker-0 has made none while" in follows.reason
    assert script.watch._warm[0] < 60, "nothing of the other rank's steps is kept"
    script.run(100)
    script.compute_s[2] *= 2
    script.run(60)
    assert script.diagnosis().nodes == ("worker-2",)
    script.steps.discard(1)
    script.run(60)
    assert [event.node for event in script.seen(FollowsEvent)] == ["worker-1", "worker-2"]


def test_a_rank_that_is_not_told_of_for_a_while_is_still_followed() -> None:
    script = Script()
    script.run(200)
    for others_only in (8, 15):  # a few steps ahead; many, for a short time
        script.steps.discard(0)
        script.run(others_only)
        script.steps.add(0)
        script.run(20)
    script.now_s += 100.0  # all stand still
    script.run(100)
    assert not script.events


def test_steps_of_two_ranks_are_never_mixed() -> None:
    script = Script()
    script.steps = {2, 3}
    script.run(100)
    script.steps.add(1)
    script.step += 5_000  # that rank counts otherwise
    script.compute_s = dict.fromkeys(range(SIZE), 2 * scripts.COMPUTE_S)
    script.run(100)
    (event,) = script.events
    assert isinstance(event, FollowsEvent) and "lower than that of worker-2" in event.reason


def test_a_wait_for_a_processor_is_that_of_the_steps_asked_for() -> None:
    waits = ProcessorWaits()
    for last, steps, each_s in ((10, 10, 0.1), (14, 4, 0.2), (16, 2, 0.5)):
        waits.add(3, last, steps, ProcessorWait(each_s, each_s / 2))
    each_s = (1.0 + 0.8 + 1.0) / 16
    assert waits.since({3: 1, 4: 1}) == {3: pytest.approx((each_s, each_s / 2))}
    assert waits.since({3: 11}) == {3: pytest.approx((0.3, 0.15))}
    assert waits.since({3: 17}) == {}
