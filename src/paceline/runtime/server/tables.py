"""The embedding tables of one server: rows found by arithmetic (fixed) or by hash (dynamic).

A table keeps one slab of values ``[rows, dim]`` and slabs of optimizer state of as many rows. Who
owns what is decided before (`layout`); tables trust that they are asked only for their buckets
where checking would cost a pass, and say so.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from paceline.base.errors import InternalError, PermanentError
from paceline.runtime.checkpoint.cutfile import Scattered
from paceline.runtime.server.optimizer_kind import State
from paceline.runtime.server.rules import Rule
from paceline.runtime.server.snapshot_while_serving import Aside
from paceline.runtime.state import kernels, layout
from paceline.runtime.state.arrays import Array, Int64s
from paceline.wire.schema import NUM_BUCKETS, OptimizerGroup, Table

MIN_ROWS = 1024
FULLEST = 0.6875
"""Load of a hash table above which it doubles: 11/16, about 2.1 probes for a hit."""


class Slabs:
    """Values and optimizer state of ``rows`` rows; grows by copying."""

    def __init__(self, table: Table, group: OptimizerGroup, rows: int) -> None:
        self.table = table
        self._first = self.rule = Rule(group, sparse=True)
        self.step = 0
        """Updates of the table so far, of whichever rows."""
        self.arrays: dict[str, Array] = {}
        self.grow(rows)

    def change(self, hyper: Mapping[str, float]) -> None:
        """Make these hyper-parameters differ from the schema's from here on, and no others."""
        self.rule = self._first.changed(hyper) if hyper else self._first

    def grow(self, rows: int) -> None:
        """Make room for ``rows`` rows; new ones hold value 0 and initial state."""
        for state in (State("value"), *self.rule.states):
            width = 1 if state.per_row else self.table.dim
            slab = np.zeros((rows, width), state.dtype or self.table.dtype)
            held = self.arrays.get(state.name, slab[:0])
            slab[: len(held)] = held
            if state.initial:
                slab[len(held) :] = state.initial
            self.arrays[state.name] = slab

    @property
    def row_bytes(self) -> int:
        """Bytes of the value and the state of one row."""
        return sum(slab.itemsize * slab.shape[1] for slab in self.arrays.values())

    @property
    def values(self) -> Array:
        """The values, ``[rows, dim]``."""
        return self.arrays["value"]

    def update(self, rows: Int64s, grads: Array, lr: float) -> None:
        """Run the optimizer once on each of ``rows``: distinct ones; negative ones are skipped."""
        states = [self.arrays[state.name] for state in self.rule.states]
        self.rule.step_rows(self.values, states, rows, grads, lr, self.step)


class FixedTable:
    """The buckets of a table with ``num_rows`` ids that one server holds."""

    def __init__(self, table: Table, group: OptimizerGroup, buckets: Sequence[int]) -> None:
        assert table.num_rows is not None  # chosen by `Store`
        self.table = table
        self.num_rows = table.num_rows
        self.buckets = buckets
        self.offsets = layout.bucket_offsets(table.num_rows, buckets)
        self.sizes = layout.bucket_rows(table.num_rows)
        self.slabs = Slabs(table, group, int(self.sizes[list(buckets)].sum()))
        self.aside: Aside | None = None
        """The copy under way, to be told what is about to change; None: there is none."""

    def _rows(self, ids: Int64s) -> Int64s:
        rows = np.empty(ids.size, np.int64)
        bad = kernels.fixed_rows(ids, self.offsets, self.num_rows, rows)
        if bad < 0:
            return rows
        if 0 <= ids[bad] < self.num_rows:
            raise InternalError(
                f"table {self.table.name!r}: id {ids[bad]} is in bucket {ids[bad] % NUM_BUCKETS}, "
                f"which this server does not own"
            )
        raise PermanentError(
            f"table {self.table.name!r}: id {ids[bad]} is out of range, the table has "
            f"{self.num_rows} rows (0 to {self.num_rows - 1}); give it more rows or make it dynamic"
        )

    def read(self, ids: Int64s, out: Array) -> None:
        """Copy the rows of ``ids`` to ``out``."""
        kernels.gather(self.slabs.values, self._rows(ids), out)

    def apply(self, ids: Int64s, grads: Array, lr: float, now: int) -> None:
        """Take one optimizer step on the rows of ``ids``, which are distinct."""
        rows = self._rows(ids)
        if self.aside is not None:
            self.aside.before_rows(self.table.name, rows, self.slabs.arrays)
        self.slabs.update(rows, grads, lr)

    def save(self) -> dict[str, Array]:
        """Live views of all slabs, buckets in ascending order."""
        return dict(self.slabs.arrays)

    def load(self, saved: Mapping[str, Array], buckets: Sequence[int]) -> None:
        """Take what this server owns from a save of a holder of ``buckets``."""
        runs = self._runs(buckets)
        for name, slab in self.slabs.arrays.items():
            for source, mine in runs if name in saved else ():
                slab[mine] = saved[name][source : source + mine.stop - mine.start]

    def _runs(self, buckets: Sequence[int]) -> list[tuple[int, slice]]:
        """Return the first row there and the rows here of each bucket that is here, too."""
        offsets = layout.bucket_offsets(self.num_rows, buckets)
        return [
            (int(offsets[one]), slice(self.offsets[one], self.offsets[one] + self.sizes[one]))
            for one in sorted(set(buckets) & set(self.buckets))
        ]

    def part(self, buckets: Sequence[int]) -> dict[str, Array | Scattered]:
        """The slabs of a holder of some of these buckets: views."""
        runs = self._runs(buckets)
        return {
            name: Scattered((slab[:0], *(slab[mine] for _, mine in runs)))
            for name, slab in self.slabs.arrays.items()
        }

    def places(self, buckets: Sequence[int]) -> dict[str, list[tuple[int, Array]]]:
        """Return where the bytes of such a part's slabs belong: the slab's byte, and the bytes."""
        runs = self._runs(buckets)
        return {
            name: [
                (source * slab[:1].nbytes, slab[mine].reshape(-1).view(np.uint8))
                for source, mine in runs
            ]
            for name, slab in self.slabs.arrays.items()
        }

    def piece(self, start: int, count: int) -> tuple[Int64s, Array, int | None]:
        """Return a piece; ``start`` is a row."""
        rows = slice(start, start + count)
        each = [np.arange(bucket, self.num_rows, NUM_BUCKETS) for bucket in self.buckets]
        ids = np.concatenate([np.empty(0, np.int64), *each])
        more = rows.stop if rows.stop < ids.size else None
        return ids[rows], self.slabs.values[rows].copy(), more


class KeyIndex:
    """64-bit keys numbered 0, 1, 2, … in order of insertion; any key is valid."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.used = 0
        self.row_keys = np.empty(MIN_ROWS, np.int64)
        self.slots = np.zeros((2 * MIN_ROWS, 2), np.int64)

    @property
    def keys(self) -> Int64s:
        """The keys, by row."""
        return self.row_keys[: self.used]

    def find(self, keys: Int64s) -> tuple[Int64s, int]:
        """Row of each key, -1 where absent, and how many are absent."""
        rows = np.empty(keys.size, np.int64)
        return rows, kernels.find(self.slots, keys, rows)

    def insert(self, keys: Int64s) -> Int64s:
        """Row of each key; absent ones get the next rows."""
        rows = np.empty(keys.size, np.int64)
        done = 0
        while done < keys.size:
            limit = min(self.row_keys.size, int(self.slots.shape[0] * FULLEST))
            done, self.used = kernels.insert(
                self.slots, keys, rows, done, self.row_keys, self.used, limit
            )
            if done < keys.size:
                self._grow()
        return rows

    def keep(self, rows: Int64s) -> None:
        """Drop all keys but those of ``rows`` (ascending), and number these again."""
        kept = self.row_keys[rows]
        self._clear()  # deleting from open addressing is rebuilding
        self.insert(kept)

    def _grow(self) -> None:
        if self.used == self.row_keys.size:
            wider = np.empty(2 * self.used, np.int64)
            wider[: self.used] = self.row_keys
            self.row_keys = wider
        if self.used >= int(self.slots.shape[0] * FULLEST):
            keys, slots = self.keys.copy(), np.zeros((2 * self.slots.shape[0], 2), np.int64)
            self.slots = slots
            kernels.insert(slots, keys, np.empty_like(keys), 0, self.row_keys, 0, keys.size)


class Waiting:
    """Keys seen, but not often enough to get a row: how often, and when last.

    An admitted key stays with count 0 until half of all are such: dropping keys is rebuilding.
    """

    def __init__(self) -> None:
        self.index = KeyIndex()
        self.counts = np.zeros(MIN_ROWS, np.int64)
        self.seen_at = np.zeros(MIN_ROWS, np.int64)
        self.idle = 0

    @property
    def last_seen(self) -> Int64s:
        """Update in which each key was seen last."""
        return self.seen_at[: self.index.used]

    def see(self, keys: Int64s, step: int, admit: int) -> Int64s:
        """Count distinct keys; returns those that were now seen ``admit`` times, which leave."""
        known = self.index.used
        places = self._places(keys)
        self.idle -= int(np.count_nonzero(self.counts[places[places < known]] == 0))
        self.counts[places] += 1
        self.seen_at[places] = step
        ready = self.counts[places] >= admit
        self.counts[places[ready]] = 0
        self.idle += int(np.count_nonzero(ready))
        if self.idle > max(MIN_ROWS, self.index.used // 2):
            self.keep(self.counts[: self.index.used] > 0)
        return keys[ready]

    def keep(self, kept: Array) -> None:
        """Drop the keys that are not ``kept`` (a mask), and those admitted."""
        places = np.flatnonzero(kept & (self.counts[: self.index.used] > 0))
        if places.size == self.index.used:
            return
        for array in (self.counts, self.seen_at):
            array[: places.size] = array[places]
            array[places.size :] = 0
        self.index.keep(places)
        self.idle = 0

    def save(self) -> tuple[Int64s, Int64s, Int64s]:
        """Keys, counts and times of all that wait (copies)."""
        waits = np.flatnonzero(self.counts[: self.index.used])
        return self.index.keys[waits], self.counts[waits], self.seen_at[waits]

    def load(self, keys: Int64s, counts: Int64s, last_seen: Int64s) -> None:
        """Add what `save` gave."""
        places = self._places(kernels.plain(keys, np.int64))
        self.counts[places] = counts
        self.seen_at[places] = last_seen

    def _places(self, keys: Int64s) -> Int64s:
        places = self.index.insert(keys)
        self.counts = _longer(self.counts, self.index.row_keys.size)
        self.seen_at = _longer(self.seen_at, self.index.row_keys.size)
        return places


class DynamicTable:
    """Rows by 64-bit key, created by their first updates, dropped by age or when too many.

    A key gets its row in the ``admit``-th update that contains it; earlier gradients of it are not
    applied. Ages count updates of this server, which are the same on all servers.
    """

    def __init__(self, table: Table, group: OptimizerGroup, buckets: Sequence[int]) -> None:
        self.table = table
        self.buckets = buckets
        self.capacity = None
        if table.capacity is not None:
            self.capacity = -(-table.capacity * len(buckets) // NUM_BUCKETS)
        self.index = KeyIndex()
        self.slabs = Slabs(table, group, MIN_ROWS)
        self.last_used = np.zeros(MIN_ROWS, np.int64)
        self.waiting = Waiting()
        self.aside: Aside | None = None
        """The copy under way, to be told what is about to change; None: there is none."""

    def read(self, keys: Int64s, out: Array) -> None:
        """Copy the rows of ``keys`` to ``out``; an absent key reads as its would-be first row."""
        rows, absent = self.index.find(keys)
        kernels.gather(self.slabs.values, rows, out)
        if absent:
            table = self.table
            kernels.initial_where_absent(keys, rows, table.init_seed, float(table.init_std), out)

    def apply(self, keys: Int64s, grads: Array, lr: float, now: int) -> None:
        """Take one optimizer step on the rows of ``keys``, which are distinct; admits."""
        rows = self._admitted(keys, now) if self.table.admit > 1 else self._created(keys)
        if self.aside is not None:
            self.aside.before_rows(self.table.name, rows, self._arrays())
        self.last_used[rows[rows >= 0]] = now
        self.slabs.update(rows, grads, lr)

    def _created(self, keys: Int64s) -> Int64s:
        before = self.index.used
        rows = self.index.insert(keys)
        used = self.index.used
        if used > len(self.last_used):
            room = self.index.row_keys.size
            self.slabs.grow(room)
            self.last_used = _longer(self.last_used, room)
        table = self.table
        fresh = self.slabs.values[before:used]
        kernels.initial_rows(
            self.index.row_keys[before:used], table.init_seed, float(table.init_std), fresh
        )
        return rows

    def _admitted(self, keys: Int64s, step: int) -> Int64s:
        rows, absent = self.index.find(keys)
        if absent:
            ready = self.waiting.see(keys[rows < 0], step, self.table.admit)
            if ready.size:
                self._created(ready)
                rows, _ = self.index.find(keys)
        return rows

    def evict(self, step: int) -> None:
        """Drop what is too old (looked for 8 times a lifetime) and, if too many, the oldest.

        Called after every update, of this table or not: then rows end alike on any servers.
        """
        ttl = self.table.ttl_steps
        if ttl is not None and step % max(1, ttl // 8) == 0:
            self._keep(np.flatnonzero(step - self.last_used[: self.index.used] <= ttl))
            self.waiting.keep(step - self.waiting.last_seen <= ttl)
        if self.capacity is not None and self.index.used > self.capacity:
            # Ties go by key, not by row: rows are numbered differently after a restore.
            newest = np.lexsort((self.index.keys, -self.last_used[: self.index.used]))
            self._keep(np.sort(newest[: self.capacity - self.capacity // 16]))

    def _keep(self, rows: Int64s) -> None:
        if rows.size == self.index.used:
            return
        if self.aside is not None:
            self.aside.before_moving()
        for array in self._arrays().values():
            array[: rows.size] = array[rows]
        for state in self.slabs.rule.states:
            self.slabs.arrays[state.name][rows.size :] = state.initial
        self.index.keep(rows)

    def _arrays(self) -> dict[str, Array]:
        """Return all arrays that are kept by row, but for the keys."""
        return {**self.slabs.arrays, "last_used": self.last_used}

    def save(self) -> dict[str, Array]:
        """Live views of everything in use."""
        used = self.index.used
        arrays: dict[str, Array] = {name: array[:used] for name, array in self._arrays().items()}
        return arrays | {"key": self.index.keys} | self._saved_waiting()

    def _saved_waiting(self) -> dict[str, Array]:
        names = ("waiting_key", "waiting_count", "waiting_last_seen")
        return dict(zip(names, self.waiting.save(), strict=True))

    def part(self, buckets: Sequence[int]) -> dict[str, Array]:
        """Return what `save` of a holder of some of these buckets would: copies."""
        arrays = self.save()
        rows = np.flatnonzero(_of_buckets(arrays["key"], buckets))
        waits = np.flatnonzero(_of_buckets(arrays["waiting_key"], buckets))
        return {
            name: array[waits if name.startswith("waiting_") else rows]
            for name, array in arrays.items()
        }

    def load(self, saved: Mapping[str, Array], buckets: Sequence[int]) -> None:
        """Take the keys that this server owns from another's save."""
        if "key" not in saved:
            return
        mine = _of_buckets(saved["key"], self.buckets)
        rows = self._created(kernels.plain(saved["key"][mine], np.int64))
        for name, array in self._arrays().items():
            if name in saved:
                array[rows] = saved[name][mine]
        mine = _of_buckets(saved["waiting_key"], self.buckets)
        waiting = (saved[f"waiting_{name}"][mine] for name in ("key", "count", "last_seen"))
        self.waiting.load(*waiting)

    def piece(self, start: int, count: int) -> tuple[Int64s, Array, int | None]:
        """Return a piece; ``start`` is a part of the hashes, since evictions renumber rows."""
        sizes = np.zeros(kernels.HASH_PARTS, np.int64)
        kernels.count_parts(self.index.keys, sizes)
        sizes[:start] = 0
        stop = max(start + 1, int(np.searchsorted(np.cumsum(sizes), count, side="right")))
        rows = np.empty(sizes[start:stop].sum(), np.int64)
        kernels.find_parts(self.index.keys, start, stop, rows)
        more = stop if stop < kernels.HASH_PARTS else None
        return self.index.keys[rows], self.slabs.values[rows], more


def _longer(array: Array, size: int) -> Array:
    """``array`` with zeros behind it up to ``size``; itself when it is long enough."""
    if array.size >= size:
        return array
    longer = np.zeros(size, array.dtype)
    longer[: array.size] = array
    return longer


def _of_buckets(keys: Array, buckets: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return a mask of the keys that belong to these buckets."""
    owned = np.zeros(NUM_BUCKETS, np.int32)
    owned[list(buckets)] = 1
    mine = np.empty(keys.size, np.int32)
    kernels.owners_of_keys(kernels.plain(keys, np.int64), owned, mine)
    return mine.astype(np.bool_)
