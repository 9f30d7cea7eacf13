"""What ``experiments/benchmarks/checkpoint.py`` makes of its records."""

from pathlib import Path

import checkpoint
import numpy as np
import pytest
from paceline_experiments.harness import ArmError


def rows(steps: list[tuple[float, float, float, float]]) -> np.ndarray:
    """Of steps of which it is given: seconds before, of compute, of the update, and the factor."""
    found, at_s = [], 100.0
    for before_s, compute_s, update_s, factor in steps:
        begun_s = at_s + before_s
        backward_s = begun_s + compute_s
        found.append((at_s, begun_s, backward_s, backward_s + update_s, factor))
        at_s = found[-1][3]
    return np.array(found)


USUAL, SHORT = (0.01, 0.2, 0.02, 1.0), (0.01, 0.1, 0.02, 0.5)


def test_a_save_costs_what_its_step_takes_beyond_the_usual() -> None:
    """The call takes 0.03 s, its update waits for 0.05 s, and compute is slower by half."""
    steps = [USUAL] * 4 + [(0.04, 0.3, 0.07, 1.0)] + [(0.01, 0.25, 0.02, 1.0)] * 2 + [USUAL] * 4
    table = rows(steps)
    _, save = checkpoint.saves_of(table, [(1, float(table[1, 3])), (4, float(table[6, 3]))])
    assert save.factor == 1.0
    assert save.blocked_s == pytest.approx(0.08)
    assert save.longer_s == pytest.approx(0.18)
    assert save.beside == pytest.approx(1.5)
    assert save.writing == pytest.approx(1.25)
    assert save.stored_s == pytest.approx(0.41 + 2 * 0.28)


def test_steps_that_compute_for_less_are_compared_with_as_much_less() -> None:
    table = rows([USUAL] * 4 + [SHORT] * 4 + [(0.01, 0.15, 0.02, 0.5)] + [SHORT] * 3)
    _, save = checkpoint.saves_of(table, [(1, float(table[1, 3])), (8, float(table[8, 3]))])
    assert save.factor == 0.5
    assert save.blocked_s == pytest.approx(0.0, abs=1e-9)
    assert save.longer_s == pytest.approx(0.05)
    assert save.beside == pytest.approx(1.5)
    assert save.writing is None


def test_the_first_save_costs_what_a_step_before_it_waited_for_its_memory() -> None:
    table = rows([USUAL] * 4 + [(0.01, 5.2, 0.02, 1.0)] + [USUAL] * 6)
    first, second = checkpoint.saves_of(table, [(6, float(table[6, 3])), (9, float(table[9, 3]))])
    assert first.blocked_s == pytest.approx(0.0, abs=1e-9)
    assert first.longer_s == pytest.approx(5.0)
    assert second.longer_s == pytest.approx(0.0, abs=1e-9)


def test_one_save_says_nothing() -> None:
    table = rows([USUAL] * 4)
    with pytest.raises(ArmError, match="1 saves in 4 steps"):
        checkpoint.saves_of(table, [(1, float(table[1, 3]))])


def test_a_size_that_has_no_room_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(checkpoint.NoRoomError, match=r"needs 1003\.0 GiB of memory"):
        checkpoint.check_room(checkpoint.ARMS["torch.save"], 1000 << 30, 3, tmp_path)
