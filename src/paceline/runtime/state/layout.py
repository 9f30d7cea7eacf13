"""Places of the elements of a model: which server, and at which place of its arrays.

Pure arithmetic over the schema and the owner table, shared by servers and workers. Elements of a
dtype form one flat vector that is cut in blocks; block ``k`` belongs to bucket ``k % NUM_BUCKETS``.
A fixed table's id ``i`` is row ``i // NUM_BUCKETS`` of bucket ``i % NUM_BUCKETS``, so a server
finds a row by arithmetic. The bucket of a dynamic table's key comes from its hash
(`kernels.owners_of_keys`). Servers keep their blocks and buckets in ascending order, without gaps.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from paceline.wire.schema import NUM_BUCKETS, ModelSchema

Array = npt.NDArray[np.generic]
Int64s = npt.NDArray[np.int64]


def dense_sizes(schema: ModelSchema) -> dict[str, int]:
    """Number of elements of each dtype's flat vector."""
    sizes: dict[str, int] = {}
    for tensor in schema.dense:
        stop = tensor.offset + int(np.prod(tensor.shape, dtype=np.int64))
        sizes[tensor.dtype] = max(stop, sizes.get(tensor.dtype, 0))
    return sizes


def owned_buckets(owners: Sequence[int], me: int) -> tuple[int, ...]:
    """The buckets of server ``me``, ascending."""
    return tuple(bucket for bucket, owner in enumerate(owners) if owner == me)


def dense_blocks(size: int, block_elems: int, buckets: Sequence[int]) -> list[tuple[int, int]]:
    """``(start, stop)`` in the flat vector of every block of ``buckets``, ascending."""
    held = set(buckets)
    return [
        (start, min(start + block_elems, size))
        for block, start in enumerate(range(0, size, block_elems))
        if block % NUM_BUCKETS in held
    ]


def dense_spans(
    schema: ModelSchema, owners: Sequence[int], me: int
) -> dict[str, list[tuple[int, int]]]:
    """Return what server ``me`` owns of each dtype's flat vector, neighbouring blocks merged.

    Its flat array is these spans, laid end to end.
    """
    buckets = owned_buckets(owners, me)
    spans: dict[str, list[tuple[int, int]]] = {}
    for dtype, size in dense_sizes(schema).items():
        merged: list[tuple[int, int]] = []
        for start, stop in dense_blocks(size, schema.block_elems, buckets):
            touches = merged and merged[-1][1] == start
            merged.append((merged.pop()[0] if touches else start, stop))
        spans[dtype] = merged
    return spans


def dense_runs(
    schema: ModelSchema, dtype: str, spans: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """``(tensor, start, stop)`` of every stretch of a server's flat array that is of one tensor.

    The tensor is its place in ``schema.dense``; stretches are ascending, without gaps.
    """
    tensors = sorted(
        ((place, one) for place, one in enumerate(schema.dense) if one.dtype == dtype),
        key=lambda placed: placed[1].offset,
    )
    runs: list[tuple[int, int, int]] = []
    base = 0
    for start, stop in spans:
        for place, tensor in tensors:
            low = max(start, tensor.offset)
            high = min(stop, tensor.offset + int(np.prod(tensor.shape, dtype=np.int64)))
            if low < high:
                runs.append((place, base + low - start, base + high - start))
        base += stop - start
    return runs


def dense_overlaps(
    size: int, block_elems: int, mine: Sequence[int], theirs: Sequence[int]
) -> list[tuple[slice, slice]]:
    """Return where the blocks that two holders share lie: in my flat array, and in theirs."""
    places: list[dict[int, slice]] = []
    for buckets in (mine, theirs):
        place, at = {}, 0
        for start, stop in dense_blocks(size, block_elems, buckets):
            place[start] = slice(at, at + stop - start)
            at += stop - start
        places.append(place)
    return [(places[0][start], places[1][start]) for start in places[0] if start in places[1]]


def bucket_rows(num_rows: int) -> Int64s:
    """Rows of a fixed table in each bucket, int64 ``[NUM_BUCKETS]``."""
    return (num_rows - np.arange(NUM_BUCKETS) + NUM_BUCKETS - 1) // NUM_BUCKETS


def bucket_offsets(num_rows: int, buckets: Sequence[int]) -> Int64s:
    """Return the first row of each bucket in the slab of a holder of ``buckets``; -1: not held."""
    offsets = np.full(NUM_BUCKETS, -1, np.int64)
    held = list(buckets)
    sizes = bucket_rows(num_rows)[held]
    offsets[held] = np.cumsum(sizes) - sizes
    return offsets


def initial_arrays(
    schema: ModelSchema, dense: Mapping[str, Array], tables: Mapping[int, Array]
) -> dict[str, Array]:
    """A whole fresh model in the form of one server's save: values only, every bucket.

    Args:
        schema: what the model consists of.
        dense: per dtype its flat vector, as in `dense_sizes`.
        tables: per index of a fixed table its values ``[num_rows, dim]``.
    """
    arrays: dict[str, Array] = {"buckets": np.arange(NUM_BUCKETS)}
    for dtype in dense_sizes(schema):
        arrays[f"dense.{dtype}.value"] = dense[dtype]
    for index, table in enumerate(schema.tables):
        if table.num_rows is not None:
            rows = [tables[index][bucket::NUM_BUCKETS] for bucket in range(NUM_BUCKETS)]
            arrays[f"table.{table.name}.value"] = np.concatenate(rows)
    return arrays
