"""Files in the memory of nodes, for copies of cuts.

They lie on a memory file system, below the job's run directory (``JobDir.memory``): a file outlives
the process that wrote it, and goes with its node. The pages of the last cut are used again for the
next one, since fresh ones cost as much time as the copying.
"""

import contextlib
import errno
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil

from paceline.base.cgroups import memory_headroom
from paceline.base.jobdir import JobDir
from paceline.base.node_files import NodeFiles
from paceline.base.numbering import CutNo

HEADROOM = 8
"""A file is made larger by one part in so many: tables grow."""
RESERVE_BYTES = 128 << 20
"""Left to tensors in flight, and to what else needs shared memory; and to the process itself."""


def image_path(job: JobDir, cut_no: CutNo, node: str, name: str) -> Path:
    """Where a copy of one file of a cut lies in the memory of a node."""
    return job.memory / f"{cut_no:06d}" / node / name


class MemoryFile:
    """A file that is mapped for writing."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        """Raises OSError: there is no room."""
        capacity = num_bytes + num_bytes // HEADROOM
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        check_room(path.parent, capacity)
        # Not in place: a process that has mapped a file of this name keeps what it has.
        fresh = path.with_name(f".{path.name}.partial")
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, capacity)
            self._mapped = mmap.mmap(descriptor, capacity)
            os.truncate(descriptor, num_bytes)
        except OSError:
            fresh.unlink()
            raise
        finally:
            os.close(descriptor)
        fresh.replace(path)

    def image(self, num_bytes: int) -> memoryview:
        """The first so many bytes, to be written."""
        return memoryview(self._mapped)[:num_bytes]

    def become(self, path: Path, num_bytes: int) -> bool:
        """Take another name and size; False: it is too small, or gone.

        Raises OSError: there is no room.
        """
        if num_bytes > len(self._mapped):
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._path.replace(path)
        except FileNotFoundError:
            return False
        self._path = path
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.truncate(descriptor, num_bytes)
            os.posix_fallocate(descriptor, 0, num_bytes)
        finally:
            os.close(descriptor)
        return True

    def remove(self) -> None:
        """Its memory is free when nobody has it mapped any more; nor does this process."""
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(BufferError):  # an image of it is still there
            self._mapped.close()


def check_room(folder: Path, num_bytes: int) -> None:
    """Raises OSError where others would lack memory; the kernel would rather kill than refuse."""
    found = os.statvfs(folder)
    room = min(found.f_bavail * found.f_frsize, memory_left())
    if room - num_bytes < RESERVE_BYTES:
        raise OSError(errno.ENOSPC, f"{room >> 20} MiB are left, some of them for others")


def memory_left() -> int:
    """Bytes that may still be taken: of the machine's memory, and of what our group may take."""
    available, headroom = int(psutil.virtual_memory().available), memory_headroom()
    return available if headroom is None else min(available, headroom)


def working_memory(folder: Path, num_bytes: int) -> mmap.mmap:
    """Memory of this process; on the disk of ``folder`` where memory is short.

    The kernel writes its pages there when others need them, instead of ending somebody.
    """
    if memory_left() - num_bytes < RESERVE_BYTES:
        with contextlib.suppress(OSError):  # the disk is full as well
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, num_bytes)
                return mmap.mmap(file.fileno(), num_bytes)
    # Not a bytearray, all of which would be written to at once while every thread waits.
    return mmap.mmap(-1, num_bytes)


def place(last: MemoryFile | None, path: Path, num_bytes: int) -> MemoryFile:
    """A file for the next cut: ``last`` under a new name if there is one that is large enough.

    Raises OSError: there is no room.
    """
    if last is not None:
        if last.become(path, num_bytes):
            return last
        last.remove()
    return MemoryFile(path, num_bytes)


def partner(job: JobDir, node: str, holders: Sequence[str]) -> str | None:
    """The other node that holds a node's copies: the next holder of state, or else some worker.

    None: no other node of this machine has an agent.

    Args:
        job: of all these nodes.
        node: whose copies.
        holders: the nodes that hold state, this one included.
    """
    at = holders.index(node)
    others = [*holders[at + 1 :], *holders[:at]]
    others += sorted(path.stem for path in job.run_dir.glob("*.agent") if path.stem != node)
    return next((name for name in others if NodeFiles(job, name).agent_lock.exists()), None)
