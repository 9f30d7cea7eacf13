"""Numbers that the members of a group write for each other, in memory that all of them have mapped.

What members tell each other in every step is a few numbers. Where all are on one machine a write
and a read take less than a gather over sockets, which wakes three threads of each member.

The first member makes the memory, and says in the group's store where it is; it has no name in any
folder, so it is gone with the processes. What a member writes stays until it writes the next but
one time: by then all others have read it, since each reads all rows before it writes again.
"""

import io
import mmap
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

MOST_NUMBERS = 30
"""Numbers that a member can write at a time."""
_NO, _SUM, _COUNT, _FIRST = 0, 1, 2, 3
_ROOM = _FIRST + MOST_NUMBERS + 1
_SIGN = 1 << 63


class SharedRows:
    """A row for each member, twice.

    Args:
        memory: of `num_bytes`.
        size: of the group.
        rank: whose row we write.
    """

    def __init__(self, memory: mmap.mmap, size: int, rank: int) -> None:
        numbers = np.frombuffer(memory, np.int64)
        self._mark = numbers[:1]
        self._rows = numbers[1:].reshape(2, size, _ROOM)
        self._own = [block[rank] for block in self._rows]

    def sign(self, mark: int) -> None:
        """Mark the memory, so that nobody takes another one for it."""
        self._mark[0] = mark

    def is_signed(self, mark: int) -> bool:
        """Tell whether it is marked so."""
        return bool(self._mark[0] == mark)

    def write(self, no: int, values: Sequence[int]) -> None:
        """Write our own row: the ``no``-th one, from 1."""
        row, count = self._own[no % 2], len(values)
        row[_FIRST : _FIRST + count] = values
        row[_COUNT], row[_SUM] = count, _sum_of(no, values)
        row[_NO] = no

    def read(self, no: int) -> list[list[int]] | None:
        """All members' ``no``-th rows; None: one of them is not written yet."""
        found: list[list[int]] = []
        for row in self._rows[no % 2].tolist():
            values = row[_FIRST : _FIRST + row[_COUNT]]
            # On some processors the number of a row may be seen before what was written earlier.
            if row[_NO] != no or row[_SUM] != _sum_of(no, values):
                return None
            found.append(values)
        return found


class RowsMaker:
    """The memory of the first member, for as long as others may map it."""

    def __init__(self, size: int) -> None:
        """Make it; raises OSError."""
        made = os.memfd_create("paceline-rows", os.MFD_CLOEXEC)
        self._file, sign = io.FileIO(made, "r+"), secrets.randbelow(_SIGN)
        try:
            os.ftruncate(made, num_bytes(size))
            self.rows = SharedRows(mmap.mmap(made, num_bytes(size)), size, 0)
        except OSError:
            self.close()
            raise
        self.rows.sign(sign)
        self.where = f"{os.getpid()} {made} {sign}"
        """Process, descriptor and mark of the memory, for `rows_at`."""

    def close(self) -> None:
        """Nobody maps it any more. In any thread; again: nothing."""
        self._file.close()


def rows_at(where: str, size: int, rank: int) -> SharedRows | None:
    """Map what another member has made; None: it is not on this machine, or not to be had."""
    with suppress(OSError, ValueError):
        pid, file, sign = map(int, where.split())
        # By a path, so that what is mapped is what that process has, or nothing.
        opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(opened).st_size != num_bytes(size):
                return None
            rows = SharedRows(mmap.mmap(opened, num_bytes(size)), size, rank)
        finally:
            os.close(opened)
        # On another machine, or in another container, that process may be any.
        return rows if rows.is_signed(sign) else None
    return None


def num_bytes(size: int) -> int:
    """Bytes for a group of this size."""
    return 8 * (1 + 2 * size * _ROOM)


def _sum_of(no: int, values: Sequence[int]) -> int:
    return (no + sum(values)) % _SIGN
