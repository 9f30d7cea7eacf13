"""Tensors between two processes of one host: one copy into memory that both have mapped.

Each process owns one *arena*, a file in the run directory: it alone allocates and writes there, and
tells a receiver where a frame lies (`FramePlace`). The receiver maps the file and reads in place.
When the last reference to a frame goes, the receiver writes the block's token into the block's
entry of the arena's release table, where the owner finds it at its next allocation. No message, no
lock.

    arena = Arena(directory, name, num_bytes)         # ArenaError: no memory for it
    block = arena.allocate(num_bytes)                 # memoryview to fill, None: full
    place = arena.place(frame, receiver)              # in place if it is such a block, else copied
    arena.reclaim(receiver)                           # the receiver will read no more

    arenas = PeerArenas(directory)
    frame = arenas.view(name, place)                  # memoryview; freed with its last reference
    arenas.alive(name)                                # does its owner still live?

Tokens are never reused, so a release that comes late can free nothing but its own block. An owner
holds a lock on its file as long as it lives: that is how others know, and how the next owner in the
directory removes what a killed process left behind.
"""

import fcntl
import mmap
import os
import secrets
import weakref
from pathlib import Path

import msgspec
import numpy as np

from paceline.base.copying import copy
from paceline.base.errors import PermanentError, TransientError

DEFAULT_ARENA_BYTES = 64 << 20
SUFFIX = ".arena"

_ALIGN = 64
_NUM_ENTRIES = 1024
_TABLE_BYTES = _NUM_ENTRIES * 8


class ArenaError(TransientError):
    """Shared memory is not to be had (frames then travel through the socket)."""


class BadPlace(PermanentError):
    """A peer named memory that is not there."""


class FramePlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a frame lies in its sender's arena, and how to release it."""

    offset: int
    num_bytes: int
    entry: int
    token: int


class _Block:
    """A piece of the arena in use; ``receiver`` is None until it was sent."""

    __slots__ = ("allocated", "place", "receiver", "stop")

    def __init__(self, place: FramePlace) -> None:
        self.place = place
        self.stop = place.offset + _aligned(place.num_bytes)
        self.receiver: object = None
        self.allocated = False
        """The sender got it from `allocate`, so it is his until it is sent."""


class Arena:
    """The memory that this process sends from. Not for use by several threads."""

    def __init__(self, directory: Path, name: str, num_bytes: int = DEFAULT_ARENA_BYTES) -> None:
        """Allocate and touch the memory.

        Raises:
            ArenaError: the file system of ``directory`` has not enough room.
        """
        _remove_dead(directory)
        self.name = f"{name}.{secrets.token_hex(4)}{SUFFIX}"
        """File name, by which receivers find the arena in the directory."""
        self._path = directory / self.name
        self._size = _TABLE_BYTES + num_bytes
        self._descriptor, self._map = _create(self._path, self._size)
        self._memory = np.frombuffer(self._map, np.uint8)
        self._base = self._memory.ctypes.data
        self._table = memoryview(self._map)[:_TABLE_BYTES].cast("Q")
        self._entries = list(range(_NUM_ENTRIES))
        self._blocks: list[_Block] = []
        self._token = 0

    @property
    def num_used_bytes(self) -> int:
        """Bytes in blocks that nobody has released."""
        self._collect()
        return sum(block.stop - block.place.offset for block in self._blocks)

    def allocate(self, num_bytes: int) -> memoryview | None:
        """A block to write into and pass to `place`; freed if its references go before that."""
        block = self._take(num_bytes)
        if block is None:
            return None
        block.allocated = True
        view = self._memory[block.place.offset : block.place.offset + num_bytes]
        weakref.finalize(view, self._unsent, block).atexit = False
        return view.data

    def place(self, frame: memoryview, receiver: object) -> FramePlace | None:
        """Where ``receiver`` finds ``frame``: the block itself, or a copy. None: no room."""
        block = self._block_of(frame)
        if block is None:
            block = self._take(frame.nbytes)
            if block is None:
                return None
            offset = block.place.offset
            copy(self._memory[offset : offset + frame.nbytes], np.frombuffer(frame, np.uint8))
        block.receiver = receiver
        return block.place

    def withdraw(self, place: FramePlace) -> None:
        """The message with this place could not be sent: all is as before `place`."""
        for block in self._blocks:
            if block.place == place:
                block.receiver = None
                if not block.allocated:
                    self._free(block)

    def reclaim(self, receiver: object) -> None:
        """Free all blocks of a receiver that is dead, or whose reading no longer matters."""
        for block in self._blocks:
            if block.receiver == receiver:
                self._free(block)

    def receivers(self) -> set[object]:
        """Return the receivers that hold blocks now."""
        self._collect()
        return {block.receiver for block in self._blocks if block.receiver is not None}

    def close(self) -> None:
        """Remove the file; the memory goes with the last reference to it, here and elsewhere."""
        self._path.unlink(missing_ok=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self, num_bytes: int) -> _Block | None:
        """First fit: the lowest addresses are the ones that the caches know."""
        self._collect()
        at, index = _TABLE_BYTES, 0
        for block in self._blocks:
            if block.place.offset - at >= num_bytes:
                break
            at, index = block.stop, index + 1
        if self._size - at < num_bytes or not self._entries:
            return None
        self._token += 1
        found = _Block(FramePlace(at, num_bytes, self._entries.pop(), self._token))
        self._blocks.insert(index, found)
        return found

    def _collect(self) -> None:
        """Take released blocks back."""
        table = self._table
        released = [b for b in self._blocks if table[b.place.entry] == b.place.token]
        if released:
            self._entries.extend(block.place.entry for block in released)
            self._blocks = [b for b in self._blocks if table[b.place.entry] != b.place.token]

    def _block_of(self, frame: memoryview) -> _Block | None:
        """The unsent block that ``frame`` is."""
        offset = np.frombuffer(frame, np.uint8).ctypes.data - self._base
        if not 0 <= offset < self._size:
            return None
        for block in self._blocks:
            if block.place.offset == offset and block.place.num_bytes == frame.nbytes:
                return block if block.receiver is None else None
        return None

    def _free(self, block: _Block) -> None:
        self._table[block.place.entry] = block.place.token

    def _unsent(self, block: _Block) -> None:
        if block.receiver is None:
            self._free(block)


class PeerArenas:
    """The arenas of others, as far as this process has seen them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._maps: dict[str, mmap.mmap] = {}

    def view(self, name: str, place: FramePlace) -> memoryview:
        """The frame at ``place``; the caller may write to it, and frees it by forgetting it.

        Raises:
            BadPlace: there is no such arena, or no such place in it.
        """
        memory = self._maps.get(name)
        if memory is None:
            memory = self._maps[name] = self._open(name)
        within = _TABLE_BYTES <= place.offset <= len(memory) - place.num_bytes
        if not within or not 0 <= place.entry < _NUM_ENTRIES or place.num_bytes < 0:
            raise BadPlace(f"{place} is outside of {name} ({len(memory)} bytes)")
        frame = np.frombuffer(memory, np.uint8, place.num_bytes, place.offset)
        weakref.finalize(frame, _release, memory, place.entry, place.token).atexit = False
        return frame.data

    def alive(self, name: str) -> bool:
        """Does the owner of this arena live? If not, it is forgotten here."""
        try:
            descriptor = os.open(self._directory / name, os.O_RDONLY)
        except FileNotFoundError:
            dead = True
        else:
            dead = _try_lock(descriptor)
            os.close(descriptor)
        if dead:
            self._maps.pop(name, None)
        return not dead

    def _open(self, name: str) -> mmap.mmap:
        if "/" in name or not name.endswith(SUFFIX):
            raise BadPlace(f"{name!r} is not the name of an arena")
        for known in list(self._maps):
            # The memory of a killed process would stay as long as our mapping of it.
            self.alive(known)
        try:
            descriptor = os.open(self._directory / name, os.O_RDWR | os.O_NOFOLLOW)
        except OSError as error:
            raise BadPlace(f"cannot open the arena {name}: {error}") from error
        try:
            size = os.fstat(descriptor).st_size
            if size < _TABLE_BYTES:
                raise BadPlace(f"the arena {name} has {size} bytes, fewer than its table")
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)


def _release(memory: mmap.mmap, entry: int, token: int) -> None:
    memoryview(memory)[:_TABLE_BYTES].cast("Q")[entry] = token


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGN) * _ALIGN


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _create(path: Path, size: int) -> tuple[int, mmap.mmap]:
    fresh = path.with_suffix(".new")
    try:
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ArenaError(f"cannot create {fresh}: {error}") from error
    try:
        # Locked before it gets its name: an arena without a lock belongs to nobody.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Now, so that a full file system is an error here and not a SIGBUS at some write.
        os.posix_fallocate(descriptor, 0, size)
        memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    except OSError as error:
        os.close(descriptor)
        fresh.unlink()
        raise ArenaError(f"no {size} bytes of shared memory in {path.parent}: {error}") from error
    fresh.rename(path)
    return descriptor, memory


def _remove_dead(directory: Path) -> None:
    """Remove the arenas of processes that were killed."""
    for path in directory.glob(f"*{SUFFIX}"):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        if _try_lock(descriptor):
            path.unlink(missing_ok=True)
        os.close(descriptor)
