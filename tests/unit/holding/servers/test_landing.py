"""What one owner sends of its store, and how its bytes come to lie in another's."""

import random
import time
import weakref
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from paceline.base.errors import PermanentError
from paceline.protocol.holding.servers.moving import copying
from paceline.protocol.records import MoveBegun
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.server import moving
from paceline.runtime.server.store import Gradients, Store
from paceline.wire.messages.base import Server, ServerMap
from paceline.wire.messages.data import Piece
from paceline.wire.schema import NUM_BUCKETS, DenseTensor, ModelSchema, OptimizerGroup, Table
from tests.unit.holding.servers.test_moving import PIECE

OWNER, NEW, PATIENCE_S = 1, 2, 30.0
SCHEMA = ModelSchema(
    dense=(
        DenseTensor(name="w", shape=(3000,), dtype="float32", offset=0, group=0),
        DenseTensor(name="d", shape=(70,), dtype="float64", offset=0, group=0),
    ),
    tables=(
        Table(name="t", dim=4, dtype="float32", num_rows=5000, group=0),
        Table(name="small", dim=3, dtype="float32", num_rows=5, group=0),
        Table(name="grows", dim=2, dtype="float32", num_rows=None, group=0),
    ),
    groups=(OptimizerGroup(kind="adagrad", hyper={"eps": 1e-10}),),
    block_elems=16,
)
ALL = (0,) * NUM_BUCKETS


def trained() -> Store:
    """A store of all buckets after some updates."""
    rng = np.random.default_rng(0)
    store = Store(SCHEMA, ALL, 0)
    for _ in range(3):
        store.apply(
            [
                Gradients(
                    dense={
                        "float32": rng.normal(size=3000).astype("float32"),
                        "float64": rng.normal(size=70),
                    },
                    sparse={
                        0: (np.arange(5000), rng.normal(size=(5000, 4)).astype("float32")),
                        1: (np.arange(5), rng.normal(size=(5, 3)).astype("float32")),
                        2: (
                            rng.choice(2**62, 900, replace=False),
                            rng.normal(size=(900, 2)).astype("float32"),
                        ),
                    },
                    weight=1,
                    rates=(0.1,),
                )
            ]
        )
    return store


def packed(saved: Any) -> bytes:
    image = cutfile.Chunks(saved, 1 << 20)
    return b"".join(image.at(at).tobytes() for at in range(0, image.num_bytes, 1 << 20))


def test_a_part_is_what_a_store_of_these_buckets_would_save() -> None:
    store, buckets = trained(), (0, 3, 4, 17, 63)
    owners = [0 if bucket in buckets else 1 for bucket in range(NUM_BUCKETS)]
    other = Store(SCHEMA, owners, 0)
    other.load([store.save()])

    part = cutfile.unpack(packed(store.part(buckets)))

    expected = other.save()
    assert part.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(part[name], array, name)


def test_what_a_part_sends_of_fixed_shapes_is_no_copy() -> None:
    store = trained()
    slab = store.save()["table.t.value"]

    scattered = store.part((1, 2))["table.t.value"]

    assert isinstance(scattered, cutfile.Scattered)
    assert all(np.shares_memory(place, slab) for place in scattered.places if place.size)


@pytest.mark.parametrize("size", [7, 64, 1000, 1 << 20])
def test_chunks_in_any_order_after_the_header_lie_where_they_belong(size: int) -> None:
    store = trained()
    owners = [0 if bucket in (5, 40) else 1 for bucket in range(NUM_BUCKETS)]
    fresh, expected = Store(SCHEMA, owners, 0), Store(SCHEMA, owners, 0)
    expected.load([store.save()])
    image = cutfile.Chunks(store.part((5, 40)), size)
    landing = cutfile.Landing(image.num_bytes, fresh.places((5, 40)))
    waiting = list(range(0, image.num_bytes, size))
    random.Random(size).shuffle(waiting)

    while waiting:
        waiting = [at for at in waiting if not landing.take(at, memoryview(image.at(at)))]
    assert landing.is_whole
    assert landing.take(0, memoryview(image.at(0))), "it came again"
    fresh.load([landing.arrays])

    for name, array in expected.save().items():
        np.testing.assert_array_equal(fresh.save()[name], array, name)
    assert "table.t.value" not in landing.arrays, "it had a place"


def test_bytes_for_which_there_is_no_place_are_refused_by_name() -> None:
    store = trained()
    fresh = Store(SCHEMA, ALL, 0)
    image = cutfile.Chunks(store.part((5, 6)), 1 << 20)

    landing = cutfile.Landing(image.num_bytes, fresh.places((5,)))

    with pytest.raises(PermanentError, match=r"has .* bytes, for which there is no room"):
        landing.take(0, memoryview(image.at(0)))


def test_what_is_no_header_is_refused() -> None:
    landing = cutfile.Landing(100, {})

    with pytest.raises(PermanentError, match="not the header"):
        landing.take(0, memoryview(bytes([4, 0, 0, 0, 0, 0, 0, 0]) + b"abcd"))


@pytest.mark.parametrize("burst_bytes", [100, moving.BURST_BYTES])
def test_a_piece_is_answered_when_it_is_where_it_belongs_and_a_move_that_is_over_ends(
    monkeypatch: pytest.MonkeyPatch, burst_bytes: int
) -> None:
    monkeypatch.setattr(moving, "BURST_BYTES", burst_bytes)
    now = ServerMap(version=1, servers=(Server(OWNER, "a", "x://a"),), owners=ALL)
    fresh = Server(NEW, "b", "x://b")
    owners = tuple(NEW if bucket % 2 else OWNER for bucket in range(NUM_BUCKETS))
    copied = copying(now, MoveBegun(joining=(fresh,), leaving=(), owners=owners, version=1))
    arriving = moving.ArrivingShare(SCHEMA, copied, NEW)
    sent = msgspec.structs.replace(
        PIECE, server=OWNER, inc=NEW, map=copied, num_bytes=3 * moving.PIECE_BYTES
    )
    image = cutfile.Chunks(trained().part(moving.moving_buckets(sent)), moving.PIECE_BYTES)

    arriving.take(b"late", sent_at(sent, moving.PIECE_BYTES), memoryview(b"x" * 100))
    arriving.take(b"first", sent_at(sent, 0), memoryview(image.at(0)[:4096]))
    deadline_s = time.monotonic() + PATIENCE_S
    answered: list[Any] = []
    while not answered:
        assert time.monotonic() < deadline_s
        answered += arriving.answers()

    assert [(peer, answer.offset) for peer, answer in answered] == [(b"first", 0)]
    assert arriving.progress == 4096
    arriving.stop()
    arriving.thread.join(PATIENCE_S)
    assert not arriving.thread.is_alive()


LARGE = ModelSchema(
    tables=(Table(name="t", dim=64, dtype="float32", num_rows=1 << 15, group=0),),
    groups=(OptimizerGroup(kind="sgd"),),
)


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages here"
)
@pytest.mark.parametrize(("long_s", "flag"), [(0.0, "nh"), (60.0, "")])
def test_where_a_huge_page_takes_long_the_rest_is_made_of_small_ones_until_all_is_there(
    monkeypatch: pytest.MonkeyPatch, long_s: float, flag: str
) -> None:
    monkeypatch.setattr(moving, "LONG_BURST_S", long_s)
    monkeypatch.setattr(moving, "REST", 0)
    made: list[Store] = []

    def make(*args: Any) -> Store:
        made.append(Store(*args))
        return made[-1]

    monkeypatch.setattr(moving, "Store", make)
    owners = Server(OWNER, "a", "x://a"), Server(NEW, "b", "x://b")
    now = ServerMap(version=2, servers=owners, owners=ALL, copies=(1,) * NUM_BUCKETS)
    image = cutfile.Chunks(Store(LARGE, ALL, 0).save(), moving.PIECE_BYTES)
    piece = msgspec.structs.replace(
        PIECE, server=OWNER, inc=NEW, map=now, num_bytes=image.num_bytes
    )
    arriving = moving.ArrivingShare(LARGE, now, NEW)
    whole = [*range(0, image.num_bytes, moving.PIECE_BYTES)]

    def send(offsets: list[int]) -> str:
        for at in offsets:
            arriving.take(b"a", sent_at(piece, at), memoryview(image.at(at)))
        deadline_s, answered = time.monotonic() + PATIENCE_S, 0
        while answered < len(offsets):
            assert time.monotonic() < deadline_s
            answered += len([*arriving.answers()])
        return pages_of(made[0].save()["table.t.value"])

    assert (flag or "hg") in send(whole[:-1])
    send(whole[-1:])
    arriving.thread.join(PATIENCE_S)
    assert arriving.settle()
    assert "hg" in pages_of(made[0].save()["table.t.value"])


def pages_of(array: Any) -> str:
    """What the kernel was told about the memory in the middle of an array."""
    found = array.ctypes.data + array.nbytes // 2
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.startswith("VmFlags:"):
            span = line.split(" ", 1)[0]
            if "-" in span:
                start, stop = (int(one, 16) for one in span.split("-"))
                inside = start <= found < stop
        elif inside:
            return line
    raise AssertionError("the array is in no mapping")


def test_updates_that_wait_for_the_buckets_keep_nothing_of_the_memory_they_came_in() -> None:
    now = ServerMap(version=2, servers=(Server(NEW, "b", "x://b"),), owners=ALL, copies=ALL)
    arriving = moving.ArrivingShare(SCHEMA, now, NEW)
    dense, ids, rows = np.ones(3000, "float32"), np.arange(3), np.ones((3, 4), "float32")
    came_in = [weakref.ref(array) for array in (dense, ids, rows)]
    arriving.apply(
        [Gradients(dense={"float32": dense}, sparse={0: (ids, rows)}, weight=1, rates=(0.1,))], 1.0
    )
    arriving.stop()

    assert not arriving.has_caught_up
    del dense, ids, rows
    assert [ref() for ref in came_in] == [None] * 3


def sent_at(piece: Piece, offset: int) -> Piece:
    return msgspec.structs.replace(piece, offset=offset)


def test_a_sender_that_would_send_nothing_comes_no_longer_after_all_who_train(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home, nice = tmp_path / "cgroup.procs", list[int]()
    monkeypatch.setattr(moving, "come_last", lambda _job_id: home)
    monkeypatch.setattr(moving.os, "nice", nice.append)
    rank = moving._Rank("job-1")

    rank.sends(2 * moving.LEAST_BYTES_PER_S)
    assert not home.exists()
    rank.sends(moving.LEAST_BYTES_PER_S / 2)
    assert (home.read_text(), nice) == ("0", [moving.NICE])
    rank.sends(moving.LEAST_BYTES_PER_S / 2)
    assert nice == [moving.NICE], "it does so once"


def test_a_sender_that_cannot_come_last_has_a_low_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    nice = list[int]()
    monkeypatch.setattr(moving, "come_last", lambda _job_id: None)
    monkeypatch.setattr(moving.os, "nice", nice.append)

    moving._Rank("job-1").sends(0.0)

    assert nice == [moving.NICE]
