"""Change points: run lengths as Adams & MacKay have them, verification by medians."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.policy.stats.changes import Change, ChangePoints, Shift
from paceline.policy.stats.run_lengths import RunLengths


def log_marginal(values: list[float], mean: float, scale: float) -> float:
    """Of one run, its mean and variance integrated out (Murphy 2007, eq. 97)."""
    n, beta = len(values), 2.0 * scale * scale
    if n == 0:
        return 0.0
    average = sum(values) / n
    squares = sum((value - average) ** 2 for value in values)
    alpha, kappa = 1.0 + n / 2, 1.0 + n
    beta_n = beta + 0.5 * squares + n * (average - mean) ** 2 / (2.0 * kappa)
    return (
        math.lgamma(alpha)
        + math.log(beta)
        - alpha * math.log(beta_n)
        - 0.5 * math.log(kappa)
        - 0.5 * n * math.log(2.0 * math.pi)
    )


def brute_force(values: list[float], mean: float, scale: float, hazard: float) -> list[float]:
    """P(run length) after the values, by summing over where the last change point was.

    ``before[t]``: joint probability of the first t values and of a change point right after them.
    """
    joint = [0.0] * (len(values) + 1)
    before = [1.0]
    for t in range(1, len(values) + 1):
        joint = [0.0] * (t + 1)
        for run in range(1, t + 1):
            evidence = math.exp(log_marginal(values[t - run : t], mean, scale))
            joint[run] = before[t - run] * evidence * (1.0 - hazard) ** run
        # The run of length r survived r times, or survived r - 1 times and then ended.
        joint[0] = sum(joint) * hazard / (1.0 - hazard)
        before.append(joint[0])
    return [each / sum(joint) for each in joint]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=12))
def test_run_lengths_equal_the_sum_over_all_segmentations(values: list[float]) -> None:
    runs = RunLengths(mean=1.0, scale=0.1, hazard=0.05)
    for value in values:
        runs.update(value)
    expected = brute_force(values, 1.0, 0.1, 0.05)
    assert np.exp(runs.log_weights) == pytest.approx(expected, abs=1e-6)


def test_the_probability_of_run_length_zero_is_the_hazard_whatever_is_seen() -> None:
    runs = RunLengths(mean=1.0, scale=0.02)
    for value in [1.0, 1.01, 0.99] * 20 + [1.3] * 5 + [30.0]:
        runs.update(value)
        assert math.exp(runs.log_weights[0]) == pytest.approx(1 / 250, abs=1e-12)


def test_memory_is_bounded_and_weights_stay_a_distribution() -> None:
    runs = RunLengths(mean=1.0, scale=0.02, longest=50)
    for value in np.random.default_rng(0).normal(1.0, 0.02, 5000):
        runs.update(float(value))
    runs.update(30.0)
    assert len(runs.log_weights) == 50
    assert runs.mass(0, 49) == pytest.approx(1.0)
    assert np.isfinite(runs.log_weights).all()


# ------------------------------------------------------------------------- verified changes


def noisy(*levels: tuple[float, int], noise: float = 0.02, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(level, noise * level, count) for level, count in levels]
    return [float(value) for value in np.concatenate(parts)]


def found(values: list[float], **parameters: float) -> list[tuple[int, Change]]:
    changes = ChangePoints(**parameters)  # type: ignore[arg-type]
    seen = [(index, changes.update(value)) for index, value in enumerate(values)]
    return [(index, change) for index, change in seen if change is not None]


def test_onset_and_relief_are_found_within_five_values() -> None:
    (first, onset), (second, relief) = found(noisy((1.0, 60), (1.3, 60), (1.0, 60)))
    assert (onset.shift, relief.shift) == (Shift.ONSET, Shift.RELIEF)
    assert 60 + 2 <= first <= 60 + 4
    assert 120 + 2 <= second <= 120 + 4
    assert onset.before == pytest.approx(1.0, rel=0.03)
    assert onset.after == pytest.approx(1.3, rel=0.03)
    assert first - onset.values + 1 == 60
    assert second - relief.values + 1 == 120


def test_a_series_without_noise_is_watched_as_well() -> None:
    ((at, change),) = found([1.0] * 40 + [1.2] * 10)
    assert (at, change.shift, change.values) == (42, Shift.ONSET, 3)


def test_a_spike_is_no_change() -> None:
    values = noisy((1.0, 200))
    for at in (50, 90, 140):
        values[at] *= 30.0
    assert found(values) == []
    values[141] *= 3.0
    assert found(values, verify=5) == []


def test_a_step_below_the_threshold_is_no_change() -> None:
    assert found(noisy((1.0, 100), (1.06, 100))) == []


def test_small_steps_add_up_against_the_healthy_level() -> None:
    changes = found(noisy((1.0, 60), (1.07, 60), (1.14, 60), noise=0.01))
    assert [change.shift for _, change in changes] == [Shift.ONSET]
    assert changes[0][1].before == pytest.approx(1.0, rel=0.02)
    assert 120 < changes[0][0] < 140


def test_half_a_relief_is_not_followed_by_another_onset() -> None:
    changes = found(noisy((1.0, 60), (2.0, 60), (1.5, 60)))
    assert [change.shift for _, change in changes] == [Shift.ONSET, Shift.RELIEF]


def test_a_change_within_the_warm_up_is_found_at_its_end() -> None:
    ((at, change),) = found(noisy((1.0, 12), (1.5, 60)))
    assert at == 29
    assert at - change.values + 1 == 12


def test_a_rescaled_series_is_watched_from_its_first_value_on() -> None:
    changes = ChangePoints()
    for value in noisy((1.0, 60)):
        changes.update(value)
    changes.rescale(0.5)
    seen = [changes.update(value) for value in noisy((0.5, 10), (0.7, 4))]
    assert [change.shift for change in seen if change] == [Shift.ONSET]


def test_false_alarms_and_misses_on_many_jobs_stay_within_what_the_method_promises() -> None:
    """One third of 60 jobs has an episode of +15 to +100 %; all have spikes and +-7 % shifts."""
    rng = np.random.default_rng(7)
    false, missed = 0, 0
    for job in range(60):
        values = np.array(noisy((1.0, 300), seed=job))
        values[150:] *= 1.0 + rng.uniform(-0.07, 0.07)
        values[rng.random(300) < 0.006] *= 1.8
        ill = job % 3 == 0
        if ill:
            values[200:260] *= rng.uniform(1.15, 2.0)
        onsets = [at for at, change in found(list(values)) if change.shift is Shift.ONSET]
        false += any(not (ill and 200 <= at < 260) for at in onsets)
        missed += ill and not any(200 <= at < 210 for at in onsets)
    assert false <= 2
    assert missed <= 1
