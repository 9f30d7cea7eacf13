"""What ``experiments/benchmarks/restart_redo.py`` makes of its records."""

import numpy as np
import pytest
import restart_redo


def test_a_sample_counts_for_the_first_kill_after_it_was_begun_in_vain() -> None:
    """Ten samples a second; the kill at 5 s loses three of them, the one at 8 s one."""
    rows = [(k / 10, k) for k in range(100)]
    rows += [(5.95, 47), (5.96, 48), (5.97, 49), (9.95, 79)]
    windows = [restart_redo.Window(5.0, 5.0, 5.9, 6.0), restart_redo.Window(8.0, 8.0, 8.1, 9.0)]
    first, second = restart_redo.costs(np.array(rows), windows, 0.0, 10.0)
    assert (first["samples_twice"], second["samples_twice"]) == (3, 1)


def test_idle_is_what_the_undisturbed_rate_would_have_done_in_the_time() -> None:
    times = np.concatenate([np.arange(40) / 10 + 0.05, np.arange(55, 100) / 10 + 0.05])
    rows = np.stack([times, np.arange(times.size)], axis=1)
    (found,) = restart_redo.costs(rows, [restart_redo.Window(4.0, 4.0, 5.5, 6.0)], 0.0, 10.0)
    assert found["samples_twice"] == 0
    assert found["idle_s"] == pytest.approx(1.5)
    assert found["samples_per_s"] == pytest.approx(10.0)
    assert found["all_train_after_s"] == 1.5
