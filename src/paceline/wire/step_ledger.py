"""The step ledger: one page of memory in which a training process says what it has done.

Written by the training thread without a system call, read by the agent at its own pace. It is a
file in the run directory, so it outlives a crash of its writer. One writer, any number of readers.

    ledger = StepLedgerWriter(path, inc=7)             # replaces the file in one step
    ledger.write(step=1, t_start_s=…, bpt_s=…, compute_s=…, server_s=…, message_s=…, wait_s=…,
                 samples=512)

    ledger.mark(time.monotonic())                      # computing since; negative: waiting since

    reader = StepLedgerReader(path)
    page = reader.read()                               # None: there is none yet
    page.inc, page.pid, page.newest (totals included), page.records (new since the last read)

The file is a header of doubles (an integer below 2^53 is exact in one) and a `StampedRing` of
steps. A step is counted in the header when its record is there: a writer killed midway has not
counted its torn record. A new incarnation writes a new file and renames it over the old one: a
reader sees one or the other, and an old process that still writes does so into a file that nobody
reads.
"""

import enum
import mmap
import os
import struct
from array import array
from pathlib import Path
from typing import Any, NamedTuple

from paceline.base.errors import ConfigError
from paceline.base.numbering import Inc
from paceline.wire.mapped_page import StampedRing, magic_of, new_page

_MAGIC = b"PACELED6"
_WORD_BYTES = 8
_INC, _PID, _SLOTS, _COUNT, _MARK, _STEP = 1, 2, 3, 4, 5, 6
"""Words of the header; word 0 is the magic."""
_HEADER_BYTES = 8 * _WORD_BYTES
_FIELDS = struct.Struct("@18d")
"""The fields of `StepRecord`."""


class Mark(enum.IntFlag):
    """Causes that make a step longer than others without anything being slow."""

    NONE = 0
    FIRST = 1
    """Start of the script, in the step."""
    EVALUATION = 2
    CHECKPOINT = 4
    GARBAGE = 8
    """Garbage collection of Python, for a good part of the step."""
    COMPILE = 16


class StepRecord(NamedTuple):
    """One step, and the totals of this life up to and including it. Times in seconds."""

    step: int
    t_start_s: float
    """Monotonic clock."""
    bpt_s: float
    """Batch processing time: wall time of the step."""
    compute_s: float
    server_s: float
    message_s: float
    wait_s: float
    data_s: float
    """T^d: of the wait, the time from when the next batch was wanted until it was read."""
    amount: float
    """Numbers in the batches of a script that trains on its own; 0: not known."""
    samples: int
    marks: int
    """Flags of `Mark`."""
    total_steps: int
    total_samples: int
    total_compute_s: float
    total_server_s: float
    total_message_s: float
    total_wait_s: float
    total_data_s: float


_COUNTS_AT = [i for i, kind in enumerate(StepRecord.__annotations__.values()) if kind is int]


class LedgerPage(NamedTuple):
    """Page of the ledger, as a reader sees it."""

    inc: Inc
    pid: int
    newest: StepRecord | None
    records: tuple[StepRecord, ...]
    """Steps since the previous read, oldest first; those overwritten meanwhile are missing."""
    mark_s: float
    """Time (monotonic clock) since when the process computes a step alone; negative: since when it
    waits for others; 0: neither."""
    step: int = 0
    """Step that the process is at; 0: it has begun none, or has no steps."""


class StepLedgerWriter:
    """The training process's end."""

    def __init__(self, path: Path, inc: Inc, num_slots: int = 1024) -> None:
        self._count = 0
        self._samples = 0
        self._totals = (0.0, 0.0, 0.0, 0.0, 0.0)
        size = _HEADER_BYTES + StampedRing.num_bytes(_FIELDS.size, num_slots)
        with new_page(path, _MAGIC, size) as descriptor:
            page = memoryview(mmap.mmap(descriptor, size))
            self._words: memoryview[float] = page.cast("d")
            header = (inc, os.getpid(), num_slots, 0)
            self._words[_INC : _COUNT + 1] = array("d", header)
        self._ring = _ring_of(page, num_slots)

    def write(  # noqa: PLR0913
        self,
        *,
        step: int,
        t_start_s: float,
        bpt_s: float,
        compute_s: float,
        server_s: float,
        message_s: float,
        wait_s: float,
        samples: int,
        data_s: float = 0.0,
        amount: float = 0.0,
        marks: int = 0,
    ) -> None:
        """Add a step that ended at ``t_start_s + bpt_s`` (monotonic clock)."""
        number = self._count
        self._count = number + 1
        self._samples += samples
        compute, server, message, wait, data = self._totals
        self._totals = totals = (
            compute + compute_s,
            server + server_s,
            message + message_s,
            wait + wait_s,
            data + data_s,
        )
        parts_s = (bpt_s, compute_s, server_s, message_s, wait_s, data_s)
        fields = _FIELDS.pack(
            step, t_start_s, *parts_s, amount, samples, marks, self._count, self._samples, *totals
        )
        self._ring.put(number, fields)
        self._words[_COUNT] = self._count

    def mark(self, mark_s: float) -> None:
        """Say what we are at; see `LedgerPage.mark_s`. One store: a reader sees all of it."""
        self._words[_MARK] = mark_s

    def delay(self, waited_s: float) -> None:
        """Take back that we have computed for so long: a gate has held us."""
        if self._words[_MARK] > 0:
            self._words[_MARK] += waited_s

    def begin(self, step: int) -> None:
        """Say which step we are at: what ends us tells no more. One store, as well."""
        self._words[_STEP] = step


class StepLedgerReader:
    """The agent's end; survives a missing file, a new incarnation and a writer killed midway."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._words: memoryview[float] | None = None
        self._ring: StampedRing | None = None
        self._file = (0, 0)
        self._next = 0
        self._newest: StepRecord | None = None

    def read(self) -> LedgerPage | None:
        """All that is new; None: no process has opened this ledger yet.

        Raises:
            ConfigError: the file is not a step ledger.
        """
        self._open_newest()
        words, ring = self._words, self._ring
        if words is None or ring is None:
            return None
        count = int(words[_COUNT])
        first = max(self._next, count - ring.num_slots)
        taken = (_take(ring, n) for n in range(first, count))
        records = tuple(record for record in taken if record is not None)
        self._next = count
        if records:
            self._newest = records[-1]
        return LedgerPage(
            inc=Inc(int(words[_INC])),
            pid=int(words[_PID]),
            newest=self._newest,
            records=records,
            mark_s=words[_MARK],
            step=int(words[_STEP]),
        )

    def _open_newest(self) -> None:
        """Map the file again if another one took its name."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            found = os.fstat(descriptor)
            if self._words is None or (found.st_dev, found.st_ino) != self._file:
                self._map_file(descriptor, found)
        finally:
            os.close(descriptor)

    def _map_file(self, descriptor: int, found: os.stat_result) -> None:
        head = magic_of(descriptor, _MAGIC)
        if head != _MAGIC or found.st_size <= _HEADER_BYTES:
            raise ConfigError(
                f"{self._path} begins with {head!r}, expected {_MAGIC!r}: written by another "
                "version of paceline; end the job's processes and start it again"
            )
        page = memoryview(mmap.mmap(descriptor, found.st_size, prot=mmap.PROT_READ))
        self._words = page.cast("d")
        self._ring = _ring_of(page, int(self._words[_SLOTS]))
        self._file = (found.st_dev, found.st_ino)
        self._next = 0
        self._newest = None


def _ring_of(page: memoryview, num_slots: int) -> StampedRing:
    return StampedRing(page, at=_HEADER_BYTES, record_bytes=_FIELDS.size, num_slots=num_slots)


def _take(ring: StampedRing, number: int) -> StepRecord | None:
    """A step; None: the writer has come round and overwrites it."""
    record = ring.get(number)
    if record is None:
        return None
    fields: list[Any] = list(_FIELDS.unpack(record))
    for i in _COUNTS_AT:
        fields[i] = int(fields[i])
    return StepRecord._make(fields)
