"""The board of the members of a group on one machine: how far each is, and where its data lies.

It has a row for each of them, which that member alone writes. A member that waits for another one
sleeps until that one has written.
"""

import ctypes
import threading
import time
from collections.abc import Sequence

import numpy as np

from paceline.base.futex import fence, wait_for_change, wake
from paceline.runtime.group.shared_memory import GroupArena, LentRoom, Where, mapped

BEGUN, REDUCED, OUTCOME, DONE, JOINED = range(5)
"""Counters of a row. The first four are numbers of operations: the newest whose data of ours are
there; to whose sum we have done our part; whose outcome we have made for the others; of which we
need no other's data any more. The last: how far we have come into the group, by the next two."""
HAS_JOINED, CAN_READ = 1, 2
NUM_OPEN = 256
"""Operations that a member may have begun before all others are done with the oldest of them."""
MOST_NUMBERS = 28
"""Numbers that a row holds itself."""
_WHERE, _FIRST = 5, 16
_KIND, _OFFSET, _SIZE, _OUTCOME_AT, _NUMBERS = 0, 1, 2, 3, 4
_SLOT = _NUMBERS + MOST_NUMBERS
_ROW = _FIRST + NUM_OPEN * _SLOT
_WIDTH = 8
_LEFT = 1
"""The lowest bit of each counter: the member has left, and does not write any more."""
_LOOK_S = 1.0
"""Seconds after which one who waits looks for himself, though he is woken before."""
_AGAIN_S = 0.0005
"""Seconds between two wakes of our own threads when the group is over."""


class Board:
    """A board.

    Args:
        room: of `num_bytes`.
        size: how many members there are.
        rank: which of them we are.
    """

    def __init__(self, room: LentRoom, size: int, rank: int) -> None:
        self.size, self.rank, self.room = size, rank, room
        numbers = room.memory.numpy().view(np.int64)
        rows = numbers[: size * _ROW].reshape(size, _ROW)
        self._rows = rows
        #: Member -> operation modulo `NUM_OPEN` -> what it says of it.
        self._slots = rows[:, _FIRST:].reshape(size, NUM_OPEN, _SLOT)
        start = room.memory.data_ptr()
        places = [start + row * _ROW * _WIDTH for row in range(size)]
        self._counters = [
            [ctypes.c_int64.from_address(place + _WIDTH * k) for k in range(5)] for place in places
        ]
        #: The half of each counter that changes with each operation.
        self._words = [
            [ctypes.c_int32.from_address(place + _WIDTH * k) for k in range(5)] for place in places
        ]
        self.is_over = False
        """Whether we have left: nobody is waited for any more."""
        self._writes = threading.Lock()
        #: Threads of ours that are about to sleep, or sleep.
        self._waiting = set[int]()

    @classmethod
    def create(cls, arena: GroupArena, size: int) -> "tuple[Board, str]":
        """Make one as the first member: the board, and where it is; raises OSError."""
        room = arena.lend(num_bytes(size))
        room.memory.zero_()
        return cls(room, size, 0), " ".join(map(str, [*arena.where, room.offset]))

    @classmethod
    def at(cls, where: str, size: int, rank: int) -> "Board":
        """Map the one that the first member has made.

        Raises:
            OSError: it is not on this machine, or not to be had.
        """
        *of_arena, offset = map(int, where.split())
        memory = mapped(Where(*of_arena))
        return cls(LentRoom(offset, memory[offset : offset + num_bytes(size)]), size, rank)

    def join(self, where: Where) -> None:
        """Say where our own arena is."""
        self._rows[self.rank, _WHERE : _WHERE + len(where)] = where
        self.mark(JOINED, HAS_JOINED)

    def where(self, rank: int) -> Where:
        """Where a member's arena is that has joined."""
        return Where(*self._rows[rank, _WHERE : _WHERE + len(Where._fields)].tolist())

    # ------------------------------------------------------------------ operations

    def publish(
        self, no: int, kind: int, offset: int, size: int, numbers: Sequence[int] = ()
    ) -> None:
        """Say that our data of an operation are there.

        Args:
            no: of the operation.
            kind: equal in all members, unless their scripts are at different places.
            offset: in our arena.
            size: in bytes.
            numbers: the data, if they are no more than `MOST_NUMBERS`.
        """
        if self.is_over:
            return
        slot = self._slots[self.rank, no % NUM_OPEN]
        slot[: _NUMBERS + len(numbers)] = (kind, offset, size, 0, *numbers)
        self.mark(BEGUN, no)

    def kinds(self, no: int) -> set[int]:
        """Kinds of operation that the members have begun with this number."""
        return {*self._slots[:, no % NUM_OPEN, _KIND].tolist()}

    def kind(self, rank: int, no: int) -> int:
        """Kind of operation that a member has begun with this number."""
        return int(self._slots[rank, no % NUM_OPEN, _KIND])

    def extent(self, rank: int, no: int) -> tuple[int, int]:
        """Offset and bytes of a member's data in its arena."""
        offset, size = self._slots[rank, no % NUM_OPEN, _OFFSET:_OUTCOME_AT].tolist()
        return offset, size

    def numbers(self, rank: int, no: int, count: int) -> list[int]:
        """Numbers that a member has published."""
        found: list[int] = self._slots[rank, no % NUM_OPEN, _NUMBERS : _NUMBERS + count].tolist()
        return found

    def publish_outcome(self, no: int, offset: int) -> None:
        """Say that the outcome of an operation is there, for the others to copy."""
        if not self.is_over:
            self._slots[self.rank, no % NUM_OPEN, _OUTCOME_AT] = offset
        self.mark(OUTCOME, no)

    def outcome_at(self, rank: int, no: int) -> int:
        """Offset of what a member has made."""
        return int(self._slots[rank, no % NUM_OPEN, _OUTCOME_AT])

    # ------------------------------------------------------------------ counters

    def mark(self, counter: int, no: int) -> None:
        """Write one of our counters, and wake who waits for it."""
        fence()
        with self._writes:
            if self.is_over:
                return  # the first member may lend the memory again
            self._counters[self.rank][counter].value = no << 1
        wake(self._words[self.rank][counter])

    def fewest(self, counter: int) -> int:
        """The least that a member has in a counter."""
        return min(row[counter].value >> 1 for row in self._counters)

    def wait_for(self, rank: int, counter: int, no: int, timeout_s: float = float("inf")) -> bool:
        """Return once a member's counter is as far; False: it never will be, or not in time."""
        of_it = self._counters[rank][counter]
        is_there = of_it.value >> 1 >= no or self._sleep(rank, counter, no, timeout_s)
        fence()
        return is_there and not self.is_over

    def _sleep(self, rank: int, counter: int, no: int, timeout_s: float) -> bool:
        of_it, word = self._counters[rank][counter], self._words[rank][counter]
        until_s, us = time.monotonic() + timeout_s, threading.get_ident()
        self._waiting.add(us)
        try:
            while (seen := of_it.value) >> 1 < no:
                left_s = until_s - time.monotonic()
                if seen & _LEFT or self.is_over or left_s <= 0:
                    return False
                # The kernel lets nobody sleep if the word has changed since.
                low = ctypes.c_int32(seen & 0xFFFFFFFF).value
                wait_for_change(word, low, min(left_s, _LOOK_S))
            return True
        finally:
            self._waiting.discard(us)

    def end(self) -> None:
        """Leave: wait for nobody any more, and have nobody wait for us."""
        with self._writes:
            if self.is_over:
                return
            self.is_over = True
            for counter in self._counters[self.rank]:
                counter.value |= _LEFT
        for word in self._words[self.rank]:
            wake(word)
        # A thread of ours that has looked just before, and does not sleep yet, hears no wake.
        until_s = time.monotonic() + _LOOK_S
        while self._waiting and time.monotonic() < until_s:
            for row in self._words:
                for word in row:
                    wake(word)
            time.sleep(_AGAIN_S)  # noqa: TID251


def num_bytes(size: int) -> int:
    """Bytes of a board for so many members."""
    return _WIDTH * size * _ROW
