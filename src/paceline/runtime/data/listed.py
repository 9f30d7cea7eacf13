"""Datasets whose records come in another order than their own."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from paceline.base.errors import ConfigError
from paceline.runtime.data.digests import digest_of
from paceline.runtime.data.drawn import BLOCK, DrawnOrder
from paceline.runtime.data.iterated import Iterated
from paceline.runtime.data.walks import IntArray

Order = Sequence[int] | IntArray | DrawnOrder


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
        self.dataset, self.ends = dataset, tuple(ends)
        self.order = order if isinstance(order, DrawnOrder) else _in_numbers(order)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.order[np.asarray([index])][0])]

    def first(self, num: int) -> "Listed":
        """Return the first ``num`` records."""
        order = self.order
        return Listed(
            self.dataset, order.first(num) if isinstance(order, DrawnOrder) else order[:num]
        )


def _in_numbers(order: Sequence[int] | IntArray) -> IntArray:
    numbers = np.asarray(order)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise ConfigError(
            f"job.batches: the sampler yields {order[0]!r} for a record; give a sampler that "
            "yields whole numbers"
        )
    return numbers


def order_of_records(dataset: Any) -> str:
    """The order that a sampler gave, in short, to be compared among workers; empty: there is none.

    A sampler may draw from a generator that only this process has, and so may what is iterated.
    """
    if isinstance(dataset, Iterated):
        return f"records that begin with {dataset.beginning}" if dataset.beginning else ""
    if not isinstance(dataset, Listed):
        return ""
    order = dataset.order
    if isinstance(order, DrawnOrder):
        order = order[np.arange(min(BLOCK, len(order)))]
    data = order.tobytes() + np.asarray(dataset.ends, np.int64).tobytes()
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    batches = f" and {len(dataset.ends)} batches" if dataset.ends else ""
    return f"{len(dataset)} records{batches} in the order {digest}"


def part_of_records(dataset: Any) -> str:
    """Describe in short which records torch's ``Subset`` takes, for a comparison; empty: no subset.

    A script that splits a dataset by a generator of this process alone trains on its own records.
    """
    taken = _taken(dataset)
    return f"part {digest_of(taken)} of the records" if taken else ""


def _taken(dataset: Any) -> list[Any]:
    """The numbers that each ``Subset`` within a dataset takes, outermost first."""
    if isinstance(dataset, ConcatDataset):
        parts = [*map(_taken, dataset.datasets)]
        return parts if any(parts) else []
    if isinstance(dataset, Subset):
        return [*_numbers(dataset.indices), *_taken(dataset.dataset)]
    return _taken(dataset.dataset) if isinstance(dataset, Listed) else []


def _numbers(indices: Any) -> list[Any]:
    """Numbers of records, the same whatever holds them; none: records are found by names.

    Numbers at even distances become their first one, their distance and their count. A range may
    have more numbers than fit into memory.
    """
    if isinstance(indices, range):
        return [(indices.start, indices.step, len(indices))]
    try:
        numbers = np.asarray(indices.cpu() if isinstance(indices, Tensor) else indices)
    except (TypeError, ValueError):  # names of several lengths
        return []
    if numbers.dtype.kind not in "iu":
        return []
    numbers = numbers.astype(np.int64, copy=False)
    steps = np.diff(numbers)
    if numbers.ndim == 1 and len(steps) and (steps == steps[0]).all():
        return [(int(numbers[0]), int(steps[0]), len(numbers))]
    return [numbers]


def ends_of_batches(dataset: Any) -> tuple[int, ...]:
    """Return where the batches end that a sampler gave; empty: they have one size."""
    return dataset.ends if isinstance(dataset, Listed) else ()
