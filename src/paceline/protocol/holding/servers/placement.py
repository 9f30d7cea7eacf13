"""Which server gets which bucket: even by what buckets weigh, with as few moves as possible.

Pure: owners and weights in, owners out.
"""

from collections.abc import Sequence
from math import prod

from paceline.base.numbering import Inc
from paceline.wire.schema import NUM_BUCKETS, ModelSchema

_BYTES = {"float32": 4, "float64": 8}
GAIN = 0.02
"""A move that makes the heavier of two servers lighter by less of a mean server is not worth it."""
LEAST = 0.01
"""A bucket without bytes weighs so much of a mean one: buckets are spread out, too."""


def bucket_weights(
    schema: ModelSchema, load: Sequence[float] = (), *, share_of_load: float = 0.5
) -> tuple[float, ...]:
    """Return the weight of each bucket: its part of the model's bytes, and of the measured load.

    How much a dynamic table holds is not known: its rows weigh as much as all else, in all buckets
    alike.

    Args:
        schema: the model.
        load: by bucket, what was asked of it in some time; none: nothing is known.
        share_of_load: how much of the weight is load, where there is any.
    """
    held = _even(_bucket_bytes(schema))
    if not any(load):
        return held
    asked = _even(load)
    pairs = zip(held, asked, strict=True)
    return tuple((1 - share_of_load) * one + share_of_load * two for one, two in pairs)


def _bucket_bytes(schema: ModelSchema) -> list[float]:
    found = [0.0] * NUM_BUCKETS
    sizes: dict[str, int] = {}
    for tensor in schema.dense:
        stop = tensor.offset + prod(tensor.shape)
        sizes[tensor.dtype] = max(stop, sizes.get(tensor.dtype, 0))
    for dtype, size in sizes.items():
        whole, rest = divmod(size, schema.block_elems)
        for bucket in range(NUM_BUCKETS):
            blocks = (whole - bucket + NUM_BUCKETS - 1) // NUM_BUCKETS
            elems = blocks * schema.block_elems + (rest if bucket == whole % NUM_BUCKETS else 0)
            found[bucket] += elems * _BYTES[dtype]
    for table in schema.tables:
        for bucket in range(NUM_BUCKETS if table.num_rows is not None else 0):
            rows = ((table.num_rows or 0) - bucket + NUM_BUCKETS - 1) // NUM_BUCKETS
            found[bucket] += rows * table.dim * _BYTES[table.dtype]
    grows = any(table.num_rows is None for table in schema.tables)
    each = (sum(found) or 1.0) / NUM_BUCKETS * (1.0 if grows else LEAST)
    return [size + each for size in found]


def _even(values: Sequence[float]) -> tuple[float, ...]:
    """Scale to a sum of 1."""
    total = sum(values)
    return tuple(value / total for value in values)


def place(
    owners: Sequence[Inc], servers: Sequence[Inc], weights: Sequence[float] = ()
) -> tuple[Inc, ...]:
    """Give each bucket to one of ``servers``; each of them gets at least one.

    Buckets of servers that are no longer there go to the others. Then buckets go from the server
    that holds most to the one that holds least, as long as that makes the heavier of both lighter.

    Args:
        owners: by bucket, who has it now.
        servers: who is to have them; at most as many as there are buckets.
        weights: by bucket; none: all weigh alike.
    """
    weights = weights or (1 / len(owners),) * len(owners)
    held: dict[Inc, list[int]] = {server: [] for server in servers}
    homeless: list[int] = []
    for bucket, owner in enumerate(owners):
        held.get(owner, homeless).append(bucket)
    loads = {server: sum(weights[bucket] for bucket in held[server]) for server in servers}

    def lightest() -> Inc:
        # Among equals the one with the fewest buckets: none may stay without any.
        return min(servers, key=lambda server: (loads[server], len(held[server])))

    def give(bucket: int, to: Inc) -> None:
        held[to].append(bucket)
        loads[to] += weights[bucket]

    for bucket in sorted(homeless, key=lambda bucket: -weights[bucket]):
        give(bucket, lightest())
    while (move := _best_move(held, loads, weights)) is not None:
        source, bucket, target = move
        held[source].remove(bucket)
        loads[source] -= weights[bucket]
        give(bucket, target)
    where = {bucket: server for server, buckets in held.items() for bucket in buckets}
    return tuple(where[bucket] for bucket in range(len(owners)))


def _best_move(
    held: dict[Inc, list[int]], loads: dict[Inc, float], weights: Sequence[float]
) -> tuple[Inc, int, Inc] | None:
    """Find the bucket whose move evens out most; an empty server gets one in any case."""
    source = max(loads, key=lambda server: (loads[server], len(held[server])))
    target = min(loads, key=lambda server: (len(held[server]) > 0, loads[server]))
    if not held[target]:
        source = max(held, key=lambda server: (len(held[server]) > 1, loads[server]))
    between = loads[source] - loads[target]
    bucket = min(
        held[source], key=lambda one: (abs(between - 2 * weights[one]), -weights[one], one)
    )
    helps = max(loads[source] - weights[bucket], loads[target] + weights[bucket])
    gain = GAIN * sum(loads.values()) / len(loads)
    if held[target] and helps >= loads[source] - gain:
        return None
    return source, bucket, target
