"""Recorded steps, made again under other plans."""

import numpy as np
import pytest

from paceline.features.stragglers.policy.trials import Patience, Recorded

SHARES = np.full(20, 1000.0)
WHOLE = Patience()
SOME_LEFT = Patience(left_out=2000)
IN_CHUNKS = Patience(left_out=2000, chunks=4)


def record(delays_s: np.ndarray, factors: np.ndarray) -> Recorded:
    return Recorded(delays_s, 0.002 * factors, 0.0, 0.1)


def test_who_waits_for_all_takes_as_long_as_the_slowest() -> None:
    factors = np.random.default_rng(0).lognormal(0.0, 0.2, (48, 20))
    (trial,) = record(np.zeros((48, 20)), factors).trials(SHARES, [WHOLE])
    assert trial.step_s == pytest.approx(0.1 + 2.0 * factors.max(axis=1).mean())
    assert trial.blocks_s.mean() == pytest.approx(trial.step_s, rel=0.01)


def test_contention_is_met_by_contributions_and_delays_are_not() -> None:
    rng = np.random.default_rng(0)
    contention = record(np.zeros((48, 20)), rng.lognormal(0.0, 0.3, (48, 20)))
    whole, left, chunks = contention.trials(SHARES, [WHOLE, SOME_LEFT, IN_CHUNKS])
    assert chunks.step_s < left.step_s < whole.step_s
    assert chunks.surely_saves(whole, 1.5) > 0.1 * whole.step_s
    delays = record(rng.exponential(1.0, (48, 20)), np.ones((48, 20)))
    left, chunks = delays.trials(SHARES, [SOME_LEFT, IN_CHUNKS])
    assert left.step_s < chunks.step_s


def test_a_grace_costs_nothing_while_nobody_is_late() -> None:
    whole, grace = record(np.zeros((10, 20)), np.ones((10, 20))).trials(
        SHARES, [WHOLE, Patience(late=2000, grace_s=0.1)]
    )
    assert grace.step_s == pytest.approx(whole.step_s)


def test_who_is_late_ends_its_batch_before_it_joins_a_step() -> None:
    """A delay of five steps costs five shares at least: it is late for those that follow, too."""
    delays_s = np.zeros((20, 20))
    delays_s[3, 7] = 10.5
    (trial,) = record(delays_s, np.ones((20, 20))).trials(SHARES, [SOME_LEFT])
    assert 2.1 * 400 / 395 <= trial.step_s <= 2.1 * 400 / 380
