"""Restarts that are worth most: against all that there are."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from paceline_experiments.sim.costs import Floats
from paceline_experiments.stragglers.best_restarts import best_restarts


def test_a_node_is_restarted_when_that_is_worth_most() -> None:
    at_s = np.arange(100.0)
    lives = [np.where(at_s < 40, 1.1, 0.1)] + [np.ones(100)] * 100
    assert best_restarts(lives.__getitem__, at_s, away_s=10.0, loss=0.1) == [40.0]


def test_a_node_is_not_restarted_for_less_than_it_costs() -> None:
    at_s = np.arange(100.0)
    lives = [np.where((at_s >= 40) & (at_s < 45), 0.1, 1.0)] + [np.ones(100)] * 100
    assert best_restarts(lives.__getitem__, at_s, away_s=10.0, loss=0.1) == []


def test_a_bad_life_is_gone_through_for_a_better_one() -> None:
    at_s = np.arange(100.0)
    lives = [np.full(100, 0.2), np.full(100, 0.1), np.zeros(100)] + [np.ones(100)] * 100
    assert best_restarts(lives.__getitem__, at_s, away_s=5.0, loss=0.1) == [0.0, 5.0, 10.0]


def test_lives_that_are_better_and_better_come_to_an_end() -> None:
    at_s = np.arange(300.0)
    restarts = best_restarts(
        lambda life: np.full(300, float(life)), at_s, away_s=0.0, least_s=1.0, loss=1e-9
    )
    assert 100 <= len(restarts) < 300


LENGTH = 5
LIVES = st.lists(
    st.lists(st.integers(-4, 4), min_size=LENGTH, max_size=LENGTH), min_size=1, max_size=4
)


@given(
    lives=LIVES,
    away=st.integers(0, 2),
    least=st.integers(0, LENGTH + 1),
    loss=st.sampled_from([0.25, 1.0, 3.5]),
    by_age=st.booleans(),
)
def test_no_restarts_are_worth_more(
    lives: list[list[int]], away: int, least: int, loss: float, by_age: bool
) -> None:
    nothing = np.full(LENGTH, -1e6)

    def worth(life: int) -> Floats:
        return np.array(lives[life], dtype=np.float64) if life < len(lives) else nothing

    def best(life: int, begin: int) -> float:
        """What a life and all after it are worth at most, over all moments to end it."""
        shift = begin if by_age else 0
        of_life = worth(life)
        totals = [of_life[begin - shift : LENGTH - shift].sum()]
        if away or life < len(lives):  # else it would go on for ever
            totals += [
                of_life[begin - shift : end - shift].sum()
                - loss
                + best(life + 1, min(LENGTH, end + away))
                for end in range(min(LENGTH, begin + least), LENGTH)
            ]
        return float(max(totals))

    restarts = best_restarts(
        worth, np.arange(float(LENGTH)), away, least_s=least, loss=loss, by_age=by_age
    )
    total, begin = 0.0, 0
    for life, end in enumerate([*map(int, restarts), LENGTH]):
        shift = begin if by_age else 0
        assert end == LENGTH or end >= begin + least
        total += worth(life)[begin - shift : end - shift].sum()
        begin = min(LENGTH, end + away)
    assert total - loss * len(restarts) == best(0, 0)
