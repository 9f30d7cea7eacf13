"""What the bench of real faults draws, and which verdicts it takes for right."""

import random

import pytest
from paceline_experiments.failslow.faults import SIZE, InjectedFault, draw_link
from paceline_experiments.failslow.trials import CASES, FaultTrial, judge

from paceline.features.failslow.events import Culprit, DiagnosedEvent, SlowedEvent

RANK = InjectedFault(way="quota", ranks=(3,), factor=2.0)
CABLE = InjectedFault(way="cable", ranks=(2,), factor=2.0)
LINK = InjectedFault(way="link", ranks=(4, 6), factor=2.0)


def verdict(culprit: Culprit, *ranks: int, t: float = 0.0) -> DiagnosedEvent:
    return DiagnosedEvent(culprit=culprit, nodes=tuple(f"worker-{rank}" for rank in ranks), t=t)


@pytest.mark.parametrize(
    ("fault", "right", "wrong"),
    [
        (RANK, [("computation", 3)], [("computation", 2), ("link", 3), ("link", 2, 3)]),
        (LINK, [("link", 4, 6), ("link", 6, 4)], [("link", 4), ("link", 4, 5), ("nothing",)]),
        (CABLE, [("link", 2), ("link", 0, 2)], [("link", 0), ("link", 0, 1), ("computation", 2)]),
    ],
)
def test_a_verdict_is_right_if_it_names_what_was_made_slow(
    fault: InjectedFault,
    right: list[tuple[Culprit, *tuple[int, ...]]],
    wrong: list[tuple[Culprit, *tuple[int, ...]]],
) -> None:
    assert all(fault.is_named_by(verdict(*each)) for each in right)
    assert not any(fault.is_named_by(verdict(*each)) for each in wrong)


def judged(*told: DiagnosedEvent) -> FaultTrial:
    trial = FaultTrial(case="both", seed=0, faults=(RANK, LINK))
    judge(trial, [SlowedEvent(step=1, before_s=1.0, after_s=2.0), *told], onset_s=10.0)
    return trial


def test_a_trial_is_right_if_all_faults_are_named_and_nothing_else() -> None:
    both = verdict("computation", 3, t=12.0), verdict("link", 4, 6, t=13.5)
    assert judged(*both).right and judged(*both).verdict_s == pytest.approx(3.5)
    assert not judged(both[0]).right
    assert not judged().right
    assert not judged(*both, verdict("computation", 5, t=13.5)).right


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_seed_draws_the_same_faults_again_and_two_apart(case: object) -> None:
    draw = case.draw  # type: ignore[attr-defined]
    for seed in range(50):
        faults = draw(random.Random(seed))
        assert faults == draw(random.Random(seed))
        touched = [rank for fault in faults for rank in fault.ranks]
        assert len(set(touched)) == len(touched)


def test_links_are_drawn_between_ranks_that_send_to_each_other() -> None:
    rng = random.Random(1)
    drawn = [draw_link(rng) for _ in range(200)]
    links = {fault.ranks for fault in drawn if fault.way == "link"}
    cube = {(a, b) for a in range(SIZE) for b in range(a + 1, SIZE) if (a ^ b) in (1, 2, 4)}
    assert links == cube
    assert {fault.ranks[0] for fault in drawn if fault.way == "cable"} == set(range(SIZE))
