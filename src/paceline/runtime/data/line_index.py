"""Index of where the lines of a text file are, without a list of them.

The index holds one number for each 64 KiB block: how many newlines there are up to its end. That
is 0.012 % of the file whatever the length of its lines, is counted at memory speed, and leads to
any line with one search and the reading of one block. It grows from the front while readers use
it, and a finished one is kept in a sidecar file. Of several processes that need the index of one
file only one counts; the others follow its sidecar.
"""

import fcntl
import hashlib
import logging
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.base.errors import ConfigError, PermanentError
from paceline.base.jobdir import home
from paceline.runtime.data.walks import IntArray

BLOCK_BYTES = 1 << 16
SIDECAR_MIN_BYTES = 64 << 20
"""Shorter files are counted again by each process: that takes some 10 ms."""
_MAX_CHUNK_BYTES = 32 << 20
_FOLLOW_EVERY_S = 0.1
_HEADER = struct.Struct("<8sQQ")
_MAGIC = b"plines\x00\x01"
_NEWLINE = 10

log = logging.getLogger(__name__)


class LineIndex:
    """The lines of one file; written by one thread (``build``), read by any.

    A line ends at a newline or at the end of the file; an empty file has none.

    Attributes:
        path: the file.
        size_bytes: its size when it was opened; it must not change.

    Raises:
        ConfigError: the file cannot be opened.
    """

    def __init__(self, path: Path, index_dir: Path | None = None) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(
                f"cannot read {path}: {error.strerror}; check path and rights"
            ) from error
        self.path = path
        stat = os.fstat(self._fd)
        self.size_bytes, self._mtime_ns = stat.st_size, stat.st_mtime_ns
        self._sidecar = self._sidecar_path(index_dir or home() / "index")
        self._newlines = np.zeros(-(-self.size_bytes // BLOCK_BYTES), np.int64)
        self._num_blocks = 0

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    @property
    def is_final(self) -> bool:
        """Whether the whole file is indexed."""
        return self._num_blocks == len(self._newlines)

    def num_lines(self) -> int:
        """The lines known by now."""
        # One read of the counter: the builder moves it after the counts below it are in place.
        num_blocks = self._num_blocks
        known = int(self._newlines[num_blocks - 1]) if num_blocks else 0
        if num_blocks < len(self._newlines) or not self.size_bytes:
            return known
        return known + (os.pread(self._fd, 1, self.size_bytes - 1) != b"\n")

    def locate(self, newlines: IntArray) -> tuple[IntArray, IntArray]:
        """Return the blocks of the n-th newlines of the file (from 0), and which ones in these.

        The end of a last line without a newline is in block ``len(blocks)``.
        """
        blocks = np.searchsorted(self._newlines[: self._num_blocks], newlines, side="right")
        before = np.where(blocks > 0, self._newlines[np.maximum(blocks - 1, 0)], 0)
        return blocks.astype(np.int64), newlines - before

    def read_block(self, block: int) -> bytes:
        """The bytes of one block.

        Raises:
            PermanentError: the file became shorter.
        """
        start = block * BLOCK_BYTES
        wanted = min(BLOCK_BYTES, self.size_bytes - start)
        data = os.pread(self._fd, wanted, start)
        if len(data) < wanted:
            raise self._changed()
        return data

    @property
    def indexed_bytes(self) -> int:
        """Bytes of the file that are indexed by now."""
        return min(self._num_blocks * BLOCK_BYTES, self.size_bytes)

    def build(self, wait: Callable[[float], bool], advanced: Callable[[], None]) -> None:
        """Index the file up to its end.

        Args:
            wait: sleeps for so many seconds; True means that the work is no longer wanted.
            advanced: called whenever more lines are known.

        Raises:
            PermanentError: the file was changed meanwhile.
        """
        while not self.is_final and not wait(0):
            if self._load(self._sidecar):
                advanced()
            elif (part := self._try_lock()) is not None:
                with part:
                    self._count(part, wait, advanced)
            else:  # another process is counting
                if self._load(self._part):
                    advanced()
                wait(_FOLLOW_EVERY_S)

    def _count(
        self, part: "_Part", wait: Callable[[float], bool], advanced: Callable[[], None]
    ) -> None:
        part.write(self._header())
        part.write(self._newlines[: self._num_blocks].tobytes())
        chunk_bytes = 1 << 20
        buffer = np.empty(min(_MAX_CHUNK_BYTES, len(self._newlines) * BLOCK_BYTES), np.uint8)
        while not self.is_final and not wait(0):
            first = self._num_blocks
            counts = self._count_chunk(buffer[:chunk_bytes], first * BLOCK_BYTES)
            last = first + len(counts)
            before = self._newlines[first - 1] if first else 0
            self._newlines[first:last] = np.cumsum(counts) + before
            self._num_blocks = last
            part.write(self._newlines[first:last].tobytes())
            advanced()
            # Small steps first, so that the first lines are there at once; then long ones, as
            # each step has to get the interpreter lock back from a busy training thread.
            chunk_bytes = min(chunk_bytes * 2, _MAX_CHUNK_BYTES)
        stat = os.fstat(self._fd)
        if (stat.st_size, stat.st_mtime_ns) != (self.size_bytes, self._mtime_ns):
            raise self._changed()
        if self.is_final:
            part.publish(self._sidecar)

    def _count_chunk(self, buffer: npt.NDArray[np.uint8], start: int) -> IntArray:
        num_bytes = min(len(buffer), self.size_bytes - start)
        if os.preadv(self._fd, [buffer[:num_bytes].data], start) < num_bytes:
            raise self._changed()
        num_blocks = -(-num_bytes // BLOCK_BYTES)
        buffer = buffer[: num_blocks * BLOCK_BYTES]
        buffer[num_bytes:] = 0
        found = np.equal(buffer, _NEWLINE, out=buffer.view(np.bool_))
        # Sums of bytes, eight in a word: 64 rows of 1 KiB cannot overflow a byte. This is 3 times
        # as fast as count_nonzero(axis=1).
        packed = found.view(np.uint64).reshape(num_blocks, 64, BLOCK_BYTES // 512).sum(axis=1)
        counts: IntArray = packed.view(np.uint8).reshape(num_blocks, -1).sum(axis=1, dtype=np.int64)
        return counts

    def _header(self) -> bytes:
        return _HEADER.pack(_MAGIC, self.size_bytes, self._mtime_ns)

    def _load(self, path: Path) -> bool:
        """Take over what the sidecar knows; False if that is nothing new."""
        try:
            data = path.read_bytes()
        except OSError:
            return False
        if data[: _HEADER.size] != self._header():
            return False  # of another state of the file: it will be replaced
        num_blocks = min((len(data) - _HEADER.size) // 8, len(self._newlines))
        if num_blocks <= self._num_blocks:
            return False
        self._newlines[:num_blocks] = np.frombuffer(data, np.int64, num_blocks, _HEADER.size)
        self._num_blocks = num_blocks
        return True

    @property
    def _part(self) -> Path:
        return self._sidecar.with_suffix(".part")

    def _try_lock(self) -> "_Part | None":
        """The file for the counts; None while another process holds it."""
        if self.size_bytes < SIDECAR_MIN_BYTES:
            return _Part(None)
        try:
            self._sidecar.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return _Part(None)  # nowhere to keep it: each process counts for itself
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:  # a file system without locks
            os.close(fd)
            return _Part(None)
        os.ftruncate(fd, 0)
        return _Part(fd, self._part)

    def _sidecar_path(self, index_dir: Path) -> Path:
        name = hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:24]
        return index_dir / f"{name}.lines"

    def _changed(self) -> PermanentError:
        return PermanentError(
            f"{self.path} was changed while it was being read (it had {self.size_bytes} bytes); "
            "data files must stay as they are during a job"
        )


class _Part:
    """A sidecar in the making; the lock ends with the descriptor, so a dead builder holds none."""

    def __init__(self, fd: int | None, path: Path | None = None) -> None:
        self._fd, self._path = fd, path

    def write(self, data: bytes) -> None:
        if self._fd is None:
            return
        try:
            os.write(self._fd, data)
        except OSError as error:  # a full disk: the index is then kept in memory only
            log.warning(
                "line_index_not_kept", extra={"path": str(self._path), "reason": str(error)}
            )
            self._close()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def publish(self, sidecar: Path) -> None:
        if self._fd is not None and self._path is not None:
            os.fsync(self._fd)
            self._path.replace(sidecar)

    def __enter__(self) -> "_Part":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
