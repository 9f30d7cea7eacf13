"""The port of a data source: what a dataset must have, and what it may say of itself.

Any dataset with ``__len__`` and ``__getitem__`` is read; it needs no base class, and all else is
optional. Streams have a port of their own (`paceline.runtime.data.stream.StreamSource`), and say in
the same way whether a thread may read them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class DataSource(Protocol):
    """Records by number, the same ones in every process and in every life of the job.

    A source is pickled to loader processes and copied by ``fork``: files and connections are opened
    where they are used first. Its length and its order must not change during a job. Workers
    compare their lengths; that of a source of files (`OfFiles`) also what these hold.

    It may have, besides:

    - ``__getitems__(indices)``: read the records of a batch together. A list has a record for each
      index and is collated; anything else is a batch already.
    - ``shard_size_hint``: neighbouring records that are best read together. The order of an epoch
      then keeps them together.
    - what `paceline.runtime.data.growth.Counting` has: training may begin before all records are
      counted.

    Errors:
        ConfigError: when it is made, or a record is read: the user can mend it. The message names
            the place, what was expected and what was found.
        PermanentError: when a record is read: the data have changed since the job began.
        IndexError: there is no such record.
    """

    @property
    def reads_in_thread(self) -> bool:
        """Whether a thread may read it ahead, while the model computes.

        It may if reading draws no random numbers and calls nothing of the user's. A thread that
        draws would take numbers that the model draws in the same moment. Said by a class for
        itself: derived classes may draw, so they say it again (see `reads_in_thread`).
        """

    def __len__(self) -> int:
        """The number of records; may block until they are counted."""

    def __getitem__(self, index: int) -> Any:
        """The record of this number, from 0."""


class OfFiles:
    """Base of datasets whose records are those of files, in their order.

    No protocol: a dataset of the user's may well have ``files`` that are something else.
    """

    @property
    def files(self) -> Sequence[Path]:
        """The files; machines compare what they hold before the first batch."""
        raise NotImplementedError


def reads_in_thread(dataset: Any) -> bool:
    """Tell whether the dataset's own class says so of it, and not one that it is derived from."""
    return "reads_in_thread" in vars(type(dataset)) and bool(dataset.reads_in_thread)
