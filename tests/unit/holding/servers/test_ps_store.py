"""A server's share of a model: exact means, equal bits, and saves that fit any owner map."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.base.errors import InternalError, PermanentError
from paceline.runtime.holding.servers.exports import Exporting
from paceline.runtime.server.store import Gradients, Store
from paceline.runtime.server.tables import Waiting
from paceline.runtime.state import kernels, layout
from paceline.wire.messages.data import Exported
from paceline.wire.schema import NUM_BUCKETS, DenseTensor, ModelSchema, OptimizerGroup, Table

ALONE = (0,) * NUM_BUCKETS
RATES = (0.1, 0.2, 0.3)
SCHEMA = ModelSchema(
    dense=(
        DenseTensor(name="a", shape=(70, 3), dtype="float32", offset=0, group=0),
        DenseTensor(name="b", shape=(90,), dtype="float32", offset=210, group=1),
        DenseTensor(name="c", shape=(11,), dtype="float64", offset=0, group=1),
    ),
    tables=(
        Table(name="fixed", dim=3, dtype="float64", group=2, num_rows=150),
        Table(name="dynamic", dim=4, dtype="float32", group=1, init_seed=7),
        Table(name="admitted", dim=2, dtype="float32", group=2, admit=2, ttl_steps=6),
    ),
    groups=(
        OptimizerGroup(kind="sgd", hyper={"momentum": 0.9}),
        OptimizerGroup(kind="adagrad", hyper={"initial_accumulator_value": 0.1}),
        OptimizerGroup(kind="adam"),
    ),
    block_elems=8,
)


def fresh(owners: tuple[int, ...] = ALONE) -> list[Store]:
    rng = np.random.default_rng(11)
    sizes = layout.dense_sizes(SCHEMA)
    dense = {dtype: rng.normal(size=size).astype(dtype) for dtype, size in sizes.items()}
    start = layout.initial_arrays(SCHEMA, dense, {0: rng.normal(size=(150, 3))})
    stores = [Store(SCHEMA, owners, me) for me in range(max(owners) + 1)]
    for store in stores:
        store.load([start])
    return stores


def whole_gradients(rng: np.random.Generator) -> Gradients:
    sizes = layout.dense_sizes(SCHEMA)
    dense = {dtype: rng.normal(size=size).astype(dtype) for dtype, size in sizes.items()}
    ids = (rng.integers(0, 150, 40), rng.integers(-9, 9, 40) << 40, rng.integers(0, 120, 20))
    sparse = {
        index: (ids[index], rng.normal(size=(ids[index].size, table.dim)).astype(table.dtype))
        for index, table in enumerate(SCHEMA.tables)
    }
    return Gradients(dense, sparse, float(rng.integers(1, 9)), RATES)


def part_for(whole: Gradients, owners: tuple[int, ...], me: int) -> Gradients:
    spans = layout.dense_spans(SCHEMA, owners, me)
    dense = {
        dtype: np.concatenate([grad[:0], *(grad[a:b] for a, b in spans[dtype])])
        for dtype, grad in whole.dense.items()
    }
    sparse = {}
    table_owners = np.array(owners, np.int32)
    for index, (ids, grads) in whole.sparse.items():
        dynamic = SCHEMA.tables[index].num_rows is None
        order, bounds = kernels.split(ids, table_owners, max(owners) + 1, dynamic=dynamic)
        mine = order[bounds[me] : bounds[me + 1]]
        sparse[index] = (ids[mine], grads[mine])
    return Gradients(dense, sparse, whole.weight, whole.rates)


def train(stores: list[Store], owners: tuple[int, ...], seed: int, updates: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(updates):
        parts = [whole_gradients(rng) for _ in range(3)]
        for me, store in enumerate(stores):
            store.apply([part_for(part, owners, me) for part in parts])


def content(stores: list[Store], owners: tuple[int, ...]) -> dict[str, Any]:
    """Everything the stores hold, whatever the order of rows."""
    whole = Store(SCHEMA, ALONE, 0)
    whole.load([store.save() for store in stores])
    saved = {name: array.copy() for name, array in whole.save().items()}
    for name in ("dynamic", "admitted"):
        for prefix in ("", "waiting_"):
            order = np.argsort(saved[f"table.{name}.{prefix}key"])
            mine = [
                n
                for n in saved
                if n.startswith(f"table.{name}.") and ("waiting" in n) == bool(prefix)
            ]
            for array in mine:
                saved[array] = saved[array][order]
    return saved


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def spread(servers: int) -> tuple[int, ...]:
    return tuple((bucket * 7) % 5 % servers for bucket in range(NUM_BUCKETS))


def test_update_is_the_exact_weighted_mean_of_its_parts() -> None:
    (store,) = fresh()
    before = store.dense()["float32"].copy()
    ids = np.array([3, 3, 5])
    parts = [
        Gradients({"float32": np.full(300, 2.0, "f4")}, {}, 3, RATES),
        Gradients({"float32": np.full(300, 6.0, "f4")}, {}, 1, RATES),
    ]
    store.apply(parts)
    np.testing.assert_allclose(before[:210] - store.dense()["float32"][:210], 0.1 * 3.0, rtol=1e-5)
    sgd = ModelSchema(
        tables=(Table(name="t", dim=1, dtype="float64", group=0, num_rows=9),),
        groups=(OptimizerGroup(kind="sgd"),),
    )
    store = Store(sgd, ALONE, 0)
    grads = np.array([[1.0], [2.0], [4.0]])
    store.apply(
        [
            Gradients({}, {0: (ids, grads)}, 3, (1.0,)),
            Gradients({}, {0: (ids[2:], grads[2:])}, 1, (1.0,)),
        ]
    )
    assert store.rows(0, np.array([3, 5, 4])).tolist() == [[-2.25], [-4.0], [0.0]]


def test_weightless_update_changes_nothing() -> None:
    (store,) = fresh()
    before = content([store], ALONE)
    weightless = whole_gradients(np.random.default_rng(0))
    store.apply([Gradients(weightless.dense, weightless.sparse, 0.0, RATES)])
    assert_same(content([store], ALONE), before)


def test_same_updates_give_the_same_bits() -> None:
    first, second = fresh(), fresh()
    train(first, ALONE, seed=1, updates=20)
    train(second, ALONE, seed=1, updates=20)
    assert_same(content(second, ALONE), content(first, ALONE))


@pytest.mark.parametrize("servers", [2, 3, 5])
def test_any_number_of_servers_gives_the_bits_of_one(servers: int) -> None:
    owners = spread(servers)
    one, many = fresh(), fresh(owners)
    train(one, ALONE, seed=2, updates=12)
    train(many, owners, seed=2, updates=12)
    assert_same(content(many, owners), content(one, ALONE))


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5))
def test_training_goes_on_from_a_save_with_another_number_of_servers(old: int, new: int) -> None:
    stores = fresh(spread(old))
    train(stores, spread(old), seed=3, updates=7)
    saved = [store.save() for store in stores]
    moved = [Store(SCHEMA, spread(new), me) for me in range(max(spread(new)) + 1)]
    for store in moved:
        store.load(saved)
    train(stores, spread(old), seed=4, updates=7)
    train(moved, spread(new), seed=4, updates=7)
    assert_same(content(moved, spread(new)), content(stores, spread(old)))


def test_load_refuses_saves_that_lack_a_server() -> None:
    owners = spread(3)
    saved = [store.save() for store in fresh(owners)]
    with pytest.raises(PermanentError, match="lacks buckets"):
        Store(SCHEMA, ALONE, 0).load(saved[:2])


@pytest.mark.parametrize("bad", [-1, 150, 2**62])
def test_id_outside_a_fixed_table_is_named_with_the_table_and_its_size(bad: int) -> None:
    (store,) = fresh()
    with pytest.raises(PermanentError, match=f"'fixed': id {bad} .* 150 rows"):
        store.rows(0, np.array([1, bad]))


def test_row_of_another_server_is_refused() -> None:
    store = fresh(spread(2))[0]
    other = spread(2).index(1)
    with pytest.raises(InternalError, match=f"bucket {other}"):
        store.rows(0, np.array([other]))


def test_gradients_of_the_wrong_shape_are_refused() -> None:
    (store,) = fresh()
    with pytest.raises(InternalError, match="owns"):
        store.apply([Gradients({"float32": np.zeros(4, "f4")}, {}, 1, RATES)])
    with pytest.raises(InternalError, match="'fixed'"):
        store.apply([Gradients({}, {0: (np.arange(2), np.zeros((2, 9)))}, 1, RATES)])


def test_received_read_only_gradients_are_applied() -> None:
    first, second = fresh(), fresh()
    ids, grads = np.arange(6), np.ones((6, 3))
    received = np.frombuffer(ids.tobytes(), np.int64), np.frombuffer(grads.tobytes()).reshape(6, 3)
    first[0].apply([Gradients({}, {0: (ids, grads)}, 1, RATES)])
    second[0].apply([Gradients({}, {0: received}, 1, RATES)])
    assert_same(content(second, ALONE), content(first, ALONE))


def test_reading_a_dynamic_key_shows_its_first_row_and_creates_nothing() -> None:
    (store,) = fresh()
    keys = np.array([5, -(2**63), 5])
    read = store.rows(1, keys)
    assert np.array_equal(read[0], read[2])
    assert np.abs(read).max() > 0
    assert store.export(1)[0].size == 0
    store.apply([Gradients({}, {1: (keys, np.zeros((3, 4), "f4"))}, 1, RATES)])
    assert np.array_equal(store.rows(1, keys), read)
    assert store.export(1)[0].tolist() == [5, -(2**63)]


def test_export_of_a_fixed_table_gives_every_owned_id_its_row() -> None:
    stores = fresh(spread(3))
    found = dict[int, list[float]]()
    for store in stores:
        ids, rows = store.export(0)
        assert np.array_equal(store.rows(0, ids), rows)
        found |= dict(zip(ids.tolist(), rows.tolist(), strict=True))
    assert sorted(found) == list(range(150))


def dynamic(**options: Any) -> Store:
    table = Table(name="d", dim=2, dtype="float64", group=0, init_std=0.5, **options)
    schema = ModelSchema(tables=(table,), groups=(OptimizerGroup(kind="adagrad"),))
    return Store(schema, ALONE, 0)


def test_a_factor_on_an_update_is_one_on_its_learning_rates() -> None:
    gradients = whole_gradients(np.random.default_rng(1))
    ((scaled,), (rated,)) = fresh(), fresh()
    scaled.apply([gradients], 0.25)
    rated.apply([replace(gradients, rates=tuple(0.25 * rate for rate in gradients.rates))])

    for name, array in scaled.save().items():
        np.testing.assert_array_equal(array, rated.save()[name])


def push(store: Store, *keys: int) -> None:
    grads = np.ones((len(keys), 2))
    store.apply([Gradients({}, {0: (np.array(keys), grads)}, 1, (1.0,))])


def held(store: Store) -> set[int]:
    return set(store.export(0)[0].tolist())


def test_key_is_admitted_by_the_update_that_sees_it_often_enough() -> None:
    store = dynamic(admit=3)
    first = store.rows(0, np.array([8]))
    push(store, 8, 8, 9)
    push(store, 8)
    assert held(store) == set()
    assert np.array_equal(store.rows(0, np.array([8])), first)
    push(store, 8, 8)
    assert held(store) == {8}
    np.testing.assert_allclose(store.rows(0, np.array([8])), first - 1.0)


def test_row_unused_for_longer_than_its_time_to_live_is_dropped_and_starts_afresh() -> None:
    store = dynamic(ttl_steps=8)
    first = store.rows(0, np.array([1]))
    push(store, 1, 2)
    for _ in range(8):
        push(store, 2)
    assert held(store) == {1, 2}
    push(store, 2)
    assert held(store) == {2}
    push(store, 1)
    np.testing.assert_allclose(store.rows(0, np.array([1])), first - 1.0)


def test_age_counts_updates_that_do_not_touch_the_table() -> None:
    store = dynamic(ttl_steps=8)
    push(store, 1)
    for _ in range(9):
        store.apply([Gradients({}, {}, 1, (1.0,))])
    assert held(store) == set()


def test_capacity_drops_the_least_recently_used_rows() -> None:
    store = dynamic(capacity=32)
    for key in range(33):
        push(store, key)
    assert held(store) == set(range(3, 33))
    push(store, 3)
    for key in range(100, 103):
        push(store, key)
    assert held(store) == {3, *range(7, 33), 100, 101, 102}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(-3, 12), min_size=1, max_size=6), max_size=40))
def test_dynamic_table_with_admission_and_age_follows_a_dict(batches: list[list[int]]) -> None:
    store = dynamic(admit=2, ttl_steps=4)
    seen, rows = dict[int, tuple[int, int]](), dict[int, int]()
    for step, keys in enumerate(batches, 1):
        push(store, *keys)
        for key in dict.fromkeys(keys):
            count = seen.get(key, (0, 0))[0] + 1
            if key in rows or count == 2:
                seen.pop(key, None)
                rows[key] = step
            else:
                seen[key] = count, step
        rows = {key: used for key, used in rows.items() if step - used <= 4}
        seen = {key: (count, used) for key, (count, used) in seen.items() if step - used <= 4}
        assert held(store) == set(rows)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6),
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=12), min_size=4, max_size=30),
)
def test_pieces_of_an_export_hold_every_row_once_whatever_is_dropped_between_them(
    count: int, batches: list[list[int]]
) -> None:
    store = dynamic(ttl_steps=3, capacity=32)
    push(store, *range(30))
    exporting, steady, ever = Exporting(0, 1, [5]), held(store), set[int]()
    while not exporting.done:
        ((server, asked),) = exporting.missing(epoch_no=1, inc=9, map_version=1)
        keys, rows, more = store.piece(0, asked.offset, count)
        assert keys.size <= count
        piece = Exported(
            epoch_no=1, server=5, inc=9, ticket=1, table=0, offset=asked.offset, next_offset=more
        )
        steady, ever = steady & held(store), ever | held(store)
        assert exporting.take(server, piece, keys, rows)
        if batches:
            push(store, *batches.pop())
    keys, _ = exporting.whole(2)
    assert np.unique(keys).size == keys.size
    assert steady <= set(keys.tolist()) <= ever


def test_pieces_of_a_fixed_table_are_its_export() -> None:
    store = fresh(spread(3))[1]
    offset: int | None = 0
    found, rows = [], []
    while offset is not None:
        piece, values, offset = store.piece(0, offset, 7)
        found.append(piece)
        rows.append(values)
    ids, all_rows = store.export(0)
    assert max(piece.size for piece in found) == 7
    assert np.array_equal(np.concatenate(found), ids)
    assert np.array_equal(np.concatenate(rows), all_rows)


def test_admitted_keys_leave_room_for_others_that_wait() -> None:
    waiting = Waiting()
    for first in range(0, 20_000, 100):
        keys = np.arange(first, first + 100)
        assert waiting.see(keys, 1, admit=2).size == 0
        assert np.array_equal(waiting.see(keys, 2, admit=2), keys)
    assert waiting.index.used < 3000
    assert waiting.see(np.array([19_999]), 3, admit=2).size == 0
    assert [array.tolist() for array in waiting.save()] == [[19_999], [1], [3]]


def test_server_without_buckets_holds_nothing_and_saves_and_loads() -> None:
    owners = (0,) * NUM_BUCKETS
    store = Store(SCHEMA, owners, 1)
    assert store.export(0)[0].size == 0
    assert store.dense()["float32"].size == 0
    saved = [store.save(), *(other.save() for other in fresh())]
    again = Store(SCHEMA, ALONE, 0)
    again.load(saved)
    assert_same(content([again], ALONE), content(fresh(), ALONE))
    store.apply([Gradients({"float32": np.zeros(0, "f4")}, {}, 1, RATES)])


def test_store_never_loads_torch() -> None:
    code = "import sys, paceline.runtime.server.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
