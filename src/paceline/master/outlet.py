"""The master's files for people, events and metrics: whole JSON lines, appended."""

from pathlib import Path
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def before(path: Path) -> Path:
    """Where the lines are that came before those in ``path``, if it was begun anew."""
    return path.with_suffix(f".1{path.suffix}")


def last_line(path: Path, tail_bytes: int = 1 << 16) -> bytes | None:
    """The newest whole line of such a file; None: there is none."""
    if not path.exists():  # none yet, or the file is just being begun anew
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
    """A file of JSON lines that others may append to as well."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.num_bytes = 0
        """As of the last `flush` that wrote."""
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
        self._lines.clear()
        with self._path.open("ab", buffering=0) as file:
            file.write(data)
            self.num_bytes = file.tell()

    def put_aside(self) -> None:
        """Begin the file anew; what it held is in `before` from now on."""
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
