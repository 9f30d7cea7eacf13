"""Batches: named columns, and how records become one.

A dataset is anything with ``__len__`` and ``__getitem__``. If it has ``__getitems__`` (list of
indices, as torch's DataLoader knows it), that is called once for the whole batch; a *list* it
returns holds one sample per index and is collated, anything else is a finished batch and goes to
the user as it is. A ``collate_fn`` given by the user is always applied.
"""

from collections import namedtuple
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from paceline.base.errors import ConfigError
from paceline.runtime.data.iterated import STRIDE
from paceline.runtime.data.listed import Listed
from paceline.runtime.data.walks import IntArray

CollateFn = Callable[[Any], Any]


@lru_cache(maxsize=256)
def batch_type(fields: tuple[str, ...]) -> type[Any]:
    """The namedtuple ``Batch(*fields)``; the same class for the same fields.

    Raises:
        ConfigError: a field is not usable as an attribute.
    """
    try:
        made = namedtuple("Batch", fields)  # type: ignore[misc]
    except ValueError as error:
        raise ConfigError(
            f"columns {list(fields)} cannot be attributes of a batch: {error}; rename them"
        ) from error
    # A class made at run time has no importable name: loader processes send its fields instead.
    made.__reduce__ = _reduce  # type: ignore[method-assign, assignment]
    return made


def _reduce(batch: Any) -> tuple[Any, ...]:
    return _rebuild, (batch._fields, tuple(batch))


def _rebuild(fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return batch_type(fields)(*values)


def fetch_rows(
    dataset: Any,
    indices: IntArray,
    collate_fn: CollateFn | None,
    begin: Callable[[int], None] | None = None,
) -> Any:
    """Read one batch of the records at ``indices``, in that order.

    An exception of the dataset carries a note that says which record it was reading.

    Args:
        dataset: map-style.
        indices: of the records.
        collate_fn: as in torch's DataLoader.
        begin: see `drawing.Begin`.
    """
    if isinstance(dataset, Listed):
        return fetch_rows(dataset.dataset, dataset.order[indices], collate_fn, begin)
    begin = begin or _ignore
    if collate_fn is None and type(dataset) is TensorDataset:
        rows = torch.from_numpy(indices)
        # What default_collate would make of the tuples, without making them.
        return [tensor.index_select(0, rows) for tensor in dataset.tensors]
    wanted = indices.tolist()
    if getattr(dataset, "__getitems__", None):
        begin(0)
        found = _read_together(dataset, wanted)
    else:
        found = []
        for number, index in enumerate(wanted):
            begin(number)
            found.append(_read_one(dataset, index))
    begin(-1)
    if collate_fn is not None:
        return collate_fn(found)
    return default_collate(found) if isinstance(found, list) else found


def _ignore(_number: int) -> None:
    """Seed nothing."""


def _read_together(dataset: Any, wanted: list[int]) -> Any:
    try:
        return dataset.__getitems__(wanted)
    except Exception as error:
        few = ", ".join(map(str, wanted[:8])) + (", ..." if len(wanted) > 8 else "")
        error.add_note(f"while reading {len(wanted)} records together: {few}")
        raise


def _read_one(dataset: Any, index: int) -> Any:
    try:
        return dataset[index]
    except Exception as error:
        error.add_note(f"while reading record {index % STRIDE}")
        raise
