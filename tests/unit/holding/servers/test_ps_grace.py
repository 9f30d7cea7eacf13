"""The leader's clock for what is late."""

import pytest

from paceline.runtime.server.grace import Grace


def test_a_grace_counts_from_the_first_look() -> None:
    grace = Grace()
    assert not grace.is_over(1, 0.3, 10.0)
    assert grace.left_s(0.05, 10.0) == 0.05
    assert grace.left_s(0.05, 10.28) == pytest.approx(0.02)
    assert not grace.is_over(1, 0.3, 10.29)
    assert grace.is_over(1, 0.3, 10.31)


def test_without_one_there_is_nothing_to_wait_for() -> None:
    grace = Grace()
    assert not grace.is_over(1, None, 10.0)
    assert grace.left_s(0.05, 99.0) == 0.05
    assert grace.is_over(1, 0.0, 10.0)


def test_the_next_step_has_a_grace_of_its_own() -> None:
    grace = Grace()
    assert not grace.is_over(1, 0.3, 10.0)
    assert not grace.is_over(2, 0.3, 10.4)
    assert grace.is_over(2, 0.3, 10.71)


def test_what_is_lost_again_is_waited_for_anew() -> None:
    """The step lacked too much when the grace was over, or in between: a worker was fenced."""
    grace = Grace()
    assert not grace.is_over(1, 0.3, 10.0)
    assert grace.is_over(1, 0.3, 10.4)
    assert not grace.is_over(1, 0.3, 10.5)
    assert not grace.is_over(1, None, 10.6)
    assert not grace.is_over(1, 0.3, 10.7)
    assert grace.left_s(1.0, 10.7) == pytest.approx(0.3)
