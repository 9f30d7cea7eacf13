"""The planner: when it acts, in which order, what it undoes, and what it costs."""

import random
from collections.abc import Iterator, Sequence

import pytest
from paceline_experiments.failslow.ski_rental import (
    EmulatedCure,
    EventCost,
    play_event,
    ratios,
    several_cures,
)

from paceline.policy.cures import (
    AdviseCure,
    AnyCureAct,
    ApplyCure,
    Cure,
    CureOption,
    EventFacts,
    Fault,
    PassCure,
    PlannerRules,
    PlannerState,
    RevertCure,
    decide,
)

S2, S3, S4 = Cure
SLOW = Fault(cause="computation", ranks=(3,))
OTHER = Fault(cause="computation", ranks=(5,))
LINK = Fault(cause="link", ranks=(0, 1))
COSTS_S = {S2: 2.0, S3: 30.0, S4: 100.0}
NO_TOPOLOGY = "paceline does not move ranks"


def options(**changes: str) -> tuple[CureOption, ...]:
    return tuple(
        CureOption(
            cure=cure,
            cost_s=cost_s,
            unavailable=NO_TOPOLOGY if cure is S3 else "",
            by_hand=changes.get(cure.name) == "by hand",
        )
        for cure, cost_s in COSTS_S.items()
    )


class Job:
    """A job whose healthy step takes a second."""

    def __init__(self, offered: Sequence[CureOption] | None = None) -> None:
        self.state, self.rules = PlannerState(), PlannerRules()
        self.offered = tuple(options() if offered is None else offered)
        self.step = 0
        self.acts: list[tuple[int, AnyCureAct]] = []
        self.log: list[tuple[PlannerState, EventFacts, Sequence[AnyCureAct]]] = []
        """Decisions that led to acts: the state before, the facts, and the acts."""

    def run(self, steps: int, step_s: float, *faults: Fault) -> list[AnyCureAct]:
        """Steps of this length; what the planner answered meanwhile."""
        new: list[AnyCureAct] = []
        for _ in range(steps):
            self.step += 1
            facts = EventFacts(
                step=self.step, step_s=step_s, healthy_s=1.0, faults=faults, options=self.offered
            )
            before = self.state
            self.state, acts = decide(before, facts, self.rules)
            new += acts
            self.acts += [(self.step, act) for act in acts]
            if acts:
                self.log.append((before, facts, acts))
        return new


def brief(acts: Sequence[AnyCureAct]) -> list[tuple[str, Cure]]:
    return [(type(act).__name__.removesuffix("Cure"), act.cure) for act in acts]


def test_a_healthy_job_is_let_be() -> None:
    job = Job()
    assert job.run(1000, 5.0) == []
    assert job.state == PlannerState()


def test_a_cure_waits_until_the_loss_has_reached_its_cost() -> None:
    job = Job()
    assert job.run(3, 1.5, SLOW) == []
    acts = job.run(1, 1.5, SLOW)
    assert brief(acts) == [("Apply", S2)]
    assert acts[0].reason == (
        "computation: 2 s were lost, at 1.5 s a step instead of 1 s; S2 costs 2 s"
    )


def test_cures_come_by_their_cost_and_go_when_the_faults_are_over() -> None:
    job = Job()
    assert brief(job.run(4, 1.5, SLOW)) == [("Apply", S2)]
    assert job.run(5 + 119, 1.25, SLOW) == []  # the loss began at zero again after five steps
    acts = job.run(600, 1.25, SLOW)
    assert brief(acts) == [("Pass", S3), ("Apply", S4)]
    assert acts[0].reason.endswith(f"s, but {NO_TOPOLOGY}")
    steps = [step for step, _ in job.acts]
    assert steps == [4, 4 + 5 + 120, 4 + 5 + 400]
    assert job.run(4, 1.0) == []
    assert brief(job.run(1, 1.0)) == [("Revert", S2)]
    assert not job.state.faults
    assert not job.state.applied


def test_cures_are_undone_the_topology_first() -> None:
    offered = [CureOption(cure=cure, cost_s=cost_s) for cure, cost_s in COSTS_S.items()]
    job = Job(offered)
    job.run(4, 1.5, SLOW)
    job.run(5 + 75, 1.4, SLOW)
    job.run(20, 1.1, SLOW)
    assert job.state.applied == (S2, S3)
    assert brief(job.run(5, 1.1)) == [("Revert", S3), ("Revert", S2)]


def test_a_little_slowness_that_a_cure_left_does_not_make_the_next_one_due_by_old_losses() -> None:
    job = Job([CureOption(cure=S2, cost_s=50.0), CureOption(cure=S4, cost_s=100.0)])
    job.run(100, 1.5, SLOW)
    assert job.state.applied == (S2,)
    assert job.run(5 + 999, 1.1, SLOW) == []
    assert brief(job.run(2, 1.1, SLOW)) == [("Apply", S4)]


def test_a_link_is_not_cured_by_other_micro_batches() -> None:
    job = Job()
    assert brief(job.run(1000, 1.5, LINK)) == [("Pass", S3), ("Apply", S4)]


def test_an_unknown_cause_restarts_nothing() -> None:
    job = Job()
    assert brief(job.run(1000, 1.5, Fault(cause="unknown"))) == [("Apply", S2), ("Revert", S2)]


def test_a_job_that_nobody_steers_gets_advice_once() -> None:
    job = Job(options(RESTART="by hand", MICRO_BATCHES="by hand"))
    acts = job.run(2000, 1.5, SLOW)
    assert brief(acts) == [("Advise", S2), ("Pass", S3), ("Advise", S4)]
    assert isinstance(acts[0], AdviseCure)
    assert job.run(50, 1.0) == []


def test_a_cure_that_brought_nothing_is_undone_and_the_next_one_follows() -> None:
    job = Job()
    job.run(4, 1.5, SLOW)
    acts = job.run(5, 1.48, SLOW)
    assert brief(acts) == [("Revert", S2)]
    assert acts[0].reason == "a step took 1.5 s before it and 1.48 s after it"
    assert brief(job.run(1000, 1.5, SLOW)) == [("Pass", S3), ("Apply", S4)]


def test_a_second_fault_is_a_reason_to_divide_again_and_the_loss_stays() -> None:
    job = Job()
    job.run(4, 1.5, SLOW)
    job.run(5 + 10, 1.1, SLOW)
    assert job.state.loss_s == pytest.approx(1.0)
    acts = job.run(2, 1.6, SLOW, OTHER)
    assert brief(acts) == [("Apply", S2)]
    job.run(5, 1.6, SLOW, OTHER)  # no better: the division of before is not missed
    assert job.state.applied == (S2,)
    assert brief(job.run(5, 1.0)) == [("Revert", S2)]


def test_one_of_two_faults_that_is_over_is_a_reason_to_divide_again() -> None:
    job = Job()
    job.run(4, 1.5, SLOW, OTHER)
    job.run(5, 1.2, SLOW, OTHER)
    assert job.run(4, 1.2, SLOW) == []
    assert job.state.faults == (SLOW, OTHER)  # it may come back
    acts = job.run(10, 1.2, SLOW)
    assert job.state.faults == (SLOW,)
    assert brief(acts) == [("Apply", S2)]


def test_a_link_that_joins_a_slow_rank_adds_its_cures() -> None:
    job = Job()
    job.run(4, 1.5, Fault(cause="unknown"))
    job.run(5, 1.2, Fault(cause="unknown"))
    assert job.run(500, 1.2, Fault(cause="unknown")) == []
    acts = job.run(500, 1.5, LINK)
    assert brief(acts)[-2:] == [("Pass", S3), ("Apply", S4)]


def square_wave(slow: int, calm: int) -> Iterator[bool]:
    while True:
        yield from [True] * slow
        yield from [False] * calm


@pytest.mark.parametrize("calm", [1, 3, 6, 20])
@pytest.mark.parametrize("slow", [1, 4, 8, 30])
def test_faults_that_come_and_go_do_not_make_the_job_flap(slow: int, calm: int) -> None:
    job = Job([CureOption(cure=S2, cost_s=2.0)])
    wave = square_wave(slow, calm)
    for _ in range(1500):
        is_slow = next(wave)
        cured = S2 in job.state.applied
        job.run(1, (1.05 if cured else 1.5) if is_slow else 1.0, *([SLOW] if is_slow else ()))
    applied = [step for step, act in job.acts if isinstance(act, ApplyCure)]
    undone = [step for step, act in job.acts if isinstance(act, RevertCure)]
    assert 0 <= len(applied) - len(undone) <= 1
    # Each price is twice the one before, until all is forgotten: 2, 4, 8 s of the 15 s of a spell.
    assert all(
        later - one > job.rules.memory for one, later in zip(applied, applied[3:], strict=False)
    )


def test_after_a_long_calm_a_cure_has_its_own_price_again() -> None:
    job = Job()
    for _ in range(3):
        assert brief(job.run(4, 1.5, SLOW)) == [("Apply", S2)]
        job.run(10, 1.0, SLOW)
        assert brief(job.run(5, 1.0)) == [("Revert", S2)]
        job.run(job.rules.memory, 1.0)
    assert {each.times for each in job.state.undone.values()} == {1}


def test_one_cure_costs_at_most_twice_what_an_oracle_pays() -> None:
    def draw(numbers: random.Random) -> EventCost:
        # In whole steps' losses, so that nothing is lost by acting between steps only.
        gap_s = 2.0 ** -numbers.randint(0, 6)
        cost_s = gap_s * numbers.randint(1, 40)
        steps = numbers.choice((numbers.randint(1, 20), numbers.randint(1, 200)))
        return play_event([gap_s] * steps, [EmulatedCure(S2, cost_s, 0.0)])

    found = ratios(10_000, draw)
    assert len(found) == 10_000
    assert found[0] == 1.0
    assert found[-1] == 2.0


def test_one_cure_with_any_losses_costs_one_step_more_at_most() -> None:
    numbers = random.Random(7)
    for _ in range(1000):
        gaps_s = [numbers.uniform(0.01, 3.0) for _ in range(numbers.randint(1, 100))]
        cost = play_event(gaps_s, [EmulatedCure(S4, numbers.uniform(0.1, 100.0), 0.0)])
        assert cost.planner_s <= 2.0 * cost.optimum_s + max(gaps_s) + 1e-9


def test_several_cures_have_a_measured_ratio_and_no_proved_one() -> None:
    found = ratios(100, several_cures)
    assert found[0] >= 1.0
    assert found[len(found) // 2] < 2.5
    assert found[-1] < 8.0


def test_passing_over_is_said_once() -> None:
    job = Job()
    acts = job.run(3000, 1.2, LINK)
    assert [act for act in acts if isinstance(act, PassCure)] == acts[:1]
