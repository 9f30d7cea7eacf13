"""Datasets that are only iterated, read by position.

Every worker reads all of an ``IterableDataset``, and keeps its share. The records are read in
pieces. While a piece is read the generators of the process are at a seed of its own, so what is
drawn there follows from the position alone: it is the same in all workers, however often they begin
again.
"""

import logging
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import islice
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np
from torch.utils.data import Dataset

from paceline.base.errors import ConfigError
from paceline.runtime.data.digests import digest_of
from paceline.runtime.data.order import EpochOrder
from paceline.runtime.data.walks import IntArray
from paceline.runtime.process.seeding import kept, seed_cpu, seed_of
from paceline.wire.messages.feeds import Underway

PIECE = 16
"""Records that are read together."""
STRIDE = 1 << 44
"""Record k of epoch e has the number e * STRIDE + k."""
STEPS_KEPT = 2
"""Steps whose records stay in memory: a step that breaks may need its records again."""
COUNT_WITHIN_S = 1800.0
"""Most seconds for which the records of a dataset without a length are counted."""
SAY_AFTER_S = 5.0
DRAWN = 2
"""Sets these seeds apart from those of records."""

_TAKEN = object()
_SPARE = np.random.MT19937(0)
_SAME = (
    "it must yield the same records in the same order each time: give its shuffle a seed, and draw "
    "random numbers from random, numpy.random or torch, which the job seeds"
)
_log = logging.getLogger(__name__)


def has_state(dataset: Any) -> bool:
    """Tell whether a dataset can say where it is, and go on from there."""
    return all(callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict"))


def length_of(dataset: Any) -> int | None:
    """The number of records; None: the dataset does not say."""
    try:
        return len(dataset)
    # There is no __len__, or that of a class around a dataset without one.
    except (TypeError, NotImplementedError):
        return None


def _each(iterator: Iterator[Any]) -> Iterator[Any]:
    """The rest of an iterator, which may be one that begins again when it is iterated."""
    while True:
        try:
            record = next(iterator)
        except StopIteration:
            return
        yield record


class IteratedOrder(EpochOrder):
    """The order in which records come; their numbers tell the epoch, too."""

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        return super().indices(epoch, start, stop) + epoch * STRIDE


class Iterated(Dataset[Any]):
    """An ``IterableDataset``, read by position in one loop; for one thread.

    It is iterated again when it must be read from the beginning. One with a state may go on of its
    own accord from where it was left: then its state of before the loop is loaded, and so it is
    after the loop. One that does not say its length must have a state.

    Args:
        dataset: to read.
        seed: of what is drawn while records are read.
        step: records of one.
        copies: whether records are changed where they are used.
        passed: called with the seconds that it took to pass over a piece.

    Raises:
        ConfigError: when reading: the dataset ends before its length; without a length, it has
            another one than was counted, or begins with other records than before.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int = 0,
        step: int = 1,
        copies: bool = False,
        passed: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.dataset, self._length = dataset, length_of(dataset)
        self._seed, self._copies, self._passed = seed, copies, passed
        self._name = f"a {type(dataset).__name__}"
        self.is_counted = self._length is None
        """Whether records are counted, since the dataset does not say its length."""
        self._kept = STEPS_KEPT * -(-step // PIECE)
        self._may_be_longer = False
        self._epoch, self._next, self._at = 0, 0, 0
        self._records: Iterator[Any] | None = None
        self._pieces: dict[int, list[Any]] = {}
        self._beginnings: dict[int, str] = {}
        self._state: Any = None
        self._is_looked_at = not has_state(dataset)
        self._restore: finalize[..., Any] | None = None
        """Finalizer that loads the state of before the loop, if the dataset goes on from it."""

    @property
    def beginning(self) -> str:
        """A digest of the first records; empty: they were not looked at."""
        return self._beginnings.get(0, "")

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError(f"the records of {self._name} were not counted")
        return self._length

    def __getitem__(self, number: int) -> Any:
        epoch, index = divmod(number, STRIDE)
        self._read_to(epoch, index // PIECE)
        records = self._pieces.get(index // PIECE, [])
        if index % PIECE >= len(records):
            what = _SAME if self.is_counted else "correct its __len__"
            raise ConfigError(
                f"record {index} of {self._name} was asked for, whose length is {self._length}, "
                f"and it ended before; {what}"
            )
        record = records[index % PIECE]
        if record is _TAKEN:
            self._begin()
            return self[number]
        if not self._copies:
            return record
        try:
            return deepcopy(record)
        except Exception:  # noqa: BLE001 - of what cannot be copied there is this one
            records[index % PIECE] = _TAKEN
            return record

    def close(self) -> None:
        """End the iteration with its loop."""
        self._records = None
        _OPEN.pop(id(self.dataset), None)
        if self._restore is not None:
            self._restore()

    # ------------------------------------------------------------------ before the loop

    def open(self, underway: Callable[[], Underway | None]) -> None:
        """Find the length, and pass over what others have done, before anybody waits for us.

        Args:
            underway: says how far the job is in what is read here, if it has begun.
        """
        job = underway()
        if self.is_counted and job is None:
            self._look_at_state()
            self._count()
            job = underway()  # others may have been faster
        if job is None:
            return
        if self._length is None:
            self._length, self._may_be_longer = job.num_samples, True
        if not job.is_over:
            epoch, index = divmod(job.at, job.num_samples)
            self._read_to(epoch, index // PIECE)

    def leave_out_rest(self, size: int) -> None:
        """Leave out the records at the end that make no whole batch of this size."""
        whole = len(self) // size * size
        self._may_be_longer |= whole < len(self)
        self._length = whole

    def _look_at_state(self) -> None:
        """Find out whether the dataset goes on of its own accord from where it was left."""
        if id(self.dataset) in _OPEN:
            raise ConfigError(
                f"{self._name} was given to two loops at the same time, and has one state; make "
                "another one for the second"
            )
        self._is_looked_at, goes_on = True, False
        try:
            self._state = deepcopy(self.dataset.state_dict())
            self._read_piece()
            first = digest_of(self.dataset.state_dict())
            self._begin()
            self._read_piece()
            goes_on = digest_of(self.dataset.state_dict()) != first
        except ConfigError:
            goes_on = True
        except Exception as error:
            if self._state is not None:
                self.dataset.load_state_dict(deepcopy(self._state))
            if self.is_counted:
                error.add_note(f"while the state of {self._name} was looked at")
                raise
            self._begin()
        if goes_on and self._state is not None:
            _OPEN[id(self.dataset)] = self
            self._restore = finalize(self, self.dataset.load_state_dict, deepcopy(self._state))
            self._restore.atexit = False
        if goes_on:
            self._begin()
            self._read_piece()

    def _count(self) -> None:
        """Find the length by reading all.

        Raises:
            ConfigError: it has not come to its end within `COUNT_WITHIN_S`.
        """
        begun_s, say_s = monotonic(), SAY_AFTER_S
        while self._read_piece():
            took_s = monotonic() - begun_s
            if took_s > COUNT_WITHIN_S:
                raise ConfigError(
                    f"{self._name} has no __len__, so its records are counted first; after "
                    f"{took_s:.0f} s and {self._at:,} of them there was no end. Give it a __len__: "
                    "so many of its records are read in each pass"
                )
            if took_s > say_s:
                _log.info(
                    "records_are_counted dataset=%s so_far=%d: with a __len__ it need not be",
                    type(self.dataset).__name__,
                    self._at,
                )
                say_s *= 2
        self._length = self._at

    # ------------------------------------------------------------------ reading

    def _begin(self) -> None:
        self._records, self._next, self._at, self._pieces = None, 0, 0, {}

    def _read_to(self, epoch: int, piece: int) -> None:
        if epoch != self._epoch:
            self._epoch = epoch
            self._begin()
        if not self._is_looked_at:
            self._look_at_state()
        if piece in self._pieces:
            return
        # Another reader of the dataset may have moved what our iterator goes by.
        is_moved = _READERS.get(id(self.dataset)) is not self
        if self._records is None or self._next > piece or is_moved:
            self._begin()
        begun_s = monotonic()
        while piece not in self._pieces and self._read_piece():
            if piece not in self._pieces:
                now_s = monotonic()
                self._passed(now_s - begun_s)
                begun_s = now_s

    def _read_piece(self) -> bool:
        """Read the piece that comes next; False: there is no whole one."""
        number, wanted = self._next, PIECE
        if self._length is not None:
            wanted = max(0, min(wanted, self._length - self._at))
        restore = kept(_SPARE)
        try:
            seed_cpu(seed_of(self._seed, DRAWN, self._epoch, number))
            if self._records is None:
                if self._restore is not None:
                    self.dataset.load_state_dict(deepcopy(self._state))
                self._records = _each(iter(self.dataset))
                _READERS[id(self.dataset)] = self
            records = list(islice(self._records, wanted))
            if self.is_counted:
                self._check(number, records)
        except Exception:
            self._records = None
            raise
        finally:
            restore()
        self._pieces[number] = records
        self._next, self._at = number + 1, self._at + len(records)
        for old in [one for one in self._pieces if one < number - self._kept]:
            del self._pieces[old]
        return len(records) == PIECE

    def _check(self, number: int, records: list[Any]) -> None:
        """Compare with what was read before, and with the length that was counted."""
        if number == 0:
            digest = digest_of(records)
            if self._beginnings.setdefault(self._epoch, digest) != digest:
                raise ConfigError(
                    f"{self._name} was read again from its beginning, and began with other "
                    f"records; {_SAME}"
                )
        is_last = self._at + len(records) == self._length and not self._may_be_longer
        if is_last and self._records is not None and [*islice(self._records, 1)]:
            raise ConfigError(
                f"{self._name} has more records than the {self._length:,} that were counted; "
                f"{_SAME}. If its passes differ in length, write a loop over job.epochs around "
                "that over job.batches"
            )


_OPEN: WeakValueDictionary[int, Iterated] = WeakValueDictionary()
"""Open iterations, by the id of their dataset: another loop would move its state."""
_READERS: WeakValueDictionary[int, Iterated] = WeakValueDictionary()
"""The iteration that read from a dataset last, by the id of the dataset."""
