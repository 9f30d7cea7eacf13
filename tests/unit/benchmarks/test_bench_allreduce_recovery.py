"""What ``experiments/benchmarks/allreduce_recovery.py`` makes of its records."""

import allreduce_recovery
import numpy as np
import pytest

STEPS = np.array([[t, n] for n, t in enumerate([9.90, 9.95, 10.0], 30)])
"""Two workers have these; the second is killed at 10.01 s."""
KILLED_S = 10.01


def kill(survivor: list[tuple[float, float]], *others: object) -> object:
    rows = {1: np.vstack([STEPS, *([survivor] if survivor else [])]), 2: STEPS}
    rows |= {3 + k: np.array(other) for k, other in enumerate(others)}
    return allreduce_recovery.outcome(rows, 2, KILLED_S)


def test_the_step_under_way_at_the_kill_is_not_the_next_one() -> None:
    found = kill([(10.02, 33), (10.16, 34)])
    assert found.seconds == pytest.approx(0.15)
    assert found.lost == 0


def test_nor_is_the_same_step_of_a_member_that_is_later_with_it() -> None:
    found = kill([(10.02, 33), (10.16, 34)], [(10.06, 33), (10.17, 34)])
    assert found.seconds == pytest.approx(0.15)
    assert found.lost == 0


def test_a_step_of_which_the_victim_had_no_share_counts_however_soon() -> None:
    found = kill([(10.012, 33), (10.078, 34)])
    assert found.seconds == pytest.approx(0.068)
    assert found.lost == 0


def test_a_broken_step_that_is_done_again_counts() -> None:
    found = kill([(10.11, 33)])
    assert found.seconds == pytest.approx(0.1)
    assert found.lost == 0


def test_who_begins_again_has_lost_all_that_was_in_the_model() -> None:
    found = kill([], [(14.0, 1), (14.05, 2)])
    assert found.seconds == pytest.approx(3.99)
    assert found.lost == 32


def test_a_kill_that_nothing_follows_has_no_time() -> None:
    found = kill([(10.02, 33)])
    assert found.seconds is None
    assert allreduce_recovery.row_of([found])["never"] == 1
