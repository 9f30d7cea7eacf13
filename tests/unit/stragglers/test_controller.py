"""When the solution is asked, and what becomes of what it decides: facts in, instructions out."""

import itertools
from collections.abc import Sequence
from typing import TypeVar

import msgspec
import pytest

from paceline.features.stragglers.policy.controller import (
    LATE_S,
    LOST_S,
    QUIET_S,
    SPAN_S,
    Ask,
    CarryOut,
    Controller,
    Instruction,
    Period,
    Write,
)
from paceline.features.stragglers.policy.decision_log import (
    ActionRefused,
    Decided,
    Failed,
    Helped,
    Measured,
    TookEffect,
)
from paceline.policy.actions import (
    AdjustBatch,
    AnyAction,
    BackupWorkers,
    KillRestart,
    Partial,
)
from paceline.policy.observation import (
    JobProgress,
    Observation,
    RestartCost,
    RestartOutcome,
    ServerSeen,
    WorkerSeen,
)
from paceline.policy.stats.regimes import Point, Regime

T = TypeVar("T")
PERIOD = Period(every_s=30.0, every_iterations=100)
KILL = KillRestart(node="worker-1", reason="slow", gain_s=50.0, cost_s=10.0)
BACKUP = BackupWorkers(count=1)


def lines(instructions: Sequence[Instruction], kind: type[T]) -> list[T]:
    written = [one.line for one in instructions if isinstance(one, Write)]
    return [line for line in written if isinstance(line, kind)]


def orders(instructions: Sequence[Instruction]) -> list[CarryOut]:
    return [one for one in instructions if isinstance(one, CarryOut)]


class Job:
    """A job of 1,000 samples per second whose solution is asked every 30 s."""

    def __init__(self, first_no: int = 1) -> None:
        self.now_s = 0.0
        self.speed = 1000.0
        self.committed = 0.0
        self.total: int | None = 1_000_000
        self.controller = Controller(PERIOD, first_no=first_no)
        assert not self.controller.is_due(0.0, 0.0)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.committed += seconds * self.speed

    @property
    def progress(self) -> JobProgress:
        return JobProgress(self.now_s, round(self.committed), self.total)

    def observation(self) -> Observation:
        return Observation(
            now_s=self.now_s,
            step=int(self.now_s),
            mode="asp",
            global_batch=64,
            steps_left=None,
            workers=tuple(WorkerSeen(node=f"worker-{i}", batch_size=64) for i in range(3)),
            servers=(ServerSeen(node="server-0"),),
        )

    def ask(self) -> list[Instruction]:
        return self.controller.ask(self.observation(), self.now_s * 10, self.progress)

    def decide(self, *actions: AnyAction, period_s: float = 30.0) -> list[Instruction]:
        """One period goes by, and the solution answers at its end."""
        self.wait(period_s)
        asked = self.ask()
        (ask,) = [one for one in asked if isinstance(one, Ask)]
        answer = self.controller.answered(ask.no, actions, 0.001, self.now_s)
        for order in orders(answer):
            self.controller.carried_out(order.action)
        return [*asked, *answer]

    def works(self, node: str = "worker-1") -> list[Instruction]:
        cost = RestartCost(pending_s=1.0, start_s=2.0)
        return self.controller.works(node, cost, self.progress)


def test_the_solution_is_asked_when_time_and_iterations_have_passed() -> None:
    controller = Job().controller
    assert not controller.is_due(29.9, 500)
    assert not controller.is_due(31.0, 99)
    assert controller.is_due(31.0, 100)


def test_a_period_begins_anew_when_it_was_asked_and_after_a_restore() -> None:
    job = Job()
    job.decide()
    assert not job.controller.is_due(59.0, 1e4)
    assert job.controller.is_due(60.0, 300 + 100)
    assert not job.controller.is_due(60.0, 10)  # back at a cut
    assert not job.controller.is_due(89.0, 1e4)
    assert job.controller.is_due(90.0, 110)


def test_nobody_is_asked_twice_at_once() -> None:
    job = Job()
    job.wait(30.0)
    job.ask()
    assert not job.controller.is_due(1e6, 1e6)


def test_a_decision_with_actions_is_written_whole_and_carried_out() -> None:
    job = Job(first_no=8)
    done = job.decide(KILL, BACKUP)
    (decided,) = lines(done, Decided)
    assert (decided.no, decided.actions) == (8, (KILL, BACKUP))
    assert decided.observation == job.observation()
    assert orders(done) == [CarryOut(8, 0, KILL), CarryOut(8, 1, BACKUP)]
    assert job.controller.num_decisions == 1
    assert job.controller.num_actions == {"KillRestart": 1, "BackupWorkers": 1}


def test_quiet_decisions_are_written_rarely_and_those_after_an_action_at_once() -> None:
    job = Job()
    period_s = QUIET_S / 4
    written = [len(lines(job.decide(period_s=period_s), Decided)) for _ in range(12)]
    assert sum(written) == 3
    assert written[0] == 1
    job.decide(KILL, period_s=period_s)
    assert len(lines(job.decide(period_s=period_s), Decided)) == 1
    assert len(lines(job.decide(period_s=period_s), Decided)) == 0


def test_a_node_is_not_restarted_twice_at_once() -> None:
    job = Job()
    job.decide(KILL)
    again = job.decide(KILL)
    assert orders(again) == []
    (refused,) = lines(again, ActionRefused)
    assert (refused.no, refused.index) == (2, 0)
    assert refused.reason == "worker-1 is being restarted already, by decision 1"
    job.works()
    assert len(orders(job.decide(KILL))) == 1


def test_a_server_that_was_not_replaced_may_be_replaced_again() -> None:
    job, kill = Job(), KillRestart(node="server-0")
    job.decide(kill)
    (refused,) = lines(job.controller.given_up("server-0", "it goes on"), ActionRefused)
    assert (refused.no, refused.index, refused.reason) == (1, 0, "it goes on")
    assert job.controller.given_up("server-0", "it goes on") == []
    assert len(orders(job.decide(kill))) == 1


def test_a_node_that_is_not_there_is_not_restarted() -> None:
    (refused,) = lines(Job().decide(KillRestart(node="worker-9")), ActionRefused)
    assert refused.reason == "there is no living node worker-9"


def test_what_the_edge_refuses_is_written_and_no_longer_on_its_way() -> None:
    job = Job()
    job.decide(KILL)
    (refused,) = lines(job.controller.refused(1, 0, "not yet"), ActionRefused)
    assert refused.reason == "not yet"
    assert len(orders(job.decide(KILL))) == 1


def test_a_restart_has_taken_effect_when_the_node_works_again() -> None:
    job = Job()
    job.decide(KILL)
    assert job.works("worker-2") == []
    assert job.controller.since_action_s(job.now_s) is None
    job.wait(12.0)
    (effect,) = lines(job.works(), TookEffect)
    assert (effect.no, effect.index) == (1, 0)
    assert effect.cost == RestartCost(pending_s=1.0, start_s=2.0)
    job.wait(3.0)
    assert job.controller.since_action_s(job.now_s) == 3.0
    assert job.works() == []


def test_the_outcome_is_measured_over_a_period_and_compared() -> None:
    job = Job()
    job.decide()
    job.decide(KILL)
    job.wait(10.0)
    job.works()
    committed = job.committed
    job.speed = 1500.0
    job.wait(20.0)
    assert lines(job.ask(), Measured) == []
    job.controller.answered(3, (), 0.0, job.now_s)
    job.wait(10.0)
    (measured,) = lines(job.decide(), Measured)
    assert (measured.no, measured.index, measured.others) == (2, 0, 0)
    assert (measured.before, measured.after) == (1000.0, 1500.0)
    assert measured.seconds == 60.0
    left = 1_000_000 - committed
    assert measured.gain_s == pytest.approx(left / 1000 - left / 1500)
    assert lines(job.decide(), Measured) == []


def test_an_outcome_that_cannot_be_told_is_none() -> None:
    job = Job()
    job.decide(KILL)  # nothing was measured before it
    job.works()
    job.committed = -1.0  # and a restore after it
    (measured,) = lines(job.decide(), Measured)
    assert (measured.before, measured.after, measured.gain_s) == (None, None, None)
    endless = Job()
    endless.total = None
    endless.decide()
    endless.decide(KILL)
    endless.works()
    (measured,) = lines(endless.decide(), Measured)
    assert (measured.before, measured.after, measured.gain_s) == (1000.0, 1000.0, None)


def test_speeds_are_taken_over_a_span_however_often_the_solution_is_asked() -> None:
    job = Job()
    job.controller = Controller(Period(every_s=1.0, every_iterations=0))

    def second(*actions: AnyAction) -> list[Measured]:
        job.wait(1.0)
        asked = job.ask()
        job.controller.answered(asked[-1].no, actions, 0.0, job.now_s)  # type: ignore[union-attr]
        return lines(asked, Measured)

    for _ in range(20):
        second()
    job.speed = 400.0
    for _ in range(5):
        second()
    second(KILL)
    job.works()
    job.speed = 900.0
    measured = [one for _ in range(int(SPAN_S)) for one in second()]
    assert [(one.before, one.after, one.seconds) for one in measured] == [
        ((4 * 1000 + 6 * 400) / 10, 900.0, SPAN_S)
    ]


def test_actions_that_took_effect_together_are_measured_together() -> None:
    job = Job()
    job.decide(KILL, KillRestart(node="worker-2"))
    job.works("worker-1")
    job.works("worker-2")
    assert [one.others for one in lines(job.decide(), Measured)] == [1, 1]


def test_no_decision_is_made_while_a_global_action_is_on_its_way() -> None:
    job = Job()
    job.decide(BACKUP)
    assert not job.controller.is_due(job.now_s + LOST_S - 1, 1e6)
    job.wait(35.0)
    assert len(lines(job.controller.took_effect(1, 0, job.progress), TookEffect)) == 1
    assert job.controller.took_effect(1, 0, job.progress) == []
    assert job.controller.is_due(job.now_s, 1e6)


def test_a_global_action_that_never_takes_effect_is_not_waited_for_without_end() -> None:
    job = Job()
    job.decide(BACKUP)
    assert job.controller.is_due(job.now_s + LOST_S, 1e6)


def test_a_later_action_replaces_one_of_its_kind_that_never_took_effect() -> None:
    job = Job()
    job.decide(BACKUP, KILL)
    job.wait(LOST_S)
    (refused,) = lines(job.decide(Partial(left_out=3)), ActionRefused)
    assert (refused.no, refused.index) == (1, 0)
    assert refused.reason == "replaced by decision 2 before it took effect"
    assert job.controller.awaited() == [(2, 0, Partial(left_out=3))]


def test_a_restart_on_its_way_holds_up_nothing() -> None:
    job = Job()
    job.decide(KILL)
    assert job.controller.is_due(job.now_s + 30.0, 1e6)


def test_what_a_solution_raises_is_written_once_per_kind() -> None:
    job = Job()
    told = []
    for kind in ("ValueError", "ValueError", "KeyError"):
        job.wait(30.0)
        (ask,) = job.ask()
        assert isinstance(ask, Ask)
        told += job.controller.failed(ask.no, kind, f"Traceback: {kind}")
        assert job.controller.is_due(job.now_s + 30.0, 1e6)
    assert [(line.no, line.kind) for line in lines(told, Failed)] == [
        (1, "ValueError"),
        (3, "KeyError"),
    ]
    assert orders(job.decide(KILL)) == [CarryOut(4, 0, KILL)]


def test_a_late_answer_counts_for_nothing_and_the_next_is_asked_for_after_it() -> None:
    job = Job()
    job.wait(30.0)
    (ask,) = job.ask()
    assert isinstance(ask, Ask)
    assert job.controller.tick(job.now_s + LATE_S - 0.1) == []
    (late,) = lines(job.controller.tick(job.now_s + LATE_S), Failed)
    assert late.kind == "late"
    assert job.controller.tick(job.now_s + 2 * LATE_S) == []
    assert not job.controller.is_due(job.now_s + 1e6, 1e6)
    assert job.controller.answered(ask.no, [KILL], 40.0, job.now_s + 40.0) == []
    assert job.controller.is_due(job.now_s + 40.0, 1e6)
    assert orders(job.decide(KILL)) == [CarryOut(2, 0, KILL)]


def test_an_answer_to_another_question_changes_nothing() -> None:
    job = Job()
    job.wait(30.0)
    job.ask()
    assert job.controller.answered(99, [KILL], 0.0, job.now_s) == []
    assert job.controller.failed(99, "ValueError", "") == []


def test_numbers_go_on() -> None:
    job = Job(first_no=41)
    numbers = itertools.chain.from_iterable(lines(job.decide(KILL), Decided) for _ in range(3))
    assert [decided.no for decided in numbers] == [41, 42, 43]


# ---------------------------------------------------------------------- what restarts achieve


def measured(job: Job, *times_s: float, since_s: float = 0.0) -> Observation:
    """Workers with regimes that began at a time."""
    workers = tuple(
        WorkerSeen(
            node=f"worker-{index}",
            batch_size=32,
            regime=Regime(since_s=since_s, iterations=100, points=(Point(32, 100, time_s),)),
        )
        for index, time_s in enumerate(times_s)
    )
    return msgspec.structs.replace(job.observation(), workers=workers)


def ask(job: Job, seen: Observation, *actions: AnyAction) -> tuple[Observation, list[Instruction]]:
    """What the solution sees, when it answers so, and what is written before."""
    asked = job.controller.ask(seen, job.now_s, job.progress)
    (ask,) = [one for one in asked if isinstance(one, Ask)]
    job.controller.answered(ask.no, actions, 0.001, job.now_s)
    return ask.observation, asked


def outcome_of_a_restart(job: Job, time_s: float) -> RestartOutcome:
    """What the solution sees of a restart after which the node takes so long, and others 1 s."""
    job.wait(100.0)
    ask(job, measured(job, 1.0, 3.0, 1.0), KILL)
    job.wait(5.0)
    job.works()
    job.wait(SPAN_S / 2)
    seen, written = ask(job, measured(job, 1.0, time_s, 1.0, since_s=105.0))
    assert seen.outcomes == (), "too early to tell"
    job.wait(SPAN_S)
    seen, written = ask(job, measured(job, 1.0, time_s, 1.0, since_s=105.0))
    (outcome,) = seen.outcomes
    assert [line.outcome for line in lines(written, Helped)] == [outcome]
    return outcome


def test_a_restart_is_judged_by_the_nodes_next_life() -> None:
    cured = outcome_of_a_restart(Job(), 1.0)
    assert (cured.role, cured.before, cured.after, cured.cured) == ("worker", 3.0, 1.0, True)
    assert 0.0 < cured.weight < 1.0, "it might have healed without the restart"
    futile = outcome_of_a_restart(Job(), 3.0)
    assert (futile.before, futile.after, futile.cured) == (3.0, 3.0, False)


def test_outcomes_of_earlier_jobs_are_seen() -> None:
    job, before = Job(), RestartOutcome(role="worker", before=2.0, after=2.0)
    job.controller = Controller(PERIOD, outcomes=[before])
    assert ask(job, job.observation())[0].outcomes == (before,)


def test_changes_of_the_plan_are_seen_once_per_decision() -> None:
    job = Job()
    job.wait(10.0)
    ask(job, job.observation(), AdjustBatch(shares={}), BACKUP)
    job.wait(8.0)
    ask(job, job.observation(), KILL)
    job.wait(2.0)
    assert ask(job, job.observation())[0].changes_s == (10.0,)
