"""Load of each bucket of a server: what a change of servers spreads evenly.

The unit is a row's or a block's element, read or updated. Of a table one request of 31 is
looked at, and counted 31 times: that costs a 31st, and says as much over some seconds.
What was asked long ago counts less.
"""

from collections.abc import Sequence

import numpy as np

from paceline.runtime.state import kernels, layout
from paceline.runtime.state.arrays import Array, Int64s
from paceline.wire.schema import NUM_BUCKETS, ModelSchema

EVERY = 31
"""Requests of which one is looked at. A prime: workers that come in turn are all counted."""
MANY = 1024
"""Rows of a request from which on one row of `EVERY` is looked at. That number has no factor in
common with the number of buckets, so ids one after another meet all of them."""
HALF_LIFE_S = 30.0

_EACH = np.arange(NUM_BUCKETS, dtype=np.int32)


class BucketLoad:
    """Load of a share of a model, by bucket.

    Args:
        schema: of the model.
        owned: the buckets of the share.
    """

    def __init__(self, schema: ModelSchema, owned: Sequence[int]) -> None:
        self._schema = schema
        self._seen = [0] * len(schema.tables)
        self._dense = _dense_elements(schema, owned)
        self._num_dense = dict.fromkeys(self._dense, 0)
        self._counted = np.zeros(NUM_BUCKETS)
        #: Both fade alike: their ratio is the mean, with recent seconds before older ones.
        self._sum, self._sum_s = np.zeros(NUM_BUCKETS), 0.0
        self._since_s: float | None = None

    def dense(self, *dtypes: str) -> None:
        """Note that all blocks of these dtypes are read or updated."""
        for dtype in dtypes:
            self._num_dense[dtype] += 1

    def rows(self, table: int, ids: Int64s) -> None:
        """Rows of a table, by their ids, are read or updated."""
        self._seen[table] += 1
        if self._seen[table] % EVERY == 0:
            spec = self._schema.tables[table]
            step = EVERY if ids.size >= MANY else 1
            found = _counts(ids[::step], dynamic=spec.num_rows is None)
            self._counted += found * (EVERY * step * spec.dim)

    def per_s(self, now_s: float) -> tuple[int, ...]:
        """Elements read and updated per second; the first call, from which on they count: none.

        Args:
            now_s: on a clock that never goes back.
        """
        asked = self._counted
        for dtype, count in self._num_dense.items():
            asked = asked + count * self._dense[dtype]
        since_s, self._since_s = self._since_s, now_s
        self._counted, self._num_dense = np.zeros(NUM_BUCKETS), dict.fromkeys(self._dense, 0)
        if since_s is None or since_s >= now_s:
            return (0,) * NUM_BUCKETS
        fade = 0.5 ** ((now_s - since_s) / HALF_LIFE_S)
        self._sum = fade * self._sum + asked
        self._sum_s = fade * self._sum_s + now_s - since_s
        return tuple(int(each) for each in self._sum / self._sum_s)


def _counts(ids: Int64s, *, dynamic: bool) -> Array:
    bucket = np.empty(ids.size, np.int32)
    find = kernels.owners_of_keys if dynamic else kernels.owners_of_ids
    find(kernels.plain(ids, np.int64), _EACH, bucket)
    return np.bincount(bucket, minlength=NUM_BUCKETS)


def _dense_elements(schema: ModelSchema, owned: Sequence[int]) -> dict[str, Array]:
    """Return the elements in each bucket, by dtype."""
    found: dict[str, Array] = {}
    for dtype, size in layout.dense_sizes(schema).items():
        found[dtype] = np.zeros(NUM_BUCKETS)
        for bucket in owned:
            blocks = layout.dense_blocks(size, schema.block_elems, (bucket,))
            found[dtype][bucket] = sum(stop - start for start, stop in blocks)
    return found
