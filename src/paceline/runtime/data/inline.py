"""Batches that the training thread reads itself, between steps, as torch's DataLoader does.

For sources of which it is not known that they draw no random numbers. The generators of a process
cannot be had by one thread alone: read in a thread such a source would take, and put back, what the
model's dropout draws from. Here the script's streams are kept while records are read with theirs.
"""

from collections import deque
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory as pinned

from paceline.base.errors import InternalError
from paceline.runtime.data.batch import CollateFn
from paceline.runtime.data.iterated import Iterated
from paceline.runtime.data.loader import NOT_ASKED, Batches, Ranges, Request
from paceline.runtime.data.order import EpochOrder
from paceline.runtime.process.seeding import kept


class InlineLoader:
    """A loader without loader processes; nothing is made ahead."""

    def __init__(
        self,
        dataset: Any,
        order: EpochOrder | None,
        *,
        collate_fn: CollateFn | None = None,
        pin_memory: bool = False,
        seed: int = 0,
    ) -> None:
        self.order = order
        self._pin = pin_memory and torch.accelerator.is_available()
        self._dataset = dataset
        self._batches = Batches(dataset, collate_fn, seed)
        self._waiting: deque[Request] = deque()
        self._closed = False

    def submit(self, tag: Any, ranges: Ranges) -> None:
        if self._closed:
            raise InternalError(f"batch {tag} was submitted to a closed loader")
        self._waiting.append(Request(NOT_ASKED, tag, tuple(ranges), self.order))

    def get(self, timeout_s: float | None = None) -> tuple[Any, Any]:
        """Read the batch, however long that takes."""
        if self._closed:
            raise InternalError("a batch was asked of a closed loader")
        request = self._waiting.popleft()
        restore = kept()
        try:
            batch = self._batches.drawn(request)
        finally:
            restore()
        return request.tag, pinned(batch) if self._pin else batch

    def clear(self, keep: int = 0) -> None:
        while len(self._waiting) > keep:
            self._waiting.pop()

    def close(self) -> None:
        """Tell a dataset that is iterated that the loop is over; nothing else has to be stopped."""
        if isinstance(self._dataset, Iterated) and not self._closed:
            self._dataset.close()
        self._closed = True

    def __enter__(self) -> "InlineLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
