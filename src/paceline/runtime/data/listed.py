"""Datasets whose records come in another order, or one after the other only, read by position."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from paceline.base.errors import ConfigError
from paceline.runtime.data.permutation import IntArray

Order = Sequence[int] | IntArray


class Listed(Dataset[Any]):
    """The records of a dataset in an order that a sampler gave: some twice, some never.

    Args:
        dataset: that has the records.
        order: their numbers.
        ends: where its batches end, if they have several sizes.

    Raises:
        ConfigError: the order names a record by something else than its number.
    """

    def __init__(self, dataset: Any, order: Order, ends: Sequence[int] = ()) -> None:
        self.dataset, self.order, self.ends = dataset, np.asarray(order), tuple(ends)
        if self.order.dtype.kind not in "iu" or self.order.ndim != 1:
            raise ConfigError(
                f"job.batches: the sampler yields {order[0]!r} for a record; give a sampler that "
                "yields whole numbers"
            )

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.order[index])]


class Iterated(Dataset[Any]):
    """An ``IterableDataset`` with a length, read by position: what lies before is passed over.

    Raises:
        ConfigError: it yields fewer records than its length.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._records: Iterator[Any] = iter(())
        self._next = -1

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= self._next <= index:
            self._records, self._next = iter(self.dataset), 0
        for record in islice(self._records, index - self._next, None):
            self._next = index + 1
            return record
        self._next = -1
        raise ConfigError(
            f"job.batches: record {index} of a {type(self.dataset).__name__} was asked for, whose "
            f"length is {len(self.dataset)}, and it ended before; correct its __len__"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"dataset": self.dataset, "_records": iter(()), "_next": -1}


def order_of_records(dataset: Any) -> str:
    """The order that a sampler gave, in short, to be compared among workers; empty: there is none.

    A sampler may draw from a generator that only this process has.
    """
    if not isinstance(dataset, Listed):
        return ""
    data = dataset.order.tobytes() + np.asarray(dataset.ends, np.int64).tobytes()
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    batches = f" and {len(dataset.ends)} batches" if dataset.ends else ""
    return f"{len(dataset)} records{batches} in the order {digest}"


def ends_of_batches(dataset: Any) -> tuple[int, ...]:
    """Where the batches end that a sampler gave; empty: they have one size."""
    return dataset.ends if isinstance(dataset, Listed) else ()
