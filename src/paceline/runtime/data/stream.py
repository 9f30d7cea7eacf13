"""Unbounded input: partitions that grow, read by record number.

A record is named by (partition, offset) for ever: a partition is append-only, so a range that was
leased once reads the same after any restart. The ledger leases ``[start, stop)`` below ``end``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import default_collate

from paceline.runtime.data.batch import CollateFn, batch_type


@runtime_checkable
class StreamSource(Protocol):
    """Input without a known end.

    Implementations are pickled to loader processes. ``partitions``, ``end`` and ``finished`` are
    called from another thread than ``read``.
    """

    def partitions(self) -> list[str]:
        """The partitions there are now; later calls return these and perhaps more."""

    def end(self, partition: str) -> int | None:
        """Return how far the partition can be read; never shrinks. None: it is not there yet."""

    def read(self, partition: str, start: int, stop: int) -> list[Any]:
        """The records ``start <= offset < stop``; ``stop`` is at most what ``end`` said."""

    def finished(self) -> bool:
        """True when no partition will grow and none will be added; stays true.

        Each worker sees a stream with its own eyes: a partition must have the same name, and at
        an offset the same record, in all of them.
        """


def fetch_records(
    source: StreamSource,
    ranges: Iterable[tuple[str, int, int]],
    collate_fn: CollateFn | None,
    begin: Callable[[int], None] | None = None,
) -> Any:
    """Read one batch of the records in ``ranges``; dicts with equal keys become one ``Batch``.

    ``begin``: see `drawing.Begin`; called for the first record of each range.
    """
    records: list[Any] = []
    for partition, start, stop in ranges:
        if begin is not None:
            begin(len(records))
        try:
            records += source.read(partition, start, stop)
        except Exception as error:
            error.add_note(f"while reading records [{start}, {stop}) of partition {partition!r}")
            raise
    if begin is not None:
        begin(-1)
    if collate_fn is not None:
        return collate_fn(records)
    if records and isinstance(records[0], Mapping):
        return batch_type(tuple(records[0]))(**default_collate(records))
    return default_collate(records)
