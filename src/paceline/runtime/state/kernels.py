"""Compiled kernels over ids and rows: hashing, look-up, merging, gathering, partitioning.

All are single-threaded, release the GIL and are cached on disk, so only the first process on a
machine compiles. Arguments are plain arrays (contiguous, aligned, writable: see `plain`) of few
types, which keeps the number of compiled variants small. Every result depends on the arguments
alone, never on timing. A cached kernel is as old as its own file: what it inlines from elsewhere
is not looked at, so only what matters for speed alone may come from another file.

Tight loops over random memory prefetch a few elements ahead: they are bound by the latency of main
memory, not by arithmetic.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.base.optional import extra_for
from paceline.runtime.state.arrays import Array, Int32s, Int64s

with extra_for("a model on servers or with sparse tables"):
    from llvmlite import ir
    from numba import njit, types
    from numba.extending import intrinsic

compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"nsz"})
"""The one way kernels are compiled: no reassociation, so sums keep their written order; nothing is
contracted, so each operation rounds, as torch's do."""

BUCKET_BITS = 6
"""NUM_BUCKETS is 1 << BUCKET_BITS; compiled in."""
_BUCKET_MASK = (1 << BUCKET_BITS) - 1
_PART_BITS = 16
HASH_PARTS = 1 << _PART_BITS
"""Equal parts of the range of hashes, each within one bucket: the grain of a table's export."""
AHEAD = 8
"""Rows between the one worked on and the one prefetched: 4 and 8 measured best of 4 to 64."""
FAR_AHEAD = 32
"""Like `AHEAD`, for hash slots, which are one line and little work each: best of 4 to 64."""


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask the cache for ``array[index]``, the first line of that row; never faults."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        byte_pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        position = context.cast(builder, args[1], signature.args[1], types.intp)
        offset = builder.mul(position, builder.extract_value(view.strides, 0))
        address = builder.gep(builder.bitcast(view.data, byte_pointer), [offset])
        form = ir.FunctionType(ir.VoidType(), [byte_pointer, i32, i32, i32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], form)
        builder.call(function, [address, i32(0), i32(3), i32(1)])  # read, keep, data
        return context.get_dummy_value()

    return types.void(array, index), codegen


prefetch: Any = intrinsic(_prefetch)  # Any: numba's types know the definition, not the call


class _Alias:
    """Passes an array's memory on under its array interface; keeps the array alive."""

    def __init__(self, array: Array) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.array = array


def plain(array: Array, dtype: npt.DTypeLike) -> Array:
    """Return the same values as a contiguous, aligned array that is not flagged read-only.

    Received buffers are read-only, which to the compiler is another type and would compile every
    kernel once more. Kernels never write to their inputs, so the flag is taken off an alias. Copies
    only what is strided, misaligned or of another type.
    """
    array = np.require(array, dtype, ["C", "A"])
    return array if array.flags.writeable else np.asarray(_Alias(array))


# ---------------------------------------------------------------------------------------- hashing


@compiled
def mix(key: int | np.int64) -> np.uint64:
    """splitmix64's finaliser: 64 well-mixed bits of any 64-bit key."""
    bits = np.uint64(key) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@compiled
def bucket_of_key(key: int) -> np.uint64:
    """Bucket of a dynamic table's key: the top bits; hash tables use the bottom ones."""
    return mix(key) >> np.uint64(64 - BUCKET_BITS)


@compiled
def owners_of_keys(keys: Int64s, owners: Int32s, out: Int32s) -> None:
    """Server of each key of a dynamic table; ``owners`` is per bucket."""
    for i in range(keys.size):
        out[i] = owners[bucket_of_key(keys[i])]


@compiled
def owners_of_ids(ids: Int64s, owners: Int32s, out: Int32s) -> None:
    """Server of each id of a fixed table; ``owners`` is per bucket. Negative ids stay in range."""
    for i in range(ids.size):
        out[i] = owners[np.uint64(ids[i]) & np.uint64(_BUCKET_MASK)]


@compiled
def partition(owners: Int32s, num_servers: int, order: Int64s, bounds: Int64s) -> None:
    """Stable counting sort: ``order[bounds[s]:bounds[s + 1]]`` are positions of server ``s``."""
    bounds[:] = 0
    for i in range(owners.size):
        bounds[owners[i] + 1] += 1
    for s in range(num_servers):
        bounds[s + 1] += bounds[s]
    at = bounds[:num_servers].copy()
    for i in range(owners.size):
        order[at[owners[i]]] = i
        at[owners[i]] += 1


@compiled
def part_of_key(key: int) -> np.int64:
    """Return the number of the part, of HASH_PARTS, that a key falls into."""
    return np.int64(mix(key) >> np.uint64(64 - _PART_BITS))


@compiled
def count_parts(keys: Int64s, counts: Int64s) -> None:
    """Add to ``counts`` [HASH_PARTS] how many keys are in each part."""
    for i in range(keys.size):
        counts[part_of_key(keys[i])] += 1


@compiled
def find_parts(keys: Int64s, start: int, stop: int, places: Int64s) -> None:
    """Positions of the keys of parts ``start`` to ``stop``, the latter excluded, ascending."""
    count = 0
    for i in range(keys.size):
        if start <= part_of_key(keys[i]) < stop:
            places[count] = i
            count += 1


# ------------------------------------------------------------------------------------- id to row


@compiled
def fixed_rows(ids: Int64s, offsets: Int64s, num_rows: int, rows: Int64s) -> int:
    """Slab rows of a fixed table's ids; returns the first bad position, -1 if there is none."""
    for i in range(ids.size):
        key = ids[i]
        if key < 0 or key >= num_rows:
            return i
        offset = offsets[np.uint64(key) & np.uint64(_BUCKET_MASK)]
        if offset < 0:
            return i
        rows[i] = offset + (key >> BUCKET_BITS)
    return -1


@compiled
def find(slots: Int64s, keys: Int64s, rows: Int64s) -> int:
    """Rows of ``keys`` in a hash table, -1 where absent; returns how many are absent.

    ``slots`` is int64 ``[capacity, 2]``, capacity a power of two: key and row + 1, which is 0 in a
    free slot. One slot is 16 bytes, so a probe costs one cache line.
    """
    mask = np.uint64(slots.shape[0] - 1)
    size = keys.size
    absent = 0
    for i in range(min(FAR_AHEAD, size)):
        prefetch(slots, mix(keys[i]) & mask)
    for i in range(size):
        if i + FAR_AHEAD < size:
            prefetch(slots, mix(keys[i + FAR_AHEAD]) & mask)
        key = keys[i]
        slot = mix(key) & mask
        while slots[slot, 1] != 0 and slots[slot, 0] != key:
            slot = (slot + np.uint64(1)) & mask
        rows[i] = slots[slot, 1] - 1
        absent += slots[slot, 1] == 0
    return absent


@compiled
def insert(
    slots: Int64s, keys: Int64s, rows: Int64s, start: int, row_keys: Int64s, used: int, limit: int
) -> tuple[int, int]:
    """`find`, but absent keys get the next row; stops before row ``limit``.

    Args:
        slots: the hash table, see `find`.
        keys: what to look up, from position ``start`` on.
        rows: the answers.
        start: first position to do.
        row_keys: key of each row, extended with every new one.
        used: rows in use.
        limit: rows there is room for.

    Returns:
        The position reached (all done when it is ``keys.size``) and the rows now in use.
    """
    mask = np.uint64(slots.shape[0] - 1)
    size = keys.size
    for i in range(start, size):
        if i + FAR_AHEAD < size:
            prefetch(slots, mix(keys[i + FAR_AHEAD]) & mask)
        key = keys[i]
        slot = mix(key) & mask
        while slots[slot, 1] != 0 and slots[slot, 0] != key:
            slot = (slot + np.uint64(1)) & mask
        if slots[slot, 1] == 0:
            if used == limit:
                return i, used
            slots[slot, 0] = key
            row_keys[used] = key
            used += 1
            slots[slot, 1] = used
        rows[i] = slots[slot, 1] - 1
    return size, used


# ---------------------------------------------------------------------------------------- merging


@compiled
def number(ids: Int64s, scratch: Int32s, distinct: Int64s, inverse: Int64s) -> int:
    """Number ids by first appearance: ``distinct[inverse] == ids``; returns how many are distinct.

    ``scratch`` is a hash table of numbers, all -1 (free), a power of two > ``ids.size`` long.
    """
    mask = np.uint64(scratch.size - 1)
    count = 0
    for i in range(ids.size):
        key = ids[i]
        slot = mix(key) & mask
        seen = scratch[slot]
        while seen >= 0 and distinct[seen] != key:
            slot = (slot + np.uint64(1)) & mask
            seen = scratch[slot]
        if seen < 0:
            scratch[slot] = seen = count
            distinct[count] = key
            count += 1
        inverse[i] = seen
    return count


@compiled
def sum_rows(inverse: Int64s, grads: Array, out: Array) -> None:
    """``out[inverse[i]] += grads[i]`` in order; numbers first seen in ascending order are set."""
    count = 0
    for i in range(inverse.size):
        row = inverse[i]
        if row == count:
            count += 1
            for d in range(grads.shape[1]):
                out[row, d] = grads[i, d]
        else:
            for d in range(grads.shape[1]):
                out[row, d] += grads[i, d]


@compiled
def add_rows(inverse: Int64s, grads: Array, out: Array) -> None:
    """``out[inverse[i]] += grads[i]`` in order."""
    for i in range(inverse.size):
        row = inverse[i]
        for d in range(grads.shape[1]):
            out[row, d] += grads[i, d]


def scratch_for(size: int) -> Int32s:
    """A free hash scratch for ``size`` ids, at most half full."""
    return np.full(1 << max(4, (2 * size - 1).bit_length()), -1, np.int32)


def unique(ids: Int64s) -> tuple[Int64s, Int64s]:
    """Distinct ids in order of first appearance, and each id's number among them."""
    ids = plain(ids, np.int64)
    distinct, inverse = np.empty_like(ids), np.empty_like(ids)
    count = number(ids, scratch_for(ids.size), distinct, inverse)
    return distinct[:count], inverse


def dedup(ids: Int64s, grads: Array) -> tuple[Int64s, Array]:
    """Merge equal ids: distinct ids in order of first appearance, their gradients summed.

    Sums run in the order given, so equal arguments give equal bits. Without repeated ids the
    gradients come back as they are, not copied.
    """
    distinct, inverse = unique(ids)
    if distinct.size == ids.size:
        return distinct, plain(grads, grads.dtype)
    summed = np.empty((distinct.size, grads.shape[1]), grads.dtype)
    sum_rows(inverse, plain(grads, grads.dtype), summed)
    return distinct, summed


def split(ids: Int64s, owners: Int32s, num_servers: int, *, dynamic: bool) -> tuple[Int64s, Int64s]:
    """Group positions of ``ids`` by server, each group in the order given.

    Args:
        ids: int64 ``[n]``.
        owners: int32 ``[NUM_BUCKETS]``, the server of each bucket.
        num_servers: how many there are.
        dynamic: whether the table is dynamic (buckets by hash) or fixed (by remainder).

    Returns:
        ``order`` [n] and ``bounds`` [num_servers + 1]: server ``s`` gets
        ``ids[order[bounds[s]:bounds[s + 1]]]``.
    """
    ids = plain(ids, np.int64)
    servers = np.empty(ids.size, np.int32)
    (owners_of_keys if dynamic else owners_of_ids)(ids, owners, servers)
    order, bounds = np.empty(ids.size, np.int64), np.empty(num_servers + 1, np.int64)
    partition(servers, num_servers, order, bounds)
    return order, bounds


# ----------------------------------------------------------------------------- gather, first values


@compiled
def gather(values: Array, rows: Int64s, out: Array) -> None:
    """``out[i] = values[rows[i]]``; negative rows are skipped."""
    size = rows.size
    for i in range(size):
        if i + AHEAD < size:
            prefetch(values, rows[i + AHEAD])
        row = rows[i]
        if row >= 0:
            for d in range(values.shape[1]):
                out[i, d] = values[row, d]


@compiled
def initial_row(key: int, seed: int, std: float, out: Array) -> None:
    """Fill ``out`` with N(0, std), a pure function of seed and key (Box-Muller over splitmix64)."""
    base = mix(key) ^ mix(np.int64(seed) ^ np.int64(0x5851F42D4C957F2D))
    for d in range(0, out.size, 2):
        bits = mix(np.int64(base + np.uint64(d)))
        radius_part = (np.float64(bits >> np.uint64(32)) + 1.0) * 2.0**-32  # in (0, 1]
        angle = np.float64(bits & np.uint64(0xFFFFFFFF)) * (2.0**-31 * math.pi)
        radius = std * math.sqrt(-2.0 * math.log(radius_part))
        out[d] = radius * math.cos(angle)
        if d + 1 < out.size:
            out[d + 1] = radius * math.sin(angle)


@compiled
def initial_rows(keys: Int64s, seed: int, std: float, out: Array) -> None:
    """`initial_row` of every key."""
    for i in range(keys.size):
        initial_row(keys[i], seed, std, out[i])


@compiled
def initial_where_absent(keys: Int64s, rows: Int64s, seed: int, std: float, out: Array) -> None:
    """`initial_row` of the keys whose row is negative."""
    for i in range(keys.size):
        if rows[i] < 0:
            initial_row(keys[i], seed, std, out[i])
