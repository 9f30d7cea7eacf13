"""The lines of text files as records, numbered across the files.

The files are read from the first moment on; their lines are counted in the background. Until the
count is final, ``num_known`` says how many records can be asked for without waiting.
"""

import errno
import glob
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.base.errors import ConfigError, InternalError
from paceline.runtime.data.line_index import BLOCK_BYTES, LineIndex
from paceline.runtime.data.walks import IntArray

Paths = str | Path | Sequence[str | Path]
_CACHED_BLOCKS = 256
_PROGRESS_EVERY_S = 5.0

log = logging.getLogger(__name__)


def expand_paths(paths: Paths) -> list[Path]:
    """The files that ``paths`` names: one path, a pattern with ``*``, or a list of them.

    Files of a pattern come in sorted order, so every process numbers the records alike.

    Raises:
        ConfigError: a name matches no file.
    """
    names: Iterable[str | Path] = [paths] if isinstance(paths, str | Path) else paths
    found: list[Path] = []
    for name in names:
        matches = [Path(one) for one in sorted(glob.glob(os.fspath(name)))]
        plain = Path(name)
        files = [one for one in ([plain] if plain.exists() else matches) if not one.is_dir()]
        if not files:
            raise ConfigError(
                f"no file matches {str(name)!r} (from {Path.cwd()}); check the path"
            ) from FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(name))
        found += files
    if not found:
        raise ConfigError("the list of data files is empty; name at least one")
    return found


class LineFiles:
    """The lines of several files as one sequence of byte strings, without their line ends.

    Usable from several threads, across ``fork`` and pickled: each process counts in a thread of
    its own (or follows the process that counts, see ``line_index``).
    """

    def __init__(
        self, paths: Paths, *, num_header_lines: int = 0, index_dir: Path | None = None
    ) -> None:
        self.paths = expand_paths(paths)
        self._num_header_lines = num_header_lines
        self._index_dir = index_dir
        self._files = [_LineFile(path, num_header_lines, index_dir) for path in self.paths]
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._ends: IntArray | None = None

    def num_known(self) -> tuple[int, bool]:
        """Return how many lines are known by now, and whether these are all."""
        self._start()
        if self._ends is not None:
            return int(self._ends[-1]), True
        total = 0
        for file in self._files:
            # In this order: a count read after "final" was seen is the last word.
            is_final = file.index.is_final
            total += file.num_lines()
            if not is_final:
                return total, False
        self._ends = self._count_ends()
        return total, True

    def wait_known(self, count: int | None = None) -> tuple[int, bool]:
        """Block until ``count`` lines (None: all) are known or the count is final.

        Raises:
            PermanentError: a file changed while its lines were counted.
        """
        known, is_final = self.num_known()
        with self._changed:
            while not is_final and (count is None or known < count):
                if self._error is not None:
                    raise self._error
                if self._stop.is_set():
                    raise InternalError(f"{self._names()} was closed while it was being read")
                if not self._changed.wait(timeout=_PROGRESS_EVERY_S):
                    indexed, total = self.progress_bytes()
                    # Shown also where no logging is set up: a training loop stands still.
                    log.warning(
                        "lines_being_counted gb=%.1f of_gb=%.1f", indexed / 1e9, total / 1e9
                    )
                known, is_final = self.num_known()
        return known, is_final

    def progress_bytes(self) -> tuple[int, int]:
        """Bytes indexed by now, bytes in all."""
        return (
            sum(file.index.indexed_bytes for file in self._files),
            sum(file.index.size_bytes for file in self._files),
        )

    def read(self, indices: npt.ArrayLike) -> list[bytes]:
        """The lines at ``indices``, in that order; waits for the count where it must.

        Raises:
            IndexError: there are fewer lines.
        """
        wanted = np.asarray(indices, np.int64)
        if not wanted.size:
            return []
        known, _ = self.wait_known(int(wanted.max()) + 1)
        if wanted.max() >= known or wanted.min() < 0:
            raise IndexError(f"record {wanted.max()} of {known} in {self._names()}")
        if len(self._files) == 1:
            return self._files[0].read(wanted)
        which, inside = self._split(wanted)
        found: list[bytes] = [b""] * len(wanted)
        for number in set(which.tolist()):
            places = np.flatnonzero(which == number)
            lines = self._files[number].read(inside[places])
            for place, line in zip(places.tolist(), lines, strict=True):
                found[place] = line
        return found

    def where(self, index: int) -> str:
        """``file, line`` of a record, for messages; lines count from 1 as in an editor."""
        which, inside = self._split(np.array([index]))
        line = int(inside[0]) + self._num_header_lines + 1
        return f"{self.paths[int(which[0])]}, line {line}"

    def close(self) -> None:
        """Stop the counting, if it goes on, and wait for its thread."""
        self._stop.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join()

    def __getstate__(self) -> tuple[list[Path], int, Path | None]:
        return self.paths, self._num_header_lines, self._index_dir

    def __setstate__(self, state: tuple[list[Path], int, Path | None]) -> None:
        self.__init__(state[0], num_header_lines=state[1], index_dir=state[2])  # type: ignore[misc]

    def _names(self) -> str:
        more = f" and {len(self.paths) - 1} more files" if len(self.paths) > 1 else ""
        return f"{self.paths[0]}{more}"

    def _split(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """File number and line number in it (headers not counted)."""
        ends = self._count_ends() if self._ends is None else self._ends
        which = np.searchsorted(ends, indices, side="right")
        return which, indices - np.concatenate([[0], ends])[which]

    def _count_ends(self) -> IntArray:
        return np.cumsum([file.num_lines() for file in self._files])

    def _start(self) -> None:
        if self._pid != os.getpid():
            self._reset()  # forked: threads and their locks stayed behind, the counts came along
        with self._changed:
            if self._thread is None and not all(file.index.is_final for file in self._files):
                self._thread = threading.Thread(
                    target=self._build, name="paceline-line-index", daemon=True
                )
                self._thread.start()

    def _build(self) -> None:
        try:
            for file in self._files:
                file.index.build(self._stop.wait, self._notify)
        except Exception as error:  # noqa: BLE001 - raised again by wait_known()
            self._error = error
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


class _LineFile:
    """Reads lines of one file by their number; keeps 16 MB of recently used blocks."""

    def __init__(self, path: Path, num_header_lines: int, index_dir: Path | None) -> None:
        self.index = LineIndex(path, index_dir)
        self._num_header_lines = num_header_lines
        self._block = lru_cache(_CACHED_BLOCKS)(self._read_block)

    def num_lines(self) -> int:
        return max(self.index.num_lines() - self._num_header_lines, 0)

    def read(self, lines: IntArray) -> list[bytes]:
        lines = lines + self._num_header_lines
        starts = self._ends_of(lines - 1) + 1
        ends = self._ends_of(lines)
        firsts, lasts = starts // BLOCK_BYTES, (ends - 1) // BLOCK_BYTES
        # Sets, because the first np.unique of a process imports numpy.ma: 40 ms of the first lease.
        blocks = {block: self._block(block)[0] for block in set(firsts.tolist())}
        bases = firsts * BLOCK_BYTES
        places = zip(
            firsts.tolist(), (starts - bases).tolist(), (ends - bases).tolist(), strict=True
        )
        found = [blocks[block][start:end].removesuffix(b"\r") for block, start, end in places]
        for place in np.flatnonzero(lasts > firsts).tolist():
            found[place] = self._join(int(starts[place]), int(ends[place])).removesuffix(b"\r")
        return found

    def _ends_of(self, lines: IntArray) -> IntArray:
        """The offsets at which lines end; line -1 ends just before the file."""
        blocks, ranks = self.index.locate(np.maximum(lines, 0))
        offsets = np.empty_like(lines)
        for block in set(blocks.tolist()):
            here = blocks == block
            if block * BLOCK_BYTES >= self.index.size_bytes:
                offsets[here] = self.index.size_bytes
            else:
                inside = self._block(block)[1][ranks[here]]
                offsets[here] = inside.astype(np.int64) + block * BLOCK_BYTES
        offsets[lines < 0] = -1
        return offsets

    def _join(self, start: int, end: int) -> bytes:
        """A line that lies in more than one block."""
        first, last = start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        whole = b"".join(self._block(block)[0] for block in range(first, last + 1))
        return whole[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def _read_block(self, block: int) -> tuple[bytes, npt.NDArray[np.uint16]]:
        data = self.index.read_block(block)
        newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
        return data, newlines.astype(np.uint16)  # a block has 2^16 bytes
