"""When a log grew: beside ``worker-0.log``, which is what processes print, ``worker-0.times``.

The log itself is as it was printed; its processes write to it directly, so that no line is lost
with the process that would pass it on. The node's agent notes now and then how long it is.
"""

import os
import struct
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

_POINT = struct.Struct("<dQ")
"""Unix time, bytes that the log had then."""
EVERY_S = 1.0


def times_of(log: Path) -> Path:
    """Where the times of a log are."""
    return log.with_suffix(".times")


class LogTimes:
    """Notes how a log grows, for `start_since`."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._size_bytes = 0
        self._next_s = 0.0

    def note(self, unix_s: float, *, last: bool = False) -> None:
        """Note the log's size where it has changed, once per `EVERY_S`; ``last``: in any case."""
        if unix_s < self._next_s and not last:
            return
        try:
            size_bytes = os.stat(self._log).st_size
            if size_bytes == self._size_bytes:
                return
            self._size_bytes, self._next_s = size_bytes, unix_s + EVERY_S
            with times_of(self._log).open("ab", buffering=0) as file:
                file.write(_POINT.pack(unix_s, size_bytes))
        except OSError:
            return  # no log yet, or no room: what is not noted counts as printed later

    def cut(self, kept: Path, start_bytes: int, unix_s: float) -> None:
        """Note that the log was cut.

        Args:
            kept: the file that has what was cut off.
            start_bytes: the place in the log at which ``kept`` begins.
            unix_s: Unix time of the cut.
        """
        self._size_bytes = 0
        try:
            times_s, sizes_bytes = _of_present(times_of(self._log).read_bytes())
            points = [
                _POINT.pack(t, size_bytes - start_bytes)
                for t, size_bytes in zip(times_s, sizes_bytes, strict=True)
                if size_bytes >= start_bytes
            ]
            end = _POINT.pack(unix_s, kept.stat().st_size)
            times_of(kept).write_bytes(b"".join([*points, end]))
            with times_of(self._log).open("ab", buffering=0) as file:
                file.write(_POINT.pack(unix_s, 0))
        except OSError:
            return  # as above


def printed_by(noted: bytes | None) -> Callable[[int], float | None]:
    """When what is in a log up to a byte had been printed, as a function of the byte.

    Unix time, at most `EVERY_S` late; None: nobody has noted it, or not yet.

    Args:
        noted: what is in the file of its times; None: there is none.
    """
    if noted is None:
        return lambda _: None
    times_s, sizes_bytes = _of_present(noted)

    def printed_s(end_bytes: int) -> float | None:
        place = bisect_left(sizes_bytes, end_bytes)
        return times_s[place] if place < len(times_s) else None

    return printed_s


def _of_present(noted: bytes) -> tuple[list[float], list[int]]:
    """Times and sizes that were noted of what is in the log now: a cut log begins again."""
    points = _points(noted)
    first = max((n for n in range(1, len(points)) if points[n][1] < points[n - 1][1]), default=0)
    return [t for t, _ in points[first:]], [size for _, size in points[first:]]


def _points(noted: bytes) -> list[tuple[float, int]]:
    # The last point may have lost its end with its writer.
    return list(_POINT.iter_unpack(noted[: len(noted) // _POINT.size * _POINT.size]))


def start_since(noted: bytes | None, size_bytes: int, unix_s: float) -> int | None:
    """The byte of the log at which what was printed since begins; None: nobody noted its times.

    Args:
        noted: what is in the file of its times; None: there is none.
        size_bytes: of the log.
        unix_s: Unix time.
    """
    if noted is None:
        return None
    start = 0
    for t, seen_bytes in _points(noted):
        if t <= unix_s:
            start = seen_bytes
        elif seen_bytes < start:
            start = 0  # cut off since: what is there now came later
    return start if start <= size_bytes else 0
