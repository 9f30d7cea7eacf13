"""A directory of files that grow and increase in number, as a stream."""

import errno
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from paceline.base.errors import ConfigError, PermanentError
from paceline.base.optional import complaint

if TYPE_CHECKING:
    from paceline.runtime.data.grown_parquet import GrownParquet

END_FILE = "_END"
_MARK_EVERY = 256
_CHUNK_BYTES = 1 << 20


class GrowingFiles:
    """Each file is a partition, its n-th record the offset n; a ``StreamSource``.

    JSONL files may be appended to; a line counts when its newline is there, the very last one
    also when the stream is finished. A Parquet file counts when it is complete. Names that begin
    with ``.`` or ``_`` are ignored. The stream is finished when the directory has a file
    ``_END``, written after the last record.

    Args:
        directory: where the files appear; it must exist.
        pattern: such as ``*.jsonl`` or ``*.parquet``.
        complete: True if nothing will be added, even without ``_END``.

    Raises:
        ConfigError: no such directory; when reading, a line that is no JSON.
        PermanentError: when reading, a file is gone or became shorter.
    """

    reads_in_thread = True
    """True: no code of the user is called."""

    def __init__(
        self, directory: str | Path, pattern: str = "*.jsonl", *, complete: bool = False
    ) -> None:
        self._directory = Path(directory)
        if not self._directory.is_dir():
            raise ConfigError(
                f"{directory} is no directory; create it before the job starts"
            ) from NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))
        if not pattern.endswith((".jsonl", ".parquet")):
            raise ConfigError(
                f"the pattern {pattern!r} names no known form; let it end in .jsonl or .parquet"
            )
        lacks = complaint("a stream of Parquet files", "pyarrow")
        if lacks and pattern.endswith(".parquet"):
            raise ConfigError(lacks)
        self._pattern, self._complete = pattern, complete
        self._files: dict[str, _Jsonl | GrownParquet] = {}

    def partitions(self) -> list[str]:
        """Names of the files, in the order in which this process saw them first."""
        for path in sorted(self._directory.glob(self._pattern)):
            if not path.name.startswith((".", "_")):
                self._file(path.name)
        return list(self._files)

    def end(self, partition: str) -> int | None:
        """The records that are complete by now; None while there are none to be counted."""
        # Asked before the file is looked at: a record written before _END is then not missed.
        finished = self.finished()
        return self._file(partition).end(finished)

    def read(self, partition: str, start: int, stop: int) -> list[Any]:
        """Records as Python values (JSONL: what the line says; Parquet: a dict per row)."""
        end = self.end(partition) or 0
        if stop > end:
            raise PermanentError(
                f"{self._directory / partition} has {end} records, but [{start}, {stop}) was "
                "leased; files of a stream may only grow"
            )
        return self._file(partition).read(start, stop)

    def finished(self) -> bool:
        """Tell whether ``_END`` is there (or the stream was said to be complete)."""
        return self._complete or (self._directory / END_FILE).exists()

    def _file(self, partition: str) -> "_Jsonl | GrownParquet":
        found = self._files.get(partition)
        if found is None:
            path = self._directory / partition
            fresh = _parquet(path) if path.suffix == ".parquet" else _Jsonl(path)
            found = self._files.setdefault(partition, fresh)
        return found

    def __getstate__(self) -> tuple[Path, str, bool]:
        return self._directory, self._pattern, self._complete

    def __setstate__(self, state: tuple[Path, str, bool]) -> None:
        self._directory, self._pattern, self._complete = state
        self._files = {}


def _parquet(path: Path) -> "GrownParquet":
    # pyarrow is of an extra, and streams of JSONL do without it.
    from paceline.runtime.data.grown_parquet import GrownParquet

    return GrownParquet(path)


class _Jsonl:
    """Counts the lines of one growing file; remembers where each 256th begins."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._marks = [0]
        self._num_lines = 0
        self._scanned_bytes = 0
        #: One thread looks how far the file reaches while another reads.
        self._lock = threading.Lock()

    def end(self, finished: bool) -> int | None:
        with self._lock:
            size_bytes = self._size_bytes()
            if size_bytes is None:
                return None
            tail = self._scan(size_bytes)
            return self._num_lines + (finished and tail)

    def read(self, start: int, stop: int) -> list[Any]:
        with self._path.open("rb") as file:
            file.seek(self._marks[start // _MARK_EVERY])
            skip = start % _MARK_EVERY
            lines = itertools.islice(file, skip, skip + stop - start)
            return [self._decode(number, line) for number, line in enumerate(lines, start + 1)]

    def _size_bytes(self) -> int | None:
        try:
            size_bytes = self._path.stat().st_size
        except FileNotFoundError:
            if self._scanned_bytes == 0:
                return None
            size_bytes = 0
        if size_bytes < self._scanned_bytes:
            raise PermanentError(
                f"{self._path} had {self._scanned_bytes} bytes and now has {size_bytes}; "
                "files of a stream may only grow"
            )
        return size_bytes

    def _scan(self, size_bytes: int) -> bool:
        """Count the new lines; whether an unfinished one is left."""
        if size_bytes == self._scanned_bytes:
            return False
        tail = False
        with self._path.open("rb") as file:
            file.seek(self._scanned_bytes)
            for chunk in self._chunks(file, size_bytes - self._scanned_bytes):
                ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10) + 1
                # Lines begin where others end: the next multiple of 256 is so many ends away.
                first = -self._num_lines % _MARK_EVERY or _MARK_EVERY
                self._marks += (ends[first - 1 :: _MARK_EVERY] + file.tell() - len(chunk)).tolist()
                self._num_lines += len(ends)
                if len(ends):
                    self._scanned_bytes = file.tell() - len(chunk) + int(ends[-1])
                tail = self._scanned_bytes < file.tell()
        return tail

    @staticmethod
    def _chunks(file: Any, num_bytes: int) -> Iterator[bytes]:
        while num_bytes > 0 and (chunk := file.read(min(num_bytes, _CHUNK_BYTES))):
            num_bytes -= len(chunk)
            yield chunk

    def _decode(self, number: int, line: bytes) -> Any:
        try:
            return msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self._path}, line {number}: no JSON: {error}") from error
