"""Positions of an epoch map to records one to one, whoever asks for whichever part."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.base.errors import ConfigError, InternalError
from paceline.runtime.data.order import AHEAD, EpochOrder, IndicesAhead
from paceline.runtime.data.walks import IntArray


@pytest.mark.parametrize("window_shards", [None, 1, 3])
@pytest.mark.parametrize("shard_size", [1, 2, 3, 7, 100])
def test_an_epoch_visits_every_record_once(shard_size: int, window_shards: int | None) -> None:
    for num_samples in range(40):
        order = EpochOrder(num_samples, shard_size, seed=num_samples, window_shards=window_shards)
        seen = order.indices(0, 0, num_samples)
        assert sorted(seen.tolist()) == list(range(num_samples))


@given(
    num_samples=st.integers(0, 300),
    shard_size=st.integers(1, 40),
    window_shards=st.none() | st.integers(1, 5),
    cuts=st.lists(st.floats(0, 1), max_size=6),
    epoch=st.integers(0, 2**40),
)
def test_any_cutting_of_the_epoch_gives_the_same_order(
    num_samples: int, shard_size: int, window_shards: int | None, cuts: list[float], epoch: int
) -> None:
    order = EpochOrder(num_samples, shard_size, seed=9, window_shards=window_shards)
    edges = sorted({0, num_samples, *(int(c * num_samples) for c in cuts)})
    parts = [order.indices(epoch, a, b) for a, b in pairwise(edges)]
    whole = order.indices(epoch, 0, num_samples)
    assert [i for part in parts for i in part.tolist()] == whole.tolist()


def test_records_of_one_shard_stay_together() -> None:
    seen = EpochOrder(1000, 100, seed=1).indices(0, 0, 1000).reshape(10, 100) // 100
    assert (seen == seen[:, :1]).all()
    assert seen[:, 0].tolist() != list(range(10))


def test_only_one_shard_is_short_and_the_shuffle_places_it() -> None:
    ranks = set()
    for seed in range(20):
        shards = EpochOrder(35, 10, seed).indices(0, 0, 35) // 10
        _, counts = np.unique(shards, return_counts=True)
        assert counts.tolist() == [10, 10, 10, 5]
        ranks.add(int(np.flatnonzero(shards == 3)[0]))
    assert ranks == {0, 10, 20, 30}


def test_epochs_and_seeds_give_different_orders() -> None:
    orders = {
        tuple(EpochOrder(50, 10, seed).indices(epoch, 0, 50)) for seed in (0, 1) for epoch in (0, 1)
    }
    assert len(orders) == 4


def test_without_shuffling_a_position_is_its_record() -> None:
    assert EpochOrder(50, 8, shuffle=False).indices(3, 5, 20).tolist() == list(range(5, 20))


def test_a_full_window_is_ordered_before_the_length_is_known() -> None:
    unknown = EpochOrder(None, 10, seed=4, window_shards=2)
    known = EpochOrder(55, 10, seed=4, window_shards=2)
    assert unknown.indices(0, 3, 40).tolist() == known.indices(0, 3, 40).tolist()


def test_a_dataset_of_a_trillion_records_is_ordered_at_once() -> None:
    order = EpochOrder(10**12 + 1, 4096, seed=2)
    seen = order.indices(0, 10**12 - 5000, 10**12 + 1)
    assert len(np.unique(seen)) == 5001
    assert ((seen >= 0) & (seen <= 10**12)).all()


def test_shards_longer_than_a_table_are_ordered_too() -> None:
    order = EpochOrder(300_000, 100_000, seed=2)
    assert np.array_equal(np.sort(order.indices(0, 0, 300_000)), np.arange(300_000))


def test_a_position_outside_the_epoch_is_our_bug() -> None:
    with pytest.raises(InternalError, match=r"\[5, 11\) of a feed of 10"):
        EpochOrder(10, 4).indices(0, 5, 11)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_samples": 10, "shard_size": 0}, "shard_size is 0"),
        ({"num_samples": -1}, "num_samples is -1"),
        ({"num_samples": None}, "give window_shards"),
    ],
)
def test_impossible_sizes_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EpochOrder(**arguments)


@settings(deadline=None)
@given(
    num_samples=st.integers(1, 3 * AHEAD),
    shard_size=st.sampled_from([7, 100, AHEAD]),
    window_shards=st.none() | st.integers(1, 5),
    sizes=st.lists(st.integers(0, 400), max_size=12),
    jumps=st.lists(st.integers(0, 3 * AHEAD), max_size=3),
)
def test_indices_that_are_worked_out_ahead_are_the_same(
    num_samples: int,
    shard_size: int,
    window_shards: int | None,
    sizes: list[int],
    jumps: list[int],
) -> None:
    order = EpochOrder(num_samples, shard_size, seed=3, window_shards=window_shards)
    ahead = IndicesAhead()
    for epoch, first in enumerate([0, *jumps]):
        start = first % num_samples
        for size in sizes:
            stop = min(start + size, num_samples)
            found = ahead.indices(order, epoch // 2, start, stop)
            assert np.array_equal(found, order.indices(epoch // 2, start, stop))
            start = stop


def test_batches_that_follow_each_other_are_worked_out_together() -> None:
    class Counted(EpochOrder):
        asked = 0

        def indices(self, epoch: int, start: int, stop: int) -> IntArray:
            Counted.asked += 1
            return super().indices(epoch, start, stop)

    plain, counted = EpochOrder(10 * AHEAD), Counted(10 * AHEAD)
    plain.indices = counted.indices  # type: ignore[method-assign]
    ahead = IndicesAhead()
    for start in range(0, 2 * AHEAD, 64):
        ahead.indices(plain, 0, start, start + 64)
    assert Counted.asked == 3  # the first batch, and twice many
