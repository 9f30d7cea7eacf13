"""The order in which one epoch visits the records: positions in, record indices out.

The ledger deals in positions only; this is the one place that knows which record a position is.
It is a pure function of the constructor's arguments, so a worker that takes over a lease in
mid-shard reads exactly the records that its predecessor would have read. Imports no torch.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from paceline.base.errors import ConfigError, InternalError
from paceline.runtime.data.permutation import Permutation, derive_key
from paceline.runtime.data.walks import IntArray

DEFAULT_SHARD_SIZE = 4096
AHEAD = 4096
"""Positions that are worked out at once."""


class EpochOrder:
    """Shuffle between shards and within shards.

    A shard is ``shard_size`` consecutive records; if the length is no multiple of it, exactly one
    shard is short, wherever the shuffle puts it. The order of shards depends on (seed, epoch),
    the order inside a shard on (seed, epoch, shard).

    With ``window_shards`` only that many neighbouring shards are mixed with each other: the
    dataset is cut in windows of ``window_shards * shard_size`` records which come one after the
    other. The order of a full window does not depend on the dataset's length, so a dataset whose
    length is still being counted (``num_samples=None``) can be read window by window.

    Attributes:
        num_samples: records in one epoch, or None while they are being counted.
        window_size: records in a window, or None without windows.

    Raises:
        ConfigError: a size is not positive, or the length is unknown and there are no windows.
    """

    def __init__(
        self,
        num_samples: int | None,
        shard_size: int = DEFAULT_SHARD_SIZE,
        seed: int = 0,
        shuffle: bool = True,
        window_shards: int | None = None,
    ) -> None:
        for name, value in (("shard_size", shard_size), ("window_shards", window_shards)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; give a whole number of at least 1")
        if num_samples is not None and num_samples < 0:
            raise ConfigError(f"num_samples is {num_samples}; give a whole number of at least 0")
        if num_samples is None and shuffle and window_shards is None:
            raise ConfigError(
                "a dataset whose length is not known yet can be shuffled only in windows: "
                "give window_shards, or shuffle=False, or wait for the length"
            )
        self.num_samples = num_samples
        self.shard_size = shard_size
        self.seed = seed
        self.shuffle = shuffle
        self.window_size = None if window_shards is None else window_shards * shard_size

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """The record indices at positions ``start <= k < stop`` of one epoch, in order.

        Cheap inside one shard (its permutation is kept while in use), and in the whole for
        ranges over long shards; shards of a few records cost some microseconds each.

        Raises:
            InternalError: the range does not lie in ``[0, num_samples)``.
        """
        if not 0 <= start <= stop or (self.num_samples is not None and stop > self.num_samples):
            raise InternalError(f"positions [{start}, {stop}) of a feed of {self.num_samples}")
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        parts = list(self._parts(epoch, start, stop))
        return parts[0] if len(parts) == 1 else np.concatenate([_NOTHING, *parts])

    def _parts(self, epoch: int, start: int, stop: int) -> Iterator[IntArray]:
        while start < stop:
            window, base, length = self._window_of(start)
            end = min(stop, base + length)
            shards = _shard_order(length, self.shard_size, derive_key(self.seed, epoch, window))
            for part in shards.indices(start - base, end - base):
                yield part + base
            start = end

    def _window_of(self, position: int) -> tuple[int, int, int]:
        """Window number, first record and number of records of the window of ``position``."""
        if self.window_size is None:
            return 0, 0, self.num_samples or 0
        window = position // self.window_size
        base = window * self.window_size
        if self.num_samples is None:
            return window, base, self.window_size
        return window, base, min(self.window_size, self.num_samples - base)


class IndicesAhead:
    """Records by their positions, worked out for many at once where one batch follows another."""

    def __init__(self) -> None:
        self._known: tuple[EpochOrder | None, int] = (None, 0)
        self._start = self._next = 0
        self._indices = _NOTHING

    def indices(self, order: EpochOrder, epoch: int, start: int, stop: int) -> IntArray:
        """See `EpochOrder.indices`; not to be written to."""
        is_next = self._known == (order, epoch) and start == self._next
        self._next = stop
        offset = start - self._start
        if is_next and offset + stop - start <= len(self._indices):
            return self._indices[offset : offset + stop - start]
        end = stop
        if is_next and order.num_samples is not None and type(order) is EpochOrder:
            end = max(stop, min(start + AHEAD, order.num_samples))
        self._known, self._start = (order, epoch), start
        self._indices = order.indices(epoch, start, end)
        return self._indices[: stop - start]


_NOTHING = np.empty(0, np.int64)


class _ShardOrder:
    """The shuffled order of ``length`` records; see EpochOrder."""

    def __init__(self, length: int, shard_size: int, key: int) -> None:
        self.length, self.shard_size, self.key = length, shard_size, key
        num_shards = -(-length // shard_size)
        self.shards = Permutation(key, num_shards)
        self.short_len = length % shard_size
        # Rank of the short shard; past the end when all are full.
        self.short_rank = int(self.shards.inverse(num_shards - 1)) if self.short_len else num_shards

    def indices(self, start: int, stop: int) -> Iterator[IntArray]:
        """The records at positions ``[start, stop)``, shard by shard."""
        if self.shard_size == 1:
            yield self.shards.forward(np.arange(start, stop))
            return
        first = self._rank_of(start)
        ranks = np.arange(first, self._rank_of(stop - 1) + 1)
        for rank, shard in enumerate(self.shards.forward(ranks).tolist(), first):
            shard_start, shard_stop = self._first_position(rank), self._first_position(rank + 1)
            inside = _permutation(derive_key(self.key, shard), shard_stop - shard_start)
            low, high = max(start, shard_start), min(stop, shard_stop)
            offsets = np.arange(low - shard_start, high - shard_start)
            yield inside.forward(offsets) + shard * self.shard_size

    def _rank_of(self, position: int) -> int:
        rank = position // self.shard_size
        if rank < self.short_rank:
            return rank
        if position < self._first_position(self.short_rank + 1):
            return self.short_rank
        return (position - self.short_len) // self.shard_size + 1

    def _first_position(self, rank: int) -> int:
        if rank <= self.short_rank:
            return rank * self.shard_size
        return (rank - 1) * self.shard_size + self.short_len


@lru_cache(maxsize=4)
def _shard_order(length: int, shard_size: int, key: int) -> _ShardOrder:
    return _ShardOrder(length, shard_size, key)


@lru_cache(maxsize=16)
def _permutation(key: int, length: int) -> Permutation:
    # Several shards are in use at once: leases of more than one epoch, validation, prefetching.
    return Permutation(key, length)
