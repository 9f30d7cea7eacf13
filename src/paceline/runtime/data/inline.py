"""Batches that the training thread reads itself, between steps, as torch's DataLoader does.

For sources of which it is not known that they draw no random numbers. The generators of a process
cannot be had by one thread alone: read in a thread such a source would take, and put back, what the
model's dropout draws from. Here the script's streams are kept while records are read with theirs.

And for a few rows of tensors in memory (`takes_rows_at_once`), which are taken in less time than a
thread needs to hand them over: threads of one process take the interpreter's lock from each other.
"""

from collections import deque
from typing import Any

import torch
from torch.utils.data import TensorDataset
from torch.utils.data._utils.pin_memory import pin_memory as pinned

from paceline.base.errors import InternalError
from paceline.runtime.data.batch import CollateFn
from paceline.runtime.data.drawing import never_draws
from paceline.runtime.data.iterated import Iterated
from paceline.runtime.data.listed import Listed
from paceline.runtime.data.loader import NOT_ASKED, Batches, Ranges, Request
from paceline.runtime.data.order import EpochOrder
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.process.seeding import kept

AT_ONCE_BYTES = 1 << 18
"""Bytes of a batch that is taken in less time than a thread takes to hand it over."""


def takes_rows_at_once(dataset: Any, collate_fn: CollateFn | None, batch_size: int) -> bool:
    """Tell whether a batch is no more than a few rows of tensors in memory."""
    if isinstance(dataset, Listed):
        dataset = dataset.dataset
    if type(dataset) is TensorRows:
        tensors = tuple(dataset.columns.values())
    elif type(dataset) is TensorDataset:
        tensors = dataset.tensors
    else:
        return False
    of_row = sum(one.element_size() * one[0].numel() for one in tensors if len(one))
    in_memory = all(one.device.type == "cpu" for one in tensors)
    return in_memory and batch_size * of_row <= AT_ONCE_BYTES and never_draws(dataset, collate_fn)


class InlineLoader:
    """A loader without loader processes; nothing is made ahead."""

    makes_ahead = False

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
        self._draws = not never_draws(dataset, collate_fn)
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
        batch = self._drawn(request) if self._draws else self._batches[request]
        return request.tag, pinned(batch) if self._pin else batch

    def _drawn(self, request: Request) -> Any:
        restore = kept()
        try:
            return self._batches.drawn(request)
        finally:
            restore()

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
