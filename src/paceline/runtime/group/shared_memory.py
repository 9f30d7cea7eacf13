"""Memory that the processes of one machine share: each has one piece, which the others may map.

It has no name in any folder, so it is gone with the process, however that dies. Others map it by
the number of its descriptor, through ``/proc``.
"""

import ctypes
import functools
import os
import secrets
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.base import futex
from paceline.base.processes import this_machine

_madvise, _DONT_DUMP = ctypes.CDLL(None).madvise, 16
_ALIGNED = 64
"""Bytes of a line of the processor's cache."""
ROOMS_LATER, BOARDS_LATER = 2, 64
"""Groups that come together before what was lent in one that broke is lent again. A member of that
one may read it until it has heard that it is over; and one that is stopped in the midst of a write
may write when it goes on."""


class LentRoom(NamedTuple):
    """A part of an arena, lent to somebody.

    ``memory``: uint8, at least as many as were asked for.
    """

    offset: int
    memory: Tensor


class Where(NamedTuple):
    """Where an arena is: the descriptor ``file`` of process ``pid``, of so many bytes.

    ``sign``: a number by which it is known for what it is; it begins with that.
    """

    pid: int
    file: int
    num_bytes: int
    sign: int


class GroupArena:
    """The memory of this process. It may be as large as the machine's; what is not used is free.

    Any thread may call it.

    Raises:
        OSError: there is none.
    """

    def __init__(self) -> None:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        made = os.memfd_create("paceline-group", os.MFD_CLOEXEC)
        self.where = Where(os.getpid(), made, size, secrets.randbelow(1 << 63))
        try:
            os.ftruncate(made, size)
            self.memory = _mapped(self.where)
        except OSError:
            os.close(made)
            raise
        _sign_of(self.memory)[0] = self.where.sign
        self._used = _ALIGNED
        self._free = defaultdict[int, list[LentRoom]](list)
        self._lock = threading.Lock()
        self._groups = 0
        #: Number of the group with which a room may be lent again.
        self._later: list[tuple[int, LentRoom]] = []

    def lend(self, num_bytes: int) -> LentRoom:
        """Lend a room of so many bytes, with anything in it.

        Raises:
            OSError: more is lent than the machine has.
        """
        size = -(-max(num_bytes, 1) // _ALIGNED) * _ALIGNED
        with self._lock:
            if self._free[size]:
                return self._free[size].pop()
            start, self._used = self._used, self._used + size
            if self._used > len(self.memory):
                raise OSError(f"{self._used} bytes of shared memory are lent")
        return LentRoom(start, self.memory[start : start + size])

    def give_back(self, room: LentRoom) -> None:
        """Nobody reads it any more."""
        with self._lock:
            self._free[len(room.memory)].append(room)

    def give_back_later(self, rooms: Sequence[LentRoom], boards: Sequence[LentRoom] = ()) -> None:
        """A group is over, in which these were lent; some member may not know that yet.

        Args:
            rooms: that others read.
            boards: that others write, too.
        """
        with self._lock:
            self._later += [(self._groups + ROOMS_LATER, room) for room in rooms]
            self._later += [(self._groups + BOARDS_LATER, room) for room in boards]

    def note_group(self) -> None:
        """Another group has come together."""
        with self._lock:
            self._groups += 1
            due = [room for group, room in self._later if group <= self._groups]
            self._later = [one for one in self._later if one[0] > self._groups]
            for room in due:
                self._free[len(room.memory)].append(room)


def arena() -> GroupArena:
    """Return the arena of this process, made once; raises OSError."""
    with _making:
        return _arena_of(os.getpid())


_making = threading.Lock()


@functools.cache
def _arena_of(pid: int) -> GroupArena:
    del pid  # a process that was forked needs one of its own
    return GroupArena()


_maps = dict[Where, Tensor]()


def mapped(where: Where) -> Tensor:
    """Map another process's arena: uint8, ``[num_bytes]``.

    Raises:
        OSError: it is not there, or not for us.
    """
    if where not in _maps:
        memory = _mapped(where)
        if _sign_of(memory)[0] != where.sign:
            raise OSError("another process has this descriptor")
        _maps[where] = memory
    return _maps[where]


def keep_maps(of: Iterable[Where]) -> None:
    """Keep the maps of these, and no others."""
    for where in {*_maps}.difference(of):
        _maps.pop(where, None)


def _mapped(where: Where) -> Tensor:
    # By a path, so that what is mapped is what that process has, or nothing.
    path = f"/proc/{where.pid}/fd/{where.file}"
    if os.stat(path).st_size != where.num_bytes:
        raise OSError(f"{path} is not of {where.num_bytes} bytes")
    try:
        memory = torch.from_file(path, shared=True, size=where.num_bytes, dtype=torch.uint8)
    except RuntimeError as error:
        raise OSError(str(error)) from error
    # A core dump would fill all of it.
    _madvise(ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(where.num_bytes), _DONT_DUMP)
    return memory


def _sign_of(memory: Tensor) -> Tensor:
    return memory[:8].view(torch.int64)


@functools.cache
def this_place() -> str:
    """Name the processes that can share memory with this one; empty: none can.

    They have the same user, network and process numbers: on a machine of its own, or in a container
    or a network namespace, a process is elsewhere.
    """
    if not (hasattr(os, "memfd_create") and futex.IS_KNOWN):
        return ""
    with suppress(OSError):
        words = f"{this_machine()} {os.readlink('/proc/self/ns/net')} {os.getuid()}"
        return sha256(words.encode()).hexdigest()[:12]
    return ""
