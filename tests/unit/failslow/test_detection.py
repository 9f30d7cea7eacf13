"""The job's detector: verified onsets and reliefs from the times of steps, whatever their lengths."""

import numpy as np
import pytest

from paceline.features.failslow.policy.detection import (
    PaceChange,
    SlowJobDetector,
    StepFact,
    StepGroups,
)
from paceline.policy.stats.changes import Shift
from paceline.policy.stats.noisy import NoisyChangePoints
from paceline.wire.step_ledger import Mark


def noisy(*levels: tuple[float, int], noise: float = 0.02, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    parts = [level * np.exp(rng.normal(0.0, noise, count)) for level, count in levels]
    return [float(value) for value in np.concatenate(parts)]


def facts(times_s: list[float], amounts: list[float] | None = None) -> list[StepFact]:
    ends = np.cumsum(times_s)
    return [
        StepFact(
            number=number,
            end_s=float(ends[number]),
            took_s=took_s,
            amount=None if amounts is None else amounts[number],
        )
        for number, took_s in enumerate(times_s)
    ]


def found(steps: list[StepFact]) -> list[PaceChange]:
    detector = SlowJobDetector()
    return [change for change in map(detector.update, steps) if change is not None]


def lengths(count: int, cv: float, seed: int = 0) -> np.ndarray:
    sigma = np.sqrt(np.log1p(cv * cv))
    return np.random.default_rng(seed).lognormal(-sigma * sigma / 2, sigma, count)


def test_onset_and_relief_are_found_within_five_steps_and_dated() -> None:
    onset, relief = found(facts(noisy((1.0, 60), (1.3, 60), (1.0, 60))))
    assert (onset.shift, onset.slow) == (Shift.ONSET, True)
    assert (relief.shift, relief.slow) == (Shift.RELIEF, False)
    assert onset.since_step == 60
    assert onset.since_s == pytest.approx(60.0, rel=0.02)
    assert onset.found_step <= 64
    assert (relief.since_step, relief.found_step <= 124) == (120, True)
    assert (onset.before_s, onset.after_s) == pytest.approx((1.0, 1.3), rel=0.03)


def test_a_small_onset_of_an_even_job_is_found_as_soon() -> None:
    (onset,) = found(facts(noisy((1.0, 100), (1.15, 20))))
    assert (onset.since_step, onset.found_step <= 104) == (100, True)


@pytest.mark.parametrize("seed", range(8))
def test_the_end_of_a_short_slowness_of_a_noisy_job_is_found(seed: int) -> None:
    changes = found(facts(noisy((1.0, 100), (2.0, 20), (1.0, 60), noise=0.2, seed=seed)))
    assert [(change.shift, change.slow) for change in changes] == [
        (Shift.ONSET, True),
        (Shift.RELIEF, False),
    ]
    assert abs(changes[1].since_step - 120) <= 3


@pytest.mark.parametrize("mark", [one for one in Mark if one])
def test_marked_steps_are_left_out(mark: Mark) -> None:
    times_s = noisy((1.0, 200))
    steps = facts([4.0 * one if 60 <= at < 70 else one for at, one in enumerate(times_s)])
    assert found(steps) != []
    marked = [
        StepFact(number=one.number, end_s=one.end_s, took_s=one.took_s, marks=mark)
        if 60 <= one.number < 70
        else one
        for one in steps
    ]
    assert found(marked) == []


def test_variable_lengths_alarm_neither_with_nor_without_known_amounts() -> None:
    for cv in (0.1, 0.4):
        for seed in range(3):
            work = lengths(600, cv, seed)
            times_s = list((0.3 + 0.7 * work) * noisy((1.0, 600), seed=seed))
            assert found(facts(times_s)) == []
            assert found(facts(times_s, list(work))) == []


def test_with_known_amounts_a_change_is_found_as_soon_as_in_an_even_job() -> None:
    work = lengths(300, 0.4)
    times_s = list((0.3 + 0.7 * work) * noisy((1.0, 200), (1.2, 100)))
    (onset,) = found(facts(times_s, list(work)))
    assert (onset.since_step, onset.found_step <= 205) == (200, True)
    assert onset.after_s / onset.before_s == pytest.approx(1.2, rel=0.03)


def test_without_them_a_large_change_is_found_soon_and_a_smaller_one_later() -> None:
    late = []
    for factor in (2.0, 1.4):
        times_s = list(lengths(600, 0.3) * np.repeat([1.0, factor], 300))
        (onset,) = found(facts(times_s))
        assert onset.shift is Shift.ONSET
        late.append(onset.found_step - 300)
    assert 0 <= late[0] <= 16
    assert late[0] < late[1] < 100


def test_amounts_that_are_not_known_of_all_steps_are_of_no_use() -> None:
    steps = facts(noisy((1.0, 40), (1.4, 40)), [100.0] * 80)
    steps[10] = StepFact(number=10, end_s=steps[10].end_s, took_s=steps[10].took_s)
    (onset,) = found(steps)
    assert onset.since_step == 40


def test_small_steps_add_up_and_so_does_their_end() -> None:
    onset, relief = found(
        facts(noisy((1.0, 150), (1.07, 100), (1.14, 150), (1.07, 60), (1.0, 60), noise=0.01))
    )
    assert (onset.shift, relief.shift, relief.slow) == (Shift.ONSET, Shift.RELIEF, False)
    assert 250 <= onset.since_step < onset.found_step < 300
    assert onset.before_s == pytest.approx(1.0, rel=0.02)
    assert relief.found_step > 400


def test_half_a_relief_leaves_the_job_slow() -> None:
    changes = found(facts(noisy((1.0, 100), (2.0, 100), (1.4, 100))))
    assert [(one.shift, one.slow) for one in changes] == [
        (Shift.ONSET, True),
        (Shift.RELIEF, True),
    ]


def test_spikes_are_no_change_unless_they_last() -> None:
    times_s = noisy((1.0, 300))
    for at in (50, 51, 52, 120, 200, 202):
        times_s[at] *= 30.0
    assert found(facts(times_s)) == []


def test_noise_that_neighbours_share_is_no_change() -> None:
    """Lengths that a bucketing sampler draws: 8 batches of nearly the same length in a row."""
    for seed in range(4):
        times_s = np.repeat(lengths(150, 0.15, seed), 8) * np.array(noisy((1.0, 1200), seed=seed))
        assert found(facts(list(times_s))) == []


def test_times_that_a_coarse_clock_rounds_are_watched_as_well() -> None:
    rng = np.random.default_rng(0)
    times_s = np.round(rng.choice([1.0, 1.5, 2.0], 200), 1)
    assert found(facts(list(np.repeat(times_s, 3)))) == []
    (onset,) = found(facts([1.0] * 60 + [1.2] * 10))
    assert (onset.since_step, onset.found_step <= 64) == (60, True)


def test_seconds_lost_are_counted_while_the_job_is_slow() -> None:
    detector = SlowJobDetector()
    steps = facts(noisy((1.0, 100), (1.5, 50), (1.0, 20)))
    lost_s = 0.0
    for one in steps:
        detector.update(one)
        lost_s += detector.lost_s(one)
    assert lost_s == pytest.approx(0.5 * 46, rel=0.1)
    assert detector.healthy_s is None


def test_memory_is_bounded() -> None:
    detector = SlowJobDetector()
    for one in facts(noisy((1.0, 3000))):
        detector.update(one)
    assert len(detector._begins) < 1000
    assert len(detector._changes._values) < 1000


def test_short_steps_are_grouped_into_means_of_a_tenth_of_a_second() -> None:
    groups = StepGroups()
    steps = facts([0.03] * 12, [10.0] * 12)
    steps[2] = StepFact(number=2, end_s=steps[2].end_s, took_s=9.0, marks=Mark.CHECKPOINT)
    whole = [one for one in map(groups.add, steps) if one is not None]
    assert [(one.first, one.number, one.steps) for one in whole] == [(0, 4, 4), (5, 8, 4)]
    assert all(one.took_s == pytest.approx(0.03) for one in whole)
    assert all(one.amount == 10.0 for one in whole)


def test_a_step_that_is_long_enough_is_a_group_of_its_own() -> None:
    groups = StepGroups()
    (step,) = facts([0.2])
    group = groups.add(step)
    assert group is not None
    assert (group.number, group.first, group.took_s, group.amount) == (0, 0, 0.2, None)


def test_grouped_steps_tell_the_step_that_a_change_began_with() -> None:
    groups, detector = StepGroups(), SlowJobDetector()
    changes = []
    for one in facts(noisy((0.01, 1000), (0.013, 300))):
        group = groups.add(one)
        if group is not None:
            changes.append(detector.update(group))
    (onset,) = [one for one in changes if one is not None]
    assert 985 <= onset.since_step <= 1015
    assert onset.found_step < 1060


def test_a_wider_threshold_finds_only_larger_changes() -> None:
    changes = NoisyChangePoints(threshold=0.3)
    seen = [changes.update(one) for one in noisy((1.0, 60), (1.2, 60), (1.6, 60))]
    assert [one.shift for one in seen if one is not None] == [Shift.ONSET]


@pytest.mark.parametrize("healthy", [40, 60, 150, 300])
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.2])
def test_a_slowness_that_stays_is_no_relief(healthy: int, noise: float) -> None:
    """The job has had no long healthy time yet, or was too noisy for its level to be known."""
    for seed in range(5):
        changes = found(facts(noisy((1.0, healthy), (3.0, 700), noise=noise, seed=seed)))
        assert [change.shift for change in changes] == [Shift.ONSET], seed
