"""Pages of memory that processes share: files that are made whole, and rings of records in them.

    with new_page(path, magic, num_bytes) as descriptor:         # takes its name at the end
        page = mmap.mmap(descriptor, num_bytes)

    ring = StampedRing(memoryview(page), at=64, record_bytes=144, num_slots=1024)
    ring.put(0, data)                            # its one writer
    ring.get(0)                                  # any number of readers; None: torn, or overwritten

Nobody takes a lock: the writer trains, and must not wait for a reader that sleeps, or is dead. So
a reader may come while a record is written, and a writer may die in the middle of one.

Record n lies in slot ``n % num_slots`` between two stamps ``n + 1``. The writer stores the front
stamp, the record, the back stamp, in this order; the reader loads the back stamp, the record, the
front stamp. If the back stamp is ``n + 1``, all of record n was there before the reader began. If
the front stamp is ``n + 1`` after that, the next writer of this slot had not begun when the reader
was done. Either stamp of another record means a torn one, which is dropped:

    writer: front := 9 | record 8 ...........| back := 9
    reader:                 back = 1, so there is no record 8 yet

    writer:            front := 17 | record 16 ...
    reader: back = 9 | record 8 .................. | front = 17, so what was read is mixed

A stamp is an aligned word, and so is stored and loaded by one instruction. On x86-64 stores become
visible in the order of the program, and loads are done in it. Elsewhere (aarch64) nothing orders
them: a reader that comes within the nanoseconds by which a processor changes the order may take a
torn record for a whole one. That is accepted. What lies in these pages are measured times, and
words for people; a barrier would cost the training thread a call into C for each record.

A single word that means something by itself (a count, a mark) needs no stamps.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_WORD_BYTES = 8


@contextlib.contextmanager
def new_page(path: Path, magic: bytes, num_bytes: int) -> Iterator[int]:
    """Make a page of zeros behind its magic, and give it its name when the caller has filled it.

    A reader finds the page before, or this one as a whole. Yields the descriptor, which is closed
    afterwards.

    Raises:
        OSError: there is no room for it.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        # Without this a full file system would kill us at the first write, by SIGBUS.
        os.posix_fallocate(descriptor, 0, num_bytes)
        os.pwrite(descriptor, magic, 0)
        yield descriptor
        fresh.rename(path)
    finally:
        os.close(descriptor)


def magic_of(descriptor: int, like: bytes) -> bytes:
    """The first bytes of a page, as many as those of ``like``."""
    return os.pread(descriptor, len(like), 0)


class StampedRing:
    """The newest records of one writer, in memory that others have mapped; see the module.

    Args:
        memory: the page.
        at: where the ring begins, in bytes; a multiple of eight, as is ``record_bytes``.
        record_bytes: the most that a record has.
        num_slots: records that are kept.
    """

    def __init__(self, memory: memoryview, *, at: int, record_bytes: int, num_slots: int) -> None:
        self._bytes = memory
        self._words: memoryview[int] = memory[: len(memory) // _WORD_BYTES * _WORD_BYTES].cast("Q")
        self.num_slots, self._record_bytes = num_slots, record_bytes
        self._first = at // _WORD_BYTES
        self._back = 1 + record_bytes // _WORD_BYTES
        self._slot_words = self._back + 1

    @staticmethod
    def num_bytes(record_bytes: int, num_slots: int) -> int:
        """Size of a ring."""
        return num_slots * (record_bytes + 2 * _WORD_BYTES)

    def place(self, number: int) -> int:
        """Where the record lies in the page, as long as it does: its first word of 64 bits."""
        return self._first + number % self.num_slots * self._slot_words + 1

    def put(self, number: int, record: bytes) -> None:
        """Write a record; whoever counts records must do so after this."""
        front = self._first + number % self.num_slots * self._slot_words
        start = (front + 1) * _WORD_BYTES
        words = self._words
        words[front] = stamp = number + 1
        # Not struct.pack_into: it clears its target first, byte by byte.
        self._bytes[start : start + len(record)] = record
        words[front + self._back] = stamp

    def get(self, number: int) -> bytes | None:
        """Read a record, with what stood behind a short one; None: it is torn, or overwritten."""
        front = self._first + number % self.num_slots * self._slot_words
        if self._words[front + self._back] != number + 1:
            return None
        start = (front + 1) * _WORD_BYTES
        record = bytes(self._bytes[start : start + self._record_bytes])
        return record if self._words[front] == number + 1 else None

    def holds(self, number: int) -> bool:
        """Whether the slot is this record's, for the writer that changes a word of it."""
        return self._words[self.place(number) - 1] == number + 1
