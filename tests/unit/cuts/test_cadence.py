"""When the next cut is due."""

import pytest

from paceline.protocol.cuts.cadence import (
    FIRST_S,
    LEAST_S,
    PRIOR_S,
    Cadence,
    between_failures_s,
    young_daly_s,
)
from paceline.wire.spec import CheckpointSpec


def begun(cost_s: float | None = None, **spec: float | int | None) -> Cadence:
    """At 100 s."""
    cadence = Cadence(CheckpointSpec(**spec))
    assert not cadence.is_due(100.0, 0)
    if cost_s is not None:
        cadence.cost(cost_s)
        cadence.ended(100.0)
    return cadence


def first_due_s(cadence: Cadence, num_steps: int = 10**6) -> float:
    """Seconds after 100 s, to a tenth."""
    return next(n / 10 for n in range(10**6) if cadence.is_due(100.0 + n / 10, num_steps))


def test_time_or_share_whichever_is_rarer() -> None:
    assert first_due_s(begun(0.01, every_s=5.0)) == 5.0
    assert first_due_s(begun(1.0, every_s=5.0)) == 50.0


def test_unasked_the_interval_is_the_best_for_what_a_cut_costs() -> None:
    assert first_due_s(begun()) == FIRST_S
    # Watched for so long without a failure, they are expected a little later than before.
    assert first_due_s(begun(0.02)) == pytest.approx((2 * 0.02 * PRIOR_S) ** 0.5, rel=0.01)
    assert first_due_s(begun(2.0)) == pytest.approx((2 * 2.0 * PRIOR_S) ** 0.5, rel=0.02)
    assert first_due_s(begun(1e-6)) == LEAST_S


def test_what_goes_back_often_is_kept_often() -> None:
    calm, troubled = begun(0.5), begun(0.5)
    for _ in range(8):
        troubled.went_back(100.0)
    assert first_due_s(troubled) == pytest.approx(first_due_s(calm) / 3, rel=0.01)


def test_failures_are_expected_as_often_as_seen_in_the_end() -> None:
    assert between_failures_s(0, 0.0) == PRIOR_S
    assert between_failures_s(99, 100 * 3600.0) == pytest.approx(3600.0, rel=0.04)


def test_the_interval_is_where_least_is_lost() -> None:
    cost_s, failures_s = 3.0, 5000.0

    def lost(interval_s: float) -> float:
        return cost_s / interval_s + interval_s / 2 / failures_s

    best = young_daly_s(cost_s, failures_s)
    assert lost(best) < min(lost(best * 0.9), lost(best * 1.1))


@pytest.mark.parametrize(("every_s", "due_s"), [(None, 50.0), (5.0, 5.0)])
def test_with_steps_and_seconds_whichever_is_first(every_s: float | None, due_s: float) -> None:
    cadence = begun(0.001, every_s=every_s, every_steps=1000)
    # Twenty steps a second.
    found = next(n / 20 for n in range(10**5) if cadence.is_due(100.0 + n / 20, n))
    assert found == pytest.approx(due_s)


def test_steps_that_are_too_short_for_their_cuts_get_fewer_of_them() -> None:
    assert first_due_s(begun(0.4, every_steps=1, share=0.1)) == 4.0


def noted(cadence: Cadence, for_s: float, steps_per_s: int = 20) -> list[str]:
    """What is told, in words, while 20 steps are done each second."""
    notes = []
    for tick in range(round(for_s * 10)):
        cadence.is_due(100.0 + tick / 10, tick * steps_per_s // 10)
        notes += [note.clause] if (note := cadence.note()) else []
    return notes


def test_cuts_that_are_rarer_than_asked_for_are_told_once() -> None:
    cadence = begun(1.0, every_s=5.0)
    assert noted(cadence, 49.0) == [], "the first one costs more than others"
    cadence.cost(0.24)
    why = "one costs 0.24 s, and checkpoint.share is 0.02"
    assert noted(cadence, 11.0) == [f"cuts every 12 s instead of 5 s: {why}"]
    assert noted(cadence, 11.0) == []
    for spec, asked in (
        ({"every_steps": 100}, "100 steps"),
        ({"every_steps": 100, "every_s": 5.0}, "5 s or 100 steps"),
    ):
        cadence = begun(0.24, **spec)
        cadence.cost(0.24)
        assert noted(cadence, 11.0) == [f"cuts every 12 s instead of {asked}: {why}"]


def test_nobody_is_told_of_cuts_that_come_as_asked_for_or_were_not_asked_for() -> None:
    for spec in ({}, {"every_s": 11.0}, {"every_steps": 240}, {"every_s": 5.0, "share": 0.5}):
        cadence = begun(0.24, **spec)
        cadence.cost(0.24)
        assert noted(cadence, 30.0) == []
