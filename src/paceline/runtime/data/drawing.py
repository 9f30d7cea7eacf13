"""Random numbers that are drawn while records are read: by ``random``, numpy and torch.

What a record draws is a function of its place in the order alone (its feed, epoch and position), so
it does not depend on which process reads it, in which batch, or what was read before. It goes on
after a kill, a resume, or in the next epoch, and does not repeat. Records that are read in one call
(``__getitems__``, ``StreamSource.read``) draw by the place of the first.

Seeding three generators for each record costs as much as reading a small one, and most sources draw
nothing. So a batch is read with the generators at the seed of its first record. If they are still
there afterwards nothing was drawn; otherwise the batch is read again, and from then on each record
is seeded.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import ConcatDataset, Subset, TensorDataset, default_collate

from paceline.runtime.data.batch import CollateFn
from paceline.runtime.data.drawn import DrawnOrder
from paceline.runtime.data.listed import Listed
from paceline.runtime.data.source import reads_in_thread
from paceline.runtime.process.seeding import seed_cpu, seed_of

COLLATE = -1
"""Stands for the number of a record: the batch is about to be collated."""

Begin = Callable[[int], None]
"""Called before a record is read, with its number in the batch, or `COLLATE`."""

_QUIET: tuple[type, ...] = (TensorDataset, torch.Tensor, np.ndarray, list, tuple, range)


def never_draws(dataset: Any, collate_fn: CollateFn | None) -> bool:
    """Tell whether it is known beforehand that reading a dataset draws no random number."""
    if collate_fn is not None and collate_fn is not default_collate:
        return False
    # Exactly these: a class derived from them may do more.
    if type(dataset) is Subset or isinstance(dataset, Listed):
        # A sampler that is read on the way draws from the generators of the process.
        lists = not isinstance(dataset, Listed) or not isinstance(dataset.order, DrawnOrder)
        return lists and never_draws(dataset.dataset, None)
    if type(dataset) is ConcatDataset:
        return all(never_draws(one, None) for one in dataset.datasets)
    return type(dataset) in _QUIET or reads_in_thread(dataset)


class Places:
    """Places of a batch's records in their order, which give their seeds.

    Args:
        seed: of their feed.
        ranges: of the batch: (epoch or partition, start, stop).
    """

    def __init__(self, seed: int, ranges: Sequence[tuple[Any, int, int]]) -> None:
        self._seed, self._ranges = seed, ranges
        self._range, self._first = 0, 0

    def seed_of(self, number: int) -> int:
        """Return the seed of a record by its number in the batch, or of `COLLATE`.

        From one call to the next, numbers only grow.
        """
        if number == COLLATE:
            line, start, _ = self._ranges[0]
            return seed_of(self._seed, 1, _key(line), start)
        line, start, stop = self._ranges[self._range]
        while number - self._first >= stop - start:
            self._range, self._first = self._range + 1, self._first + stop - start
            line, start, stop = self._ranges[self._range]
        return seed_of(self._seed, 0, _key(line), start + number - self._first)


def _key(line: Any) -> int:
    return line if isinstance(line, int) else xxhash.xxh64_intdigest(str(line).encode())


class Drawing:
    """Reads batches, each record with its own random numbers; for one thread.

    It leaves the generators of the process in any state: see `seeding.kept`.
    """

    def __init__(self) -> None:
        self._draws = False

    def read(self, read: Callable[[Begin | None], Any], seed_of: Callable[[int], int]) -> Any:
        """The batch that ``read`` returns; it may be called twice.

        Args:
            read: reads the batch, and calls what it is given (None: nothing) before each record.
            seed_of: number of a record in the batch, or `COLLATE` -> its seed.
        """
        if not self._draws:
            # Not a constant: sources make generators of their own from torch.initial_seed().
            seed_cpu(mark := seed_of(0))
            undrawn = _drawn()
            seed_cpu(mark)
            try:
                batch = read(None)
            except Exception:
                if _drawn() == undrawn:
                    raise
            else:
                if _drawn() == undrawn:
                    return batch
            self._draws = True
        return read(lambda number: seed_cpu(seed_of(number)))


def _drawn() -> Sequence[float]:
    return random.random(), np.random.random_sample(), torch.rand((), device="cpu").item()
