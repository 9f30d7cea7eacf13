"""From times of steps to a diagnosis: the machine, with ranks that answer as real ones do."""

import math
import random

import pytest

from paceline.base.numbering import Inc
from paceline.features.failslow.call_ring import RingContents
from paceline.features.failslow.events import (
    DiagnosedEvent,
    FollowsEvent,
    RelievedEvent,
    RestartAdvisedEvent,
    SlowedEvent,
)
from paceline.features.failslow.protocol.meeting import Rank, TellRank
from paceline.features.failslow.protocol.watch import (
    MOST_REST_S,
    REST_S,
    AskAgent,
    FailSlowAct,
    FailSlowWatch,
)
from paceline.features.failslow.wire import (
    AtMeeting,
    CallsTold,
    GoOn,
)
from paceline.wire.messages.agent import StepsTook
from paceline.wire.step_ledger import Mark
from tests.unit.failslow.script import COMPUTE_S, HEARTBEAT_S, SIZE, TRANSFER_S, Script, advised


def test_a_healthy_script_is_measured_once_and_nothing_is_said() -> None:
    script = Script()
    script.run(400)
    assert script.events == []
    assert len(script.meetings) == SIZE
    assert script.watch.profile is not None and script.watch.measured is not None


def test_a_rank_that_computes_longer_is_named_and_relief_is_told() -> None:
    script = Script()
    script.run(200)
    script.compute_s[2] *= 2
    script.run(40)
    (slowed,) = script.seen(SlowedEvent)
    assert isinstance(slowed, SlowedEvent) and abs(slowed.step - 201) <= 2
    found = script.diagnosis()
    assert (found.culprit, found.nodes) == ("computation", ("worker-2",))
    assert 1.9 < found.ratio < 2.1
    assert "400 ms a step, 200 ms at the job's start" in found.evidence
    assert "its device multiplies well" in found.evidence
    assert found.took_s < 10.0
    script.compute_s[2] /= 2
    script.run(60)
    (relieved,) = script.seen(RelievedEvent)
    assert isinstance(relieved, RelievedEvent) and not relieved.still_slow


def test_a_slowness_that_begins_while_the_start_is_measured_is_held_against_that() -> None:
    script = Script()
    while not script.meetings:
        script.run(1)
    script.meetings.clear()
    script.watch._meetings._open.until_s = 1e9  # type: ignore[union-attr]
    script._due.clear()  # the ranks' answers are late
    script.run(40)
    script.compute_s[2] *= 2
    script.run(20)
    assert script.seen(SlowedEvent) and not script.seen(DiagnosedEvent)
    script.watch._meetings._open.until_s = 0.0  # type: ignore[union-attr]
    script.run(20)
    assert script.diagnosis().nodes == ("worker-2",)


def test_a_script_that_slows_again_and_again_does_not_stand_still_each_time() -> None:
    script = Script()
    script.run(200)
    for factor in 12 * (2.0, 0.5):
        script.compute_s[2] *= factor
        script.run(40)
    assert len(script.seen(SlowedEvent)) == len(script.seen(DiagnosedEvent)) == 12
    known = len({meeting.meeting for meeting in script.meetings})
    assert known - 1 <= 5, "without the one of the start"
    assert known - 1 <= math.log2(1 + script.now_s / REST_S) + 1
    script.run(10 * int(MOST_REST_S))
    script.compute_s[2] *= 2
    script.run(60)
    assert len({meeting.meeting for meeting in script.meetings}) == known + 1


def test_a_device_that_multiplies_slowly_is_said() -> None:
    script = Script()
    script.run(200)
    script.compute_s[1] *= 1.5
    script.flops[1] /= 1.5
    script.run(40)
    assert "a matrix product takes 1.50 times as long, too" in script.diagnosis().evidence


def test_a_slow_link_is_named_by_its_ends() -> None:
    script = Script()
    script.run(200)
    script.transfer_s *= 4
    script.link_bytes_per_s[1, 2] /= 10
    script.run(40)
    found = script.diagnosis()
    assert (found.culprit, found.nodes) == ("link", ("worker-1", "worker-2"))
    assert 9.9 < found.ratio < 10.1


def test_both_are_named() -> None:
    script = Script()
    script.run(200)
    script.compute_s[0] *= 2
    script.transfer_s *= 4
    script.link_bytes_per_s[1, 2] /= 10
    script.run(40)
    found = script.seen(DiagnosedEvent)
    named = {event.nodes for event in found if isinstance(event, DiagnosedEvent)}
    assert named == {("worker-0",), ("worker-1", "worker-2")}


def test_the_links_of_a_rank_that_is_short_of_a_processor_are_not_blamed() -> None:
    script = Script()
    script.run(200)
    script.compute_s[2] *= 2
    script.flops[2] /= 4
    script.transfer_s *= 3
    for pair in ((1, 2), (2, 3)):
        script.link_bytes_per_s[pair] /= 10
    script.run(40)
    found = script.diagnosis()
    assert (found.culprit, found.nodes) == ("computation", ("worker-2",))


def test_a_link_that_measures_a_little_slow_does_not_account_for_transfers_that_are_very() -> None:
    script = Script()
    script.run(200)
    script.compute_s[2] *= 2
    script.transfer_s *= 10
    script.link_bytes_per_s[1, 2] /= 2
    script.run(40)
    found = script.diagnosis()
    assert (found.culprit, found.nodes) == ("computation", ("worker-2",))


def test_ranks_that_meet_are_asked_to_soon_in_slow_steps() -> None:
    script = Script()
    script.run(200)
    script.meetings.clear()
    script.compute_s[2] = 20 * COMPUTE_S
    while not script.meetings:
        script.run(1)
    assert script.meetings[0].step - script.step <= 2


def test_a_link_that_measures_well_is_not_blamed() -> None:
    script = Script()
    script.run(200)
    script.transfer_s *= 4  # and over before it is measured
    script.run(40)
    found = script.diagnosis()
    assert (found.culprit, found.nodes) == ("nothing", ())
    assert "over before it could be measured" in found.evidence


def test_a_rank_that_is_slow_from_the_first_step_is_found_by_its_peers() -> None:
    script = Script()
    script.compute_s[3] *= 2
    script.run(60)
    found = script.diagnosis()
    assert (found.culprit, found.nodes) == ("computation", ("worker-3",))
    assert "of its peers" in found.evidence
    assert not script.seen(SlowedEvent)


def test_who_does_not_come_is_named_and_holds_nobody_up() -> None:
    script = Script()
    script.run(200)
    script.comes.discard(3)
    script.compute_s[2] *= 2
    before_s = script.now_s
    script.run(60)
    found = script.diagnosis()
    assert (found.nodes, found.absent) == (("worker-2",), ("worker-3",))
    assert not script.stands
    assert script.now_s - before_s < 100.0


def test_a_rank_that_makes_no_steps_is_not_made_to_wait_for() -> None:
    watch = FailSlowWatch(meets=True, first_meeting=0)
    watch.begin({rank: Rank(f"worker-{rank}", Inc(rank + 1)) for rank in range(2)}, 0.0)
    acts: list[FailSlowAct] = []
    for step in range(1, 40):
        acts += watch.took("worker-0", [StepsTook(step, 1, 0.2)], 0.2 * step)
        acts += watch.tick(0.2 * step)
    asked = [act for act in acts if isinstance(act, AskAgent)]
    for act in asked:
        told = CallsTold(act.node, act.message.inc, act.message.asked, RingContents())
        acts += watch.told(told, 9.0)
    assert asked and not [act for act in acts if isinstance(act, TellRank)]


def test_a_word_that_is_repeated_changes_nothing_and_an_unknown_one_is_answered() -> None:
    script = Script()
    script.run(100)
    (meeting, *_) = script.meetings
    again = AtMeeting(script.inc(1), meeting.meeting, meeting.step)
    assert script.watch.at_meeting("worker-1", again, script.now_s) == [
        TellRank(script.inc(1), GoOn(script.inc(1), meeting.meeting))
    ]


def test_a_meeting_that_is_missed_is_put_off() -> None:
    script = Script()
    script.lateness = SIZE
    script.run(100)
    assert len({meeting.meeting for meeting in script.meetings}) > 1
    assert script.watch.measured is not None
    assert script.events == []


def test_a_rank_that_goes_past_a_meeting_waits_in_its_step_until_all_meet_again() -> None:
    script = Script()
    while not script.meetings:
        script.run(1)
    del script._due[3]  # its order comes too late for that step
    until_s = script.now_s + 5.0
    while not script.watch.measured:
        script.run(1)
    assert script.now_s < until_s, "not as long as one is waited for that does not come"
    assert len({meeting.meeting for meeting in script.meetings}) == 2
    assert script.events == []


def test_agents_that_do_not_answer_are_not_waited_for() -> None:
    script = Script()
    script.run(200)
    script.answers.discard(0)
    script.compute_s[2] *= 2
    script.run(60)
    assert script.diagnosis().nodes == ("worker-2",)


def test_a_script_that_begins_again_is_measured_again() -> None:
    script = Script()
    script.run(100)
    script.begin(11)
    script.compute_s[1] *= 2
    script.run(60)
    assert script.watch.measured is not None
    assert not script.seen(SlowedEvent), "what was before is forgotten"
    assert script.diagnosis().nodes == ("worker-1",)


def test_without_meetings_the_profile_alone_speaks() -> None:
    script = Script(meets=False)
    script.run(200)
    script.compute_s[2] *= 2
    script.run(40)
    assert script.diagnosis().nodes == ("worker-2",)
    assert script.meetings == []


def test_a_single_rank_meets_nobody() -> None:
    script = Script(size=1)
    script.run(200)
    script.compute_s[0] *= 2
    script.run(40)
    assert script.diagnosis().nodes == ("worker-0",)
    assert script.meetings == []


def test_a_restart_is_advised_once_when_the_loss_has_reached_its_price() -> None:
    script = Script()
    script.saves_every = 50
    script.run(220)
    script.compute_s[2] *= 2
    script.run(28)
    assert script.diagnosis().nodes == ("worker-2",)
    assert not script.seen(RestartAdvisedEvent), "more than that is to be done again"
    script.run(12)
    found = advised(script)
    assert found.nodes == ("worker-2",) and found.has_saved
    assert found.lost_s > found.cost_s, "just after the script has saved"
    assert found.start_s == pytest.approx(COMPUTE_S + TRANSFER_S, abs=HEARTBEAT_S)
    script.run(200)
    assert len(script.seen(RestartAdvisedEvent)) == 1
    plans = [plan for plan in script.plans if plan.advised]
    assert len(plans) == 1 and all(plan.acts_now() == plan.acts for plan in script.plans)


def test_a_restart_that_would_do_all_again_is_never_advised() -> None:
    script = Script()
    script.run(200)
    script.compute_s[2] *= 1.5
    script.run(600)
    assert script.diagnosis().nodes == ("worker-2",)
    assert not script.seen(RestartAdvisedEvent)


def test_a_script_whose_start_nobody_saw_has_no_price() -> None:
    script = Script()
    ranks = {rank: Rank(f"worker-{rank}", script.inc(rank)) for rank in range(SIZE)}
    script.watch.begin(ranks, None)  # as by a master that was started again
    script.saves_every = 20
    script.run(300)
    script.compute_s[1] *= 3
    script.run(200)
    assert script.diagnosis().nodes == ("worker-1",)
    assert not script.seen(RestartAdvisedEvent)


def test_ranks_whose_steps_are_taken_from_calls_do_not_meet() -> None:
    script = Script()
    script.infers = True
    script.run(200)
    script.compute_s[2] *= 2
    script.run(40)
    assert script.diagnosis().nodes == ("worker-2",)
    assert not script.meetings


def test_when_an_optimizer_is_seen_at_last_its_steps_are_another_pace() -> None:
    script = Script()
    script.infers = True
    script.run(200)
    script.infers = False
    for rank in range(SIZE):
        first = StepsTook(script.step + 1, 1, 8 * COMPUTE_S, Mark.FIRST)
        script._do(script.watch.took(f"worker-{rank}", [first], script.now_s))
    script.step += 1
    script.compute_s = dict.fromkeys(range(SIZE), 8 * COMPUTE_S)
    script.run(100)
    (event,) = script.events
    assert isinstance(event, FollowsEvent) and "did not count before" in event.reason
    assert len(script.meetings) == SIZE


def test_steps_of_different_amounts_are_compared_at_equal_work() -> None:
    script = Script()
    numbers = random.Random(5)

    def train(steps: int, slowness: float) -> None:
        for _ in range(steps):
            script.amount = numbers.choice((500, 1000, 4000))
            script.compute_s = dict.fromkeys(range(SIZE), script.amount * 2e-4)
            script.compute_s[2] *= slowness
            script.run(1)

    train(300, 1.0)
    assert not script.events
    train(60, 1.3)
    (slowed, *_) = script.seen(SlowedEvent)
    assert isinstance(slowed, SlowedEvent) and abs(slowed.step - 301) <= 5
    assert slowed.after_s / slowed.before_s == pytest.approx(1.24, abs=0.06)  # by the amount


def test_a_busy_machine_is_said() -> None:
    script = Script()
    script.run(200)
    script.compute_s[1] *= 3
    script.flops = {rank: flops / 2 for rank, flops in script.flops.items()}
    script.run(40)
    evidence = script.diagnosis().evidence
    assert "2.00 times as long, but 2.00 times elsewhere, too: the machine is busy" in evidence


def test_the_start_is_known_though_another_rank_told_its_steps_first() -> None:
    script = Script()
    early = [StepsTook(step, 1, 0.25) for step in range(2, 5)]
    script._do(script.watch.took("worker-1", early, 1.0))
    script._do(script.watch.took("worker-0", [StepsTook(1, 1, 0.25, Mark.FIRST), *early], 1.0))
    script.step = 4
    script.saves_every = 50
    script.run(220)
    script.compute_s[2] *= 2
    script.run(100)
    assert advised(script).start_s == pytest.approx(0.25, abs=HEARTBEAT_S)


def test_another_slowness_is_advised_about_by_itself() -> None:
    script = Script()
    script.saves_every = 20
    for rank in (1, 3):
        script.run(300)
        script.compute_s[rank] *= 3
        script.run(200)
        script.compute_s[rank] /= 3
    script.run(100)
    told = [event for event in script.events if isinstance(event, RestartAdvisedEvent)]
    assert [event.nodes for event in told] == [("worker-1",), ("worker-3",)]


def crowd(script: Script) -> None:
    """Other programs take the ranks' processors, from some more than from others."""
    for rank, factor in enumerate((1.4, 1.5, 2.0, 1.45)):
        script.starved_s[rank] = (factor - 1.0) * COMPUTE_S
        script.compute_s[rank] *= factor


def test_nobody_is_blamed_and_no_restart_advised_where_the_machine_is_busy() -> None:
    script = Script()
    script.saves_every = 20
    script.run(200)
    crowd(script)
    script.run(300)
    found = script.diagnosis()
    assert (found.culprit, found.nodes, found.busy) == ("nothing", (), True)
    assert found.sentence().startswith("the machine is busy, and no rank is to blame: most ranks")
    assert "wait 95 ms of a step for a processor, 1 ms at the job's start" in found.evidence
    assert not script.seen(RestartAdvisedEvent)


def test_a_rank_that_is_slow_on_a_busy_machine_is_blamed() -> None:
    script = Script()
    script.run(200)
    crowd(script)
    script.compute_s[1] += 2 * COMPUTE_S  # without waiting for a processor
    script.run(40)
    found = script.diagnosis()
    assert (found.culprit, found.nodes) == ("computation", ("worker-1",))
    assert "for what slows all ranks" in found.evidence


def test_a_rank_that_alone_waits_for_a_processor_is_blamed_with_the_evidence() -> None:
    script = Script()
    script.run(200)
    script.compute_s[2] *= 2
    script.starved_s[2] = COMPUTE_S
    script.run(40)
    found = script.diagnosis()
    assert (found.culprit, found.nodes, found.busy) == ("computation", ("worker-2",), False)
    assert "it waits 200 ms of a step for a processor, 1 ms at the start" in found.evidence


def test_a_rank_whose_machine_is_said_to_be_busy_is_blamed_without_advice() -> None:
    script = Script()
    script.saves_every = 20
    script.run(200)
    script.compute_s[2] *= 3
    script.flops = {rank: each / (3.0 if rank == 2 else 1.5) for rank, each in script.flops.items()}
    script.run(300)
    found = script.diagnosis()
    assert (found.nodes, found.busy) == (("worker-2",), True)
    assert "1.50 times elsewhere, too: the machine is busy" in found.evidence
    assert not script.seen(RestartAdvisedEvent)


def test_a_script_all_of_whose_steps_are_marked_is_watched_like_any_other() -> None:
    script = Script()
    script.saves_every = 1
    script.run(200)
    assert script.watch.profile is not None and script.watch.measured is not None
    script.compute_s[2] *= 2
    script.run(40)
    assert script.diagnosis().nodes == ("worker-2",)


def test_ranks_that_have_made_different_numbers_of_steps_are_compared_and_do_not_meet() -> None:
    script = Script()
    script.ahead = {0: 0, 1: 500, 2: 2000, 3: 500}
    script.run(200)
    assert script.watch.profile is not None and not script.meetings
    script.compute_s[2] *= 2
    script.run(40)
    assert script.diagnosis().nodes == ("worker-2",)


def test_a_rank_that_stalls_in_some_of_its_short_steps_is_named() -> None:
    script = Script()
    script.compute_s = dict.fromkeys(range(SIZE), 0.0016)
    script.transfer_s = 0.0004
    script.run(5000)
    for _ in range(30):  # as if it had no processor for most of each tenth of a second
        script.run(9)
        script.compute_s[2] += 0.08
        script.run(1)
        script.compute_s[2] -= 0.08
    found = script.diagnosis()
    assert (found.culprit, found.nodes) == ("computation", ("worker-2",))
    assert found.ratio > 4


def test_a_rank_that_is_well_again_before_the_verdict_is_not_blamed() -> None:
    script = Script()
    script.run(200)
    script.compute_s[2] *= 2
    while not script.seen(SlowedEvent):
        script.run(1)
    script.compute_s[2] /= 2
    script.run(60)
    assert script.meetings
    found = script.diagnosis()
    assert found.culprit == "nothing"
    assert found.evidence.startswith("worker-2 computed longer, and does no more")
