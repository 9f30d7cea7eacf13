"""Which server gets which bucket."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.protocol.holding.servers.placement import bucket_weights, place
from paceline.runtime.holding.servers.partition import layout
from paceline.wire.schema import NUM_BUCKETS, DenseTensor, ModelSchema, OptimizerGroup, Table

SCHEMA = ModelSchema(
    dense=(DenseTensor(name="w", shape=(1000,), dtype="float64", offset=0, group=0),),
    tables=(Table(name="t", dim=4, dtype="float32", num_rows=500, group=0),),
    groups=(OptimizerGroup(kind="sgd"),),
    block_elems=16,
)


def by_turns(num_servers: int) -> tuple[int, ...]:
    return tuple(1 + bucket % num_servers for bucket in range(NUM_BUCKETS))


@pytest.mark.parametrize(
    ("before", "after", "moved"), [(2, 4, 32), (4, 1, 48), (1, 3, 42), (2, 3, 21), (3, 2, 21)]
)
def test_buckets_are_even_and_as_few_as_possible_move(before: int, after: int, moved: int) -> None:
    owners = by_turns(before)
    placed = place(owners, range(1, after + 1))
    counts = Counter(placed)
    assert sorted(counts) == list(range(1, after + 1))
    assert max(counts.values()) - min(counts.values()) <= 1
    assert sum(old != new for old, new in zip(owners, placed, strict=True)) == moved


def test_a_hot_bucket_moves_alone() -> None:
    load = [1.0] * NUM_BUCKETS
    load[5] = load[7] = 30.0
    owners = (1,) * 32 + (2,) * 32
    placed = place(owners, (1, 2), bucket_weights(SCHEMA, load, share_of_load=1.0))
    moved = [b for b, (old, new) in enumerate(zip(owners, placed, strict=True)) if old != new]
    assert len(moved) == 1
    assert moved[0] in (5, 7)


def test_a_bucket_weighs_what_it_holds() -> None:
    weights = bucket_weights(SCHEMA)
    held = [0.0] * NUM_BUCKETS
    for bucket in range(NUM_BUCKETS):
        owners = [0 if one == bucket else 1 for one in range(NUM_BUCKETS)]
        spans = layout.dense_spans(SCHEMA, owners, 0)["float64"]
        held[bucket] = 8.0 * sum(stop - start for start, stop in spans)
        held[bucket] += 4 * 4 * float(layout.bucket_rows(500)[bucket])
    each = 0.01 * sum(held) / NUM_BUCKETS
    total = sum(held) + NUM_BUCKETS * each
    assert weights == pytest.approx([(one + each) / total for one in held])


@given(
    st.lists(st.integers(1, 6), min_size=NUM_BUCKETS, max_size=NUM_BUCKETS),
    st.integers(1, 8),
    st.lists(st.floats(0.0, 100.0), min_size=NUM_BUCKETS, max_size=NUM_BUCKETS),
)
def test_every_server_gets_a_bucket_whatever_they_weigh(
    owners: list[int], num_servers: int, weights: list[float]
) -> None:
    placed = place(owners, range(1, num_servers + 1), weights)
    assert set(placed) == set(range(1, num_servers + 1))
