"""The device coordinator's law, against a simple model of a core that two jobs share."""

import random
from statistics import fmean

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.features.sharing.gate_page import _DECISION_BYTES
from paceline.features.sharing.policy.duty import LEAST_DUTY, idle_s
from paceline.features.sharing.policy.law import (
    SharingFacts,
    SharingJob,
    SharingRules,
    SharingState,
    decide,
    guaranteed_of,
    middle_mean,
    spread_of,
)
from paceline.features.sharing.wire import GateMode, SharingCause, SharingDecision

RULES = SharingRules()
LOOK_S = 0.1


class Core:
    """A guaranteed job whose steps are longer by ``harm`` times what the others use.

    The model knows no gaps, so that only the loop is tested.
    """

    def __init__(self, harm: float, solo_s: float = 0.025, noise: float = 0.01) -> None:
        self.harm, self.solo_s, self.noise = harm, solo_s, noise
        self.now_s = 0.0
        self._step_end_s = 0.0
        self.state = SharingState()
        self.told: list[tuple[float, SharingDecision]] = []
        self.losses: list[tuple[float, float]] = []
        self.others: tuple[str, ...] = ()
        self.random = random.Random(1)

    @property
    def duty(self) -> float:
        """What the others use now."""
        if not self.others or self.state.mode is GateMode.PAUSE:
            return 0.0
        return 1.0 if self.state.mode is GateMode.OFF else self.state.duty

    def run(self, seconds: float) -> None:
        """Let time pass, with looks of the device coordinator."""
        for _ in range(round(seconds / LOOK_S)):
            self.now_s += LOOK_S
            steps = []
            while self._step_end_s <= self.now_s:
                loss = self.harm * self.duty
                self.losses.append((self.now_s, loss))
                took_s = self.solo_s * (1 + loss) * (1 + self.random.gauss(0, self.noise))
                self._step_end_s += took_s
                steps.append(took_s)
            facts = SharingFacts(
                now_s=self.now_s, guaranteed="a", others=self.others, steps_s=tuple(steps)
            )
            self.state, decision = decide(self.state, facts, RULES)
            if decision is not None:
                self.told.append((self.now_s, decision))

    def loss(self, since_s: float) -> float:
        """The mean loss of steps since then."""
        return fmean(loss for at_s, loss in self.losses if at_s > since_s)

    def causes(self, since_s: float = 0.0) -> list[SharingCause]:
        """Why anything was decided, in order."""
        return [decision.cause for at_s, decision in self.told if at_s > since_s]


def settled(harm: float, **model: float) -> Core:
    """Two jobs that have shared a core for two minutes."""
    core = Core(harm, **model)
    core.run(2.0)
    core.others = ("b",)
    core.run(90.0)
    return core


@pytest.mark.parametrize("harm", [0.0, 0.02, 0.1, 0.3, 1.0, 1.5])
def test_the_duty_settles_where_the_budget_is_used(harm: float) -> None:
    core = settled(harm)
    assert core.loss(since_s=60.0) <= RULES.budget
    ideal = min(1.0, RULES.budget / harm) if harm else 1.0
    assert core.state.duty >= 0.5 * ideal
    assert core.state.duty <= 1.3 * ideal + RULES.add


@pytest.mark.parametrize("harm", [0.1, 0.3, 1.0])
def test_the_duty_does_not_swing(harm: float) -> None:
    core = settled(harm)
    in_half_a_minute = [decision.duty for at_s, decision in core.told if at_s > 62.0]
    assert len(in_half_a_minute) <= 10


@pytest.mark.parametrize("harm", [0.1, 1.0, 1.5])
def test_an_arrival_is_within_the_budget_in_its_first_window(harm: float) -> None:
    core = Core(harm)
    core.run(2.0)
    core.others = ("b",)
    core.run(3 * RULES.window_s)
    assert core.loss(since_s=2.0 + 1.5 * LOOK_S) <= RULES.budget
    assert core.causes()[:3] == ["arrival", "steady", "measured"]


def test_who_is_left_alone_is_not_throttled() -> None:
    core = settled(1.0)
    core.others = ()
    core.run(LOOK_S)
    assert core.causes()[-1] == "departure"
    assert core.state.mode is GateMode.OFF


def test_a_newcomer_begins_with_the_least_duty() -> None:
    core = settled(0.1)
    assert core.state.duty > 0.1
    core.others = ("b", "c")
    core.run(LOOK_S)
    assert core.state.duty == LEAST_DUTY
    assert core.causes()[-1] == "newcomer"


def test_a_job_that_has_become_slower_by_itself_is_measured_again() -> None:
    core = settled(0.3)
    before = core.state.duty
    core.solo_s, begun_s = 0.05, core.now_s
    core.run(30.0)
    assert "regime" in core.causes(since_s=begun_s)
    assert core.state.alone_s == pytest.approx(0.05, rel=0.05)
    assert core.state.duty > 0.5 * before


def test_a_job_that_is_a_little_slower_by_itself_is_measured_before_the_others_starve() -> None:
    core = settled(harm=0.02)
    assert core.duty == 1.0
    core.solo_s *= 1.0 + 2.2 * RULES.budget
    began_s = core.now_s
    core.run(8.0)
    assert core.causes(began_s)[:4] == ["over", "over", "over", "regime"]
    assert core.state.alone_s == pytest.approx(core.solo_s, rel=0.02)
    core.run(10.0)
    assert core.duty > 0.5, "what others may use comes back soon"


def test_a_duty_that_was_not_too_much_comes_back_fast() -> None:
    core = settled(harm=0.02)
    core.solo_s *= 1.0 + 0.75 * RULES.budget
    began_s = core.now_s
    while "regime" not in core.causes(began_s):
        core.run(LOOK_S)
    assert core.state.duty > 0.4, "it is cut until the measurement"
    core.run(5.0)
    assert core.duty == 1.0


def test_a_lone_bad_window_does_not_end_the_fast_growth() -> None:
    core = Core(harm=0.01)
    core.run(2.0)
    core.others = ("b",)
    while core.state.phase != "shared" or core.duty < 0.1:
        core.run(LOOK_S)
    core.harm = 0.05 / core.duty
    while core.causes()[-1] != "over":
        core.run(LOOK_S)
    core.harm = 0.01
    core.run(12.0)
    assert core.duty == 1.0


def test_a_job_that_has_become_faster_is_measured_again() -> None:
    core = settled(0.3)
    core.solo_s, begun_s = 0.02, core.now_s
    core.run(30.0)
    assert core.state.alone_s == pytest.approx(0.02, rel=0.05)
    assert core.loss(since_s=begun_s + 15) <= RULES.budget


def test_what_a_job_takes_alone_is_measured_again_after_a_while() -> None:
    core = settled(0.3)
    before = core.state.duty
    core.state = msgspec.structs.replace(core.state, measured_s=core.now_s - RULES.again_s)
    begun_s = core.now_s
    core.run(5.0)
    assert core.causes(begun_s)[:2] == ["again", "measured"]
    assert core.state.duty == pytest.approx(before, rel=0.5)


def test_a_job_that_begins_again_is_an_arrival() -> None:
    core = settled(0.3)
    facts = SharingFacts(now_s=core.now_s, guaranteed="a", life=7, others=("b",))
    state, decision = decide(core.state, facts, RULES)
    assert decision is not None
    assert (decision.cause, state.duty) == ("arrival", LEAST_DUTY)


def shared(duty: float, **fields: object) -> SharingState:
    state = SharingState(
        phase="shared",
        guaranteed="a",
        others=("b",),
        mode=GateMode.DUTY,
        duty=duty,
        alone_s=0.1,
        fast=False,
    )
    return msgspec.structs.replace(state, **fields)


def after(state: SharingState, *steps_s: float) -> tuple[SharingState, SharingDecision | None]:
    """Take in a whole window."""
    facts = SharingFacts(now_s=10.0, guaranteed="a", others=("b",), steps_s=steps_s)
    return decide(state, facts, RULES)


def test_a_good_window_raises_and_bad_ones_cut() -> None:
    state, decision = after(shared(0.5), *[0.101] * 10)
    assert decision is not None and decision.cause == "within"
    assert state.duty == pytest.approx(0.53)
    state, decision = after(shared(0.5), *[0.105] * 10)
    assert decision is not None and decision.cause == "over"
    assert state.duty == pytest.approx(0.4)
    state, decision = after(shared(0.5), *[0.112] * 10)
    assert decision is not None and decision.cause == "harm"
    assert state.duty == pytest.approx(0.05)
    assert "+12.0%" in decision.why


def test_slow_start_ends_below_what_was_too_much() -> None:
    state, _ = after(shared(0.1, fast=True), *[0.1] * 10)
    assert state.duty == pytest.approx(0.15)
    state, _ = after(shared(0.1, fast=True, ceiling=0.15), *[0.1] * 10)
    assert state.duty == pytest.approx(0.125)


def test_a_raise_takes_more_good_windows_after_each_cut() -> None:
    state, _ = after(shared(0.5), *[0.105] * 10)
    assert state.patience == 2
    state, decision = after(msgspec.structs.replace(state, since_s=0.0), *[0.1] * 10)
    assert decision is None
    state, decision = after(msgspec.structs.replace(state, since_s=0.0), *[0.1] * 10)
    assert decision is not None and decision.cause == "within"


def test_nothing_is_raised_while_steps_vary() -> None:
    steps_s = [0.05, 0.15] * 10
    state, decision = after(shared(0.5, since_s=0.0), *steps_s)
    assert decision is not None and decision.cause == "unstable"
    assert state.duty == 0.5
    state, decision = after(msgspec.structs.replace(state, since_s=0.0), *steps_s)
    assert decision is None, "told once"
    assert state.duty == 0.5


def test_a_window_lasts_until_its_mean_is_known_well() -> None:
    state = shared(0.5, since_s=9.0)
    state, decision = after(state, *[0.08, 0.12] * 5)
    assert decision is None and len(state.steps_s) == 10


def test_a_job_that_makes_no_steps_is_not_waited_for_long() -> None:
    state = shared(0.5, phase="alone", mode=GateMode.PAUSE, since_s=0.0)
    facts = SharingFacts(now_s=RULES.patience_s + 1, guaranteed="a", others=("b",))
    state, decision = decide(state, facts, RULES)
    assert decision is not None and decision.mode is GateMode.DUTY
    assert state.phase == "arrival"


def test_gaps_are_used_where_the_guaranteed_job_tells_of_them() -> None:
    facts = SharingFacts(now_s=10.0, guaranteed="a", others=("b",), tells_gaps=True)
    state, decision = decide(shared(0.5), facts, RULES)
    assert decision is not None and decision.cause == "gaps"
    assert state.mode is GateMode.GAP


def test_who_is_guaranteed() -> None:
    def job(name: str, share: str, since_s: float) -> SharingJob:
        return SharingJob(name=name, share=share, since_s=since_s)  # type: ignore[arg-type]

    assert guaranteed_of([]) == ""
    assert guaranteed_of([job("a", "opportunistic", 1.0)]) == ""
    open_ones = [job("b", "auto", 3.0), job("a", "auto", 2.0)]
    assert guaranteed_of(open_ones) == "a"
    assert guaranteed_of([*open_ones, job("c", "guaranteed", 9.0)]) == "c"


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "c"]),
        st.sampled_from([(), ("b",), ("b", "d")]),
        st.lists(st.floats(1e-4, 100.0), max_size=40),
        st.booleans(),
        st.floats(0.0, 60.0),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(CALLS)
def test_whatever_happens_duties_stay_in_their_range(calls: list[tuple[object, ...]]) -> None:
    state, now_s = SharingState(), 0.0
    for guaranteed, others, steps_s, tells, later_s in calls:
        now_s += later_s  # type: ignore[operator]
        facts = SharingFacts(
            now_s=now_s,
            guaranteed=guaranteed,  # type: ignore[arg-type]
            others=others,  # type: ignore[arg-type]
            steps_s=tuple(steps_s),  # type: ignore[arg-type]
            tells_gaps=tells,  # type: ignore[arg-type]
        )
        before = state
        state, decision = decide(state, facts, RULES)
        assert LEAST_DUTY <= state.duty <= 1.0
        assert (state.mode is GateMode.OFF) == (not (guaranteed and others))
        assert (state.mode is GateMode.PAUSE) == (state.phase == "alone")
        if decision is not None:
            assert (decision.mode, decision.duty) == (state.mode, state.duty)
            assert decision.why and decision.allowed
            assert len(msgspec.json.encode(decision)) < _DECISION_BYTES - 4
        else:
            assert (state.mode, state.duty) == (before.mode, before.duty)


@settings(max_examples=20, deadline=None)
@given(harm=st.floats(0.0, 1.5), noise=st.floats(0.0, 0.05), solo_s=st.floats(0.005, 0.3))
def test_the_budget_is_kept_whatever_the_core_is_like(
    harm: float, noise: float, solo_s: float
) -> None:
    core = Core(harm, solo_s, noise)
    core.run(2.0)
    core.others = ("b",)
    core.run(30.0)
    assert core.loss(since_s=2.0 + 1.5 * LOOK_S) <= RULES.budget + 0.005 + noise / 3


def test_the_duty_is_the_part_that_is_used() -> None:
    assert idle_s(0.01, 1.0) == 0.0
    assert idle_s(0.01, 0.5) == pytest.approx(0.01)
    assert idle_s(0.01, 0.02) == pytest.approx(0.49)


def test_the_middle_of_steps_is_not_that_of_its_ends() -> None:
    assert middle_mean([1.0] * 9 + [100.0]) == 1.0
    assert spread_of([1.0] * 9 + [100.0]) == 0.0
    assert spread_of([2.0]) == 0.0
