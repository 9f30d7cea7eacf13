"""The order of a sampler that has too many entries for a list.

A script that trains for a number of steps often asks for far more records than it reads:

    RandomSampler(dataset, replacement=True, num_samples=int(1e10))

Such a sampler is read when its entries are asked for, a block at a time.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from paceline.base.errors import ConfigError
from paceline.runtime.data.walks import IntArray
from paceline.runtime.process.seeding import draws, put_draws, seed_cpu

BLOCK = 1 << 12
"""Entries that are drawn at once."""
MOST_BLOCKS = 256
"""Blocks that are kept. What lies before them is drawn again from the beginning."""


class DrawnOrder:
    """The entries of a sampler by their places, the same in each process.

    Args:
        sampler: draws from the generators of the process, or from none.
        seed: of these generators when it begins.
    """

    def __init__(self, sampler: Any, seed: int) -> None:
        self._sampler, self._seed, self._num = sampler, seed, len(sampler)
        self._begin()

    def _begin(self) -> None:
        self._blocks = OrderedDict[int, IntArray]()
        self._entries: Iterator[Any] | None = None
        self._next = 0
        self._state: dict[str, Any] | None = None
        """State of the generators where the sampler was left."""

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, at: IntArray) -> IntArray:
        found, blocks = np.empty(len(at), np.int64), at // BLOCK
        for number in np.unique(blocks).tolist():
            here = blocks == number
            found[here] = self._block(number)[at[here] - number * BLOCK]
        return found

    def first(self, num: int) -> "DrawnOrder":
        """Return the order of the first ``num`` entries."""
        shorter = DrawnOrder(self._sampler, self._seed)
        shorter._num = num
        return shorter

    def _block(self, number: int) -> IntArray:
        if number not in self._blocks and number < self._next:
            self._begin()
        while self._next <= number:
            self._blocks[self._next] = self._draw()
            self._next += 1
            if len(self._blocks) > MOST_BLOCKS:
                self._blocks.popitem(last=False)
        return self._blocks[number]

    def _draw(self) -> IntArray:
        outside = draws()
        try:
            if self._state is None:
                seed_cpu(self._seed)
            else:
                put_draws(self._state)
            if self._entries is None:
                self._entries = iter(self._sampler)
            found = list(islice(self._entries, BLOCK))
            self._state = draws()
        finally:
            put_draws(outside)
        wanted = min(BLOCK, self._num - self._next * BLOCK)
        numbers = np.asarray(found[:wanted])
        if len(found) < wanted or numbers.dtype.kind not in "iu" or numbers.ndim != 1:
            yields = f"{self._next * BLOCK + len(found):,} whole numbers"
            raise ConfigError(
                f"job.batches: a {type(self._sampler).__name__} says that it has {self._num:,} "
                f"entries, and yields {yields if len(found) < wanted else repr(found[0])}; give a "
                "sampler that yields as many whole numbers as it says"
            )
        return numbers.astype(np.int64, copy=False)

    def __getstate__(self) -> dict[str, Any]:
        # What it has drawn belongs to this process: an iterator cannot travel.
        return {"_sampler": self._sampler, "_seed": self._seed, "_num": self._num}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
