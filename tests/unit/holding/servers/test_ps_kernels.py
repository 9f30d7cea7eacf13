"""Kernels over ids: equal to plain Python on any 64-bit keys."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.runtime.server.tables import KeyIndex
from paceline.runtime.state import kernels
from paceline.wire.schema import NUM_BUCKETS

EXTREMES = st.sampled_from([0, -1, 1, 2**63 - 1, -(2**63), 2**32])
KEYS = st.lists(EXTREMES | st.integers(-20, 20) | st.integers(-(2**63), 2**63 - 1), max_size=60)


def int64s(keys: list[int]) -> np.ndarray:
    return np.array(keys, np.int64)


@settings(deadline=None)
@given(KEYS)
def test_unique_numbers_ids_by_first_appearance(keys: list[int]) -> None:
    distinct, inverse = kernels.unique(int64s(keys))
    assert distinct.tolist() == list(dict.fromkeys(keys))
    assert distinct[inverse].tolist() == keys


@settings(deadline=None)
@given(KEYS)
def test_dedup_sums_gradients_of_equal_ids_in_order(keys: list[int]) -> None:
    grads = np.random.default_rng(0).normal(size=(len(keys), 3))
    distinct, summed = kernels.dedup(int64s(keys), grads)
    expected: dict[int, np.ndarray] = {}
    for key, grad in zip(keys, grads, strict=True):
        expected[key] = expected[key] + grad if key in expected else grad
    assert distinct.tolist() == list(expected)
    assert np.array_equal(summed, np.reshape(list(expected.values()), (-1, 3)))


@settings(deadline=None)
@given(st.lists(KEYS, max_size=5))
def test_key_index_is_a_dict_of_rows_for_any_key(batches: list[list[int]]) -> None:
    index, rows = KeyIndex(), dict[int, int]()
    for keys in batches:
        found, absent = index.find(int64s(keys))
        assert found.tolist() == [rows.get(key, -1) for key in keys]
        assert absent == sum(key not in rows for key in keys)
        for key in keys:
            rows.setdefault(key, len(rows))
        assert index.insert(int64s(keys)).tolist() == [rows[key] for key in keys]
        assert index.keys.tolist() == list(rows)


def test_key_index_grows_past_many_doublings_and_survives_a_drop_of_keys() -> None:
    keys = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, 50_000)
    index = KeyIndex()
    for part in np.split(keys, 10):
        index.insert(part)
    assert np.array_equal(index.find(keys)[0], np.arange(50_000))
    index.keep(np.arange(0, 50_000, 7))
    assert np.array_equal(index.find(keys[::7])[0], np.arange(len(keys[::7])))
    assert index.find(keys)[1] == 50_000 - len(keys[::7])


@settings(max_examples=50, deadline=None)
@given(KEYS, st.booleans(), st.integers(1, 5))
def test_split_groups_positions_by_owner_in_order(
    keys: list[int], dynamic: bool, servers: int
) -> None:
    ids = int64s(keys)
    owners = (np.arange(64) % servers).astype(np.int32)
    order, bounds = kernels.split(ids, owners, servers, dynamic=dynamic)
    assert sorted(order.tolist()) == list(range(len(keys)))
    for s in range(servers):
        mine = order[bounds[s] : bounds[s + 1]]
        assert (np.diff(mine) > 0).all()
        if not dynamic:
            assert (ids[mine] % 64 % servers == s).all()


def test_buckets_of_keys_are_even_even_for_consecutive_keys() -> None:
    keys = np.arange(64_000)
    owners = np.empty(keys.size, np.int32)
    kernels.owners_of_keys(keys, np.arange(64, dtype=np.int32), owners)
    counts = np.bincount(owners, minlength=64)
    assert 850 < counts.min() <= counts.max() < 1150


def test_initial_rows_are_normal_and_depend_on_seed_and_key_only() -> None:
    keys = np.arange(20_000)
    rows = np.empty((20_000, 7), np.float32)
    kernels.initial_rows(keys, 3, 0.5, rows)
    assert abs(rows.std() - 0.5) < 0.005
    assert abs(rows.mean()) < 0.005
    assert abs((np.abs(rows) < 0.5).mean() - 0.6827) < 0.005
    assert np.abs(np.corrcoef(rows.T) - np.eye(7)).max() < 0.04
    again = np.empty((3, 7), np.float32)
    kernels.initial_rows(keys[[5, 1, 5]], 3, 0.5, again)
    assert np.array_equal(again, rows[[5, 1, 5]])
    kernels.initial_rows(keys[[5, 1, 5]], 4, 0.5, again)
    assert not np.array_equal(again, rows[[5, 1, 5]])


def test_plain_takes_the_read_only_flag_off_without_a_copy() -> None:
    received = np.frombuffer(np.arange(5).tobytes(), np.int64)
    array = kernels.plain(received, np.int64)
    assert array.flags.writeable
    assert array.ctypes.data == received.ctypes.data
    assert kernels.plain(array[::2], np.int64).flags.c_contiguous


def test_compiled_in_bucket_count_is_the_schemas() -> None:
    assert 1 << kernels.BUCKET_BITS == NUM_BUCKETS
