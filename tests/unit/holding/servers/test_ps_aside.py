"""A share that is copied while updates go on: the copy is what it held when it was set aside."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.runtime.checkpoint import cutfile
from paceline.runtime.server import snapshot_while_serving as aside_module
from paceline.runtime.server.server import ServerProcess
from paceline.runtime.server.store import Gradients, Store
from paceline.wire.messages.node import Copied
from paceline.wire.schema import NUM_BUCKETS, DenseTensor, ModelSchema, OptimizerGroup, Table

SCHEMA = ModelSchema(
    dense=(DenseTensor(name="a", shape=(70,), dtype="float32", offset=0, group=0),),
    tables=(
        Table(name="fixed", dim=3, dtype="float64", group=1, num_rows=150),
        Table(name="dynamic", dim=4, dtype="float32", group=1, init_seed=7),
        Table(name="aged", dim=2, dtype="float32", group=1, admit=2, ttl_steps=8),
    ),
    groups=(
        OptimizerGroup(kind="sgd", hyper={"momentum": 0.9}),
        OptimizerGroup(kind="adam"),
    ),
)
PATIENCE_S = 10.0


def trained(updates: int) -> Store:
    store = Store(SCHEMA, (0,) * NUM_BUCKETS, 0)
    for seed in range(updates):
        store.apply([gradients(seed, dense=True)])
    return store


def gradients(seed: int, *, dense: bool) -> Gradients:
    """Of some rows of every table: old ones, and new ones where it grows."""
    rng = np.random.default_rng(seed)
    ids = (rng.integers(0, 150, 40), rng.integers(-9, 9 + seed, 40) << 40, rng.integers(0, 40, 20))
    sparse = {
        index: (ids[index], rng.normal(size=(ids[index].size, table.dim)).astype(table.dtype))
        for index, table in enumerate(SCHEMA.tables)
    }
    given = {"float32": rng.normal(size=70).astype("f4")} if dense else {}
    return Gradients(given, sparse, 1.0, (0.1, 0.1))


def copied(store: Store) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in store.save().items()}


def assert_equal(image: bytearray, expected: dict[str, np.ndarray]) -> None:
    found = cutfile.unpack(image)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def interrupt(monkeypatch: pytest.MonkeyPatch, between: Callable[[], None]) -> None:
    """Have something done before, within and after the copy of each array."""
    copy = cutfile.copy

    def torn(target: np.ndarray, source: np.ndarray) -> None:
        half = source.size // 2
        between()
        copy(target[:half], source[:half])
        between()
        copy(target[half:], source[half:])
        between()

    monkeypatch.setattr(cutfile, "copy", torn)


def test_updates_of_tables_go_on_while_they_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    store = trained(6)
    expected, seeds = copied(store), iter(range(100, 200))
    num_rows = len(expected["table.dynamic.value"])
    image = bytearray(cutfile.packed_bytes(expected))
    aside = store.set_aside()

    def update() -> None:
        store.apply([gradients(next(seeds), dense=False)])

    # It would wait for us.
    monkeypatch.setattr(store._tables[2], "evict", lambda step: None)
    interrupt(monkeypatch, update)
    aside.pack(aside.saved, image)
    aside.end()
    assert_equal(image, expected)
    assert store.updates > 20
    assert len(store.save()["table.dynamic.value"]) > num_rows, "the table grew meanwhile"
    store.apply([gradients(1, dense=True)])
    assert store._aside is None, "nothing is told any more"


class Waiting(threading.Event):
    """Says that somebody waits for it before he does."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.awaited.set()
        return super().wait(timeout)


def pack_when(store: Store, attribute: str, act: Callable[[], None]) -> bytearray:
    """Copy what is set aside, beginning only when ``act`` waits for this event of it."""
    aside = store.set_aside()
    waiting = Waiting()
    setattr(aside, attribute, waiting)
    image = bytearray(cutfile.packed_bytes(aside.saved))
    failed: list[bool] = []

    def work() -> None:
        failed.append(not waiting.awaited.wait(PATIENCE_S))
        aside.pack(aside.saved, image)
        aside.end()

    thread = threading.Thread(target=work)
    thread.start()
    act()
    thread.join()
    assert failed == [False], "nobody waited"
    return image


def test_an_update_of_dense_parameters_waits_until_they_are_copied() -> None:
    store = trained(3)
    expected, before = copied(store), store.updates

    def update() -> None:
        store.apply([gradients(50, dense=True)])

    assert_equal(pack_when(store, "_dense_copied", update), expected)
    assert store.updates == before + 1
    assert not np.array_equal(store.dense()["float32"], expected["dense.float32.value"])


def test_rows_do_not_change_places_before_all_is_copied() -> None:
    store = trained(5)
    expected = copied(store)

    def age() -> None:  # after eight updates without it a key of `aged` is dropped
        for seed in range(60, 75):
            given = gradients(seed, dense=False)
            store.apply([Gradients({}, {0: given.sparse[0]}, 1.0, (0.1, 0.1))])

    assert_equal(pack_when(store, "_over", age), expected)
    assert len(store.save()["table.aged.value"]) < len(expected["table.aged.value"])


def test_updates_wait_when_more_would_be_noted_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aside_module, "LOG_BYTES", 0)
    store = trained(3)
    expected = copied(store)

    def update() -> None:
        for seed in (70, 71):
            store.apply([gradients(seed, dense=False)])

    assert_equal(pack_when(store, "_over", update), expected)


class Edge(ServerProcess):
    """A server without process and sockets, whose copies all fail."""

    def __init__(self, store: Store) -> None:
        self.store, self.copying = store, None
        self.copier = ThreadPoolExecutor(1)
        self.writer: Any = SimpleNamespace(copy=self._fail)

    def _fail(self, *_: object) -> None:
        raise MemoryError("no room")


def test_a_copy_that_failed_holds_no_update_up_and_is_told_once() -> None:
    edge = Edge(trained(2))
    edge._copy(Copied(epoch_no=1, inc=7, cut_no=1, position=2, step=2, committed=(), sharers=(7,)))
    assert edge.store is not None
    edge.store.apply([gradients(5, dense=True)])
    assert edge.store.updates == 3
    with pytest.raises(MemoryError, match="no room"):
        edge._wait_copied()
    edge._wait_copied()
    edge.copier.shutdown()
