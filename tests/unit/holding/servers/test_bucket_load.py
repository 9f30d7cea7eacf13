"""What servers say about how much is asked of each bucket, and what a change makes of it."""

from collections.abc import Iterable

import numpy as np
import pytest

from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.holding.servers.placement import bucket_weights
from paceline.protocol.records import EpochStarted, SchemaFixed
from paceline.protocol.training import MasterState
from paceline.runtime.server.bucket_load import EVERY, HALF_LIFE_S, BucketLoad
from paceline.runtime.server.store import Gradients, Store
from paceline.runtime.state import kernels
from paceline.wire.messages.base import CutRef, Server, ServerMap
from paceline.wire.messages.node import BucketLoads
from paceline.wire.schema import NUM_BUCKETS, DenseTensor, ModelSchema, OptimizerGroup, Table

SGD = (OptimizerGroup(kind="sgd", hyper={}),)
ROWS = ModelSchema(
    tables=(
        Table(name="fixed", dim=4, dtype="float32", num_rows=64_000, group=0),
        Table(name="grows", dim=8, dtype="float32", num_rows=None, group=0),
    ),
    groups=SGD,
)
DENSE = ModelSchema(
    dense=(DenseTensor(name="w", shape=(250,), dtype="float32", offset=0, group=0),),
    groups=SGD,
    block_elems=100,
)
HOT, A, B, C = 5, 1, 2, 3


def begun(schema: ModelSchema, owned: Iterable[int]) -> BucketLoad:
    """A load that counts from second 0 on."""
    load = BucketLoad(schema, tuple(owned))
    assert not any(load.per_s(0.0))
    return load


def test_a_store_counts_what_it_reads_and_what_it_updates() -> None:
    store = Store(ROWS, (0,) * NUM_BUCKETS, 0)
    store.load_of_buckets.per_s(0.0)
    ids = np.array([HOT])
    given = Gradients(
        dense={}, sparse={0: (ids, np.ones((1, 4), np.float32))}, weight=1, rates=(0.1,)
    )
    for _ in range(EVERY):
        store.rows(0, ids)
        store.apply([given])

    per_s = store.load_of_buckets.per_s(1.0)

    assert (per_s[HOT], sum(per_s)) == (2 * EVERY * 4, 2 * EVERY * 4)


def test_rows_count_by_the_width_of_their_table() -> None:
    load = begun(ROWS, range(NUM_BUCKETS))
    for _ in range(10 * EVERY):
        load.rows(0, np.full(3, HOT + NUM_BUCKETS))

    per_s = load.per_s(10.0)

    assert per_s[HOT] == 10 * EVERY * 3 * 4 / 10
    assert sum(per_s) == per_s[HOT]


def test_of_many_rows_a_part_speaks_for_all() -> None:
    load = begun(ROWS, range(NUM_BUCKETS))
    for _ in range(EVERY):
        load.rows(0, np.arange(64 * 700))

    per_s = np.array(load.per_s(1.0))

    assert per_s.min() > 0.9 * 700 * EVERY * 4
    assert per_s.max() < 1.1 * 700 * EVERY * 4


def test_keys_of_a_table_that_grows_count_where_they_hash_to() -> None:
    load = begun(ROWS, range(NUM_BUCKETS))
    keys = np.arange(1000, 1050)
    for _ in range(EVERY):
        load.rows(1, keys)

    per_s = load.per_s(1.0)

    each, owner = np.arange(NUM_BUCKETS, dtype=np.int32), np.empty(keys.size, np.int32)
    kernels.owners_of_keys(keys, each, owner)
    assert per_s == tuple(np.bincount(owner, minlength=NUM_BUCKETS) * EVERY * 8)


def test_dense_blocks_count_with_each_update_where_they_lie() -> None:
    load = begun(DENSE, (0, 2, 7))
    for _ in range(4):
        load.dense("float32")

    per_s = load.per_s(2.0)

    assert per_s[:3] == (200, 0, 100)


def test_what_was_long_ago_counts_less() -> None:
    load = begun(DENSE, (0,))
    for _ in range(1000):
        load.dense("float32")
    first = load.per_s(1.0)[0]

    later = load.per_s(1.0 + 3 * HALF_LIFE_S)[0]

    assert first == 100_000
    assert later < first / 80


# ---------------------------------------------------------------------- the master


def holder() -> ServerHolder:
    found = ServerHolder()
    core = MasterState(found, mode="asp", samples="exactly-once")
    servers = (Server(A, "a", "x://a"), Server(B, "b", "x://b"))
    owners = tuple(bucket % 2 for bucket in range(NUM_BUCKETS))
    now = ServerMap(version=1, servers=servers, owners=owners)
    core.apply(SchemaFixed(model=ROWS))
    core.apply(EpochStarted(epoch_no=1, cut=CutRef(cut_no=0), step=0, committed=(), map=now))
    return found


def said(inc: int, hot: int = 100) -> BucketLoads:
    mine = (bucket % 2 == inc - 1 for bucket in range(NUM_BUCKETS))
    per_s = [100 if own else 0 for own in mine]
    if per_s[HOT]:
        per_s[HOT] = hot
    return BucketLoads(inc=inc, per_s=tuple(per_s))


def owners_after(found: ServerHolder) -> tuple[int, ...]:
    found.change_servers((Server(C, "c", "x://c"),), ())
    assert found.moving.begun is not None
    return found.moving.begun.owners


def test_a_hot_bucket_is_placed_with_less_else() -> None:
    found = holder()
    hot = 100 * NUM_BUCKETS
    for inc in (A, B):
        found.load_said(said(inc, hot))

    owners = owners_after(found)

    counts = {inc: owners.count(inc) for inc in (A, B, C)}
    alone = counts.pop(owners[HOT])
    assert alone < min(counts.values()) / 2
    load = [hot if bucket == HOT else 100 for bucket in range(NUM_BUCKETS)]
    weights = bucket_weights(ROWS, load)
    weighs = [
        sum(weight for weight, owner in zip(weights, owners, strict=True) if owner == inc)
        for inc in (A, B, C)
    ]
    assert max(weighs) - min(weighs) < 0.05


@pytest.mark.parametrize("heard", [(), (A,)])
def test_as_long_as_not_all_owners_have_said_their_load_it_does_not_count(
    heard: tuple[int, ...],
) -> None:
    found = holder()
    for inc in heard:
        found.load_said(said(inc, 10_000))

    owners = owners_after(found)

    counts = [owners.count(inc) for inc in (A, B, C)]
    assert max(counts) - min(counts) <= 1


def test_a_word_of_a_server_without_buckets_or_of_another_length_is_not_kept() -> None:
    found = holder()

    found.load_said(BucketLoads(inc=C, per_s=(1,) * NUM_BUCKETS))
    found.load_said(BucketLoads(inc=A, per_s=(1, 2)))

    assert found.loads == {}
