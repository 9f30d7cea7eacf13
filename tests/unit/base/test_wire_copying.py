"""Large copies by two threads."""

import os

import numpy as np
import pytest

from paceline.base.copying import LARGE_BYTES, copy


@pytest.mark.parametrize("size", [0, 1, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1])
def test_every_byte_arrives_and_no_other_is_touched(size: int) -> None:
    source = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    target = np.full(size + 2, 7, np.uint8)
    copy(target[1:-1], source)
    assert np.array_equal(target[1:-1], source)
    assert (target[0], target[-1]) == (7, 7)


def test_a_fork_copies_with_a_thread_of_its_own() -> None:
    source = np.ones(LARGE_BYTES, np.uint8)
    copy(np.empty_like(source), source)
    pid = os.fork()
    if pid == 0:
        target = np.zeros_like(source)
        copy(target, source)
        os._exit(0 if target.all() else 1)
    assert os.waitpid(pid, 0)[1] == 0
