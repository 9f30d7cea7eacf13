"""The master's files for people, events and metrics: whole JSON lines, appended."""

from pathlib import Path
from typing import Any

import msgspec

from paceline.base.disk import is_refusal, reserve_behind

MAX_KEPT = 10_000
"""Lines that are kept for a disk that refuses them; of more the oldest are dropped."""

_encode = msgspec.json.Encoder().encode


def before(path: Path) -> Path:
    """Return the file with the lines before those in ``path``, if that file was begun again."""
    return path.with_suffix(f".1{path.suffix}")


def last_line(path: Path, tail_bytes: int = 1 << 16) -> bytes | None:
    """The newest whole line of such a file; None: there is none."""
    if not path.exists():  # none yet, or the file is just being replaced
        return last_line(before(path)) if before(path).exists() else None
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - tail_bytes))
        lines = file.read().split(b"\n")
    # The first may have lost its beginning, the last its end.
    whole = lines[1 if size > tail_bytes else 0 : -1]
    if whole:
        return whole[-1]
    return last_line(path, 4 * tail_bytes) if size > tail_bytes else None


class LineFile:
    """A file of JSON lines that others may append to as well.

    A disk that refuses them is tried again at each `flush`; see `MAX_KEPT`.
    """

    def __init__(self, path: Path, reserve_bytes: int = 0) -> None:
        """``reserve_bytes``: room to keep for lines that come when the disk is full."""
        self._path = path
        self._reserve_bytes = reserve_bytes
        #: The end of the file up to which there is room on the disk for sure.
        self._reserved_to = 0
        self.num_bytes = 0
        """Bytes of the file at the last `flush` that wrote."""
        self._lines: list[bytes] = []
        self._num_lines = 0
        self._counted_bytes = 0

    def add(self, line: Any) -> None:
        """Keep a line for the next `flush`."""
        self._lines.append(_encode(line) + b"\n")

    def flush(self) -> None:
        """Write what was added, in one piece: lines of several writers do not mix."""
        if not self._lines:
            return
        data = b"".join(self._lines)
        try:
            with self._path.open("ab", buffering=0) as file:
                # On a disk that is just full only a part is written, without an error.
                num_written = file.write(data)
                self.num_bytes = file.tell()
                if self.num_bytes + self._reserve_bytes // 2 > self._reserved_to:
                    self._reserved_to = self.num_bytes + self._reserve_bytes
                    reserve_behind(file.fileno(), self._reserve_bytes)
        except OSError as error:
            if not is_refusal(error):
                raise
            del self._lines[:-MAX_KEPT]
            return
        self._lines = [data[num_written:]] if num_written < len(data) else []

    def put_aside(self) -> None:
        """Begin the file again; `before` has what it held."""
        self._path.replace(before(self._path))

    def num_lines(self) -> int:
        """Lines in the file, those of other writers included."""
        if not self._path.exists():
            return 0
        with self._path.open("rb") as file:
            file.seek(self._counted_bytes)
            while block := file.read(1 << 16):
                self._num_lines += block.count(b"\n")
                self._counted_bytes += len(block)
        return self._num_lines
