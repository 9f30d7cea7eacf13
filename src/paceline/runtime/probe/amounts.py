"""How much a step works on: the numbers in the batches that the script takes from a DataLoader.

Batches of different lengths make steps of different times, which is no slowness. Of a batch its
largest tensor counts: the tokens of a text with its padding, the pixels of images.
"""

import functools
from collections import UserDict
from typing import Any

from torch import Tensor
from torch.utils.data.dataloader import _BaseDataLoaderIter

from paceline.runtime.probe.faults import is_of_script

DEPTH = 3
"""Levels of lists and dictionaries that are looked into."""


class BatchAmounts:
    """Counts from `install` on."""

    def __init__(self) -> None:
        self._amount, self._is_off = 0, False

    def install(self) -> None:
        """Have DataLoaders count."""
        following = _BaseDataLoaderIter.__next__

        @functools.wraps(following)
        def counted(batches: Any) -> Any:
            batch = following(batches)
            self._add(batch)
            return batch

        _BaseDataLoaderIter.__next__ = counted  # type: ignore[method-assign, assignment]

    def _add(self, batch: Any) -> None:
        if self._is_off:
            return
        try:
            self._amount += largest(batch)
        except Exception as error:
            if is_of_script(error):
                raise
            self._is_off, self._amount = True, 0

    def take(self) -> int:
        """What has come since it was asked last; 0: nothing came, so it is not known."""
        amount, self._amount = self._amount, 0
        return amount


def largest(batch: Any, depth: int = DEPTH) -> int:
    """Numbers in the largest tensor of a batch."""
    if isinstance(batch, Tensor):
        return batch.numel()
    if depth and isinstance(batch, dict | UserDict):
        return max((largest(one, depth - 1) for one in batch.values()), default=0)
    if depth and isinstance(batch, list | tuple):
        return max((largest(one, depth - 1) for one in batch), default=0)
    return 0
