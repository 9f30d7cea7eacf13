"""Who owns which elements: hand-worked cases of the arithmetic that servers and workers share."""

import numpy as np

from paceline.runtime.state import layout
from paceline.wire.schema import NUM_BUCKETS, DenseTensor, ModelSchema, OptimizerGroup

SCHEMA = ModelSchema(
    dense=(
        DenseTensor(name="a", shape=(10, 20), dtype="float32", offset=0, group=0),
        DenseTensor(name="b", shape=(61,), dtype="float32", offset=200, group=1),
        DenseTensor(name="c", shape=(), dtype="float64", offset=0, group=1),
    ),
    groups=(OptimizerGroup(kind="sgd"), OptimizerGroup(kind="adam")),
    block_elems=4,
)
OWNERS = tuple(0 if bucket < 3 else 1 for bucket in range(NUM_BUCKETS))


def test_block_k_lives_with_bucket_k_modulo_their_number() -> None:
    # 66 blocks of 4: blocks 0, 1, 2 and, one round later, 64 and 65 (of one element).
    spans = layout.dense_spans(SCHEMA, OWNERS, 0)
    assert spans == {"float32": [(0, 12), (256, 261)], "float64": [(0, 1)]}
    assert layout.dense_spans(SCHEMA, OWNERS, 1) == {"float32": [(12, 256)], "float64": []}


def test_runs_give_each_stretch_of_the_flat_array_its_tensor() -> None:
    spans = layout.dense_spans(SCHEMA, OWNERS, 1)["float32"]
    assert layout.dense_runs(SCHEMA, "float32", spans) == [(0, 0, 188), (1, 188, 244)]


def test_overlaps_pair_the_places_of_shared_blocks() -> None:
    pairs = layout.dense_overlaps(261, 4, (1, 2), (0, 2, 5))
    assert pairs == [(slice(4, 8), slice(4, 8))]
    whole = layout.dense_overlaps(261, 4, (0,), range(NUM_BUCKETS))
    assert whole == [(slice(0, 4), slice(0, 4)), (slice(4, 8), slice(256, 260))]


def test_bucket_of_a_fixed_table_holds_every_64th_id() -> None:
    sizes = layout.bucket_rows(130)
    assert sizes[:4].tolist() == [3, 3, 2, 2]
    assert sizes.sum() == 130
    assert layout.bucket_offsets(130, (1, 5))[:7].tolist() == [-1, 0, -1, -1, -1, 3, -1]
    assert layout.bucket_rows(2).tolist() == [1, 1] + [0] * 62


def test_initial_arrays_lay_rows_out_bucket_by_bucket() -> None:
    arrays = layout.initial_arrays(SCHEMA, {"float32": np.zeros(261), "float64": np.zeros(1)}, {})
    assert arrays.keys() == {"buckets", "dense.float32.value", "dense.float64.value"}
