"""A contribution in several batches is the mean over all their samples."""

import numpy as np
import pytest

from paceline.base.samples import Span
from paceline.runtime.data.work import Work
from paceline.runtime.holding.servers.accumulation import Accumulation
from paceline.runtime.server.store import Gradients


def work(size: int, step: int = 1) -> Work:
    return Work(0, (Span(0, 0, size),), size, step)


def gradients(size: int, dense: list[float], rows: dict[int, float]) -> Gradients:
    ids = np.array(list(rows), np.int64)
    values = np.array([[value] for value in rows.values()], np.float32)
    return Gradients({"float64": np.array(dense)}, {3: (ids, values)}, size, (0.1,), distinct=True)


def test_a_single_batch_is_handed_on_as_it_is() -> None:
    total, only, one = Accumulation(), gradients(3, [1.0], {5: 1.0}), work(3)
    total.add(one, only)

    assert total.take((0.1,)) == ([one], only)
    assert total.works == []


def test_each_sample_weighs_the_same_whatever_its_batch() -> None:
    total, works = Accumulation(), [work(1), work(3)]
    total.add(works[0], gradients(1, [4.0, 0.0], {7: 8.0, 2: 4.0}))
    total.add(works[1], gradients(3, [0.0, 4.0], {2: 4.0}))

    found, mean = total.take((0.5,))

    assert found == works
    assert mean.dense["float64"].tolist() == [1.0, 3.0]
    ids, rows = mean.sparse[3]
    assert dict(zip(ids.tolist(), rows[:, 0].tolist(), strict=True)) == {7: 2.0, 2: 4.0}
    assert (mean.weight, mean.rates, mean.distinct) == (4, (0.5,), True)
    assert rows.dtype == np.float32


def test_what_only_some_batches_have_counts_as_nothing_in_the_others() -> None:
    total = Accumulation()
    total.add(work(2), Gradients({}, {}, 2, (0.1,)))
    total.add(work(2), gradients(2, [4.0], {1: 2.0}))

    _, mean = total.take((0.1,))
    assert mean.dense["float64"].tolist() == [2.0]
    assert mean.sparse[3][1].tolist() == [[1.0]]


def test_after_it_was_taken_it_begins_anew() -> None:
    total = Accumulation()
    for _ in range(2):
        total.add(work(1), gradients(1, [1.0], {1: 1.0}))
    total.take((0.1,))
    total.add(work(1), gradients(1, [3.0], {1: 1.0}))

    works, mean = total.take((0.1,))
    assert len(works) == 1
    assert mean.dense["float64"] == pytest.approx([3.0])


def test_batches_of_a_step_that_was_decided_without_them_are_dropped() -> None:
    total, early, late = Accumulation(), work(1, step=4), work(1, step=5)
    total.add(early, gradients(1, [1.0], {1: 1.0}))
    total.add(late, gradients(1, [3.0], {1: 1.0}))

    works, mean = total.take((0.1,))
    assert works == [late]
    assert mean.dense["float64"].tolist() == [3.0]
