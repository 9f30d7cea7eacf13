"""Keeps a node's log from filling the disk."""

import logging
import os
import time
from pathlib import Path
from typing import BinaryIO

from paceline.base.disk import is_refusal, room_bytes
from paceline.base.log_times import LogTimes, times_of

SHARE = 4
"""Divisor of what their disk has left: all logs together take at most that part."""
LEAST_BYTES = 64 << 10
KEPT_PART = 4
"""Part of a log's limit, one in so many: its end, which stays in a second file after a cut."""

_log = logging.getLogger(__name__)


def limit_bytes(wanted_bytes: int, free_bytes: int, size_bytes: int, num_nodes: int) -> int:
    """Return how large a log may become.

    Args:
        wanted_bytes: by the spec.
        free_bytes: left on the disk.
        size_bytes: of the log now.
        num_nodes: that write a log there.
    """
    share_bytes = (free_bytes + size_bytes * num_nodes) // (SHARE * num_nodes)
    return max(LEAST_BYTES, min(wanted_bytes, share_bytes))


class LogCap:
    """The log of one node, which its process appends to."""

    def __init__(self, path: Path, wanted_bytes: int, num_nodes: int) -> None:
        """Arguments as for `limit_bytes`."""
        self._path = path
        self.times = LogTimes(path)
        """Times at which the log grew."""
        self._wanted_bytes, self._num_nodes = wanted_bytes, num_nodes

    def look(self) -> int:
        """Cut the log if it is too large: its end goes to ``NAME.1.log``, the rest away.

        Returns:
            The bytes that the log has lost at its beginning.
        """
        try:
            size = self._path.stat().st_size
            if size <= LEAST_BYTES:
                return 0
            free = room_bytes(self._path.parent)
            limit = limit_bytes(self._wanted_bytes, free, size, self._num_nodes)
            if size > limit:
                return self._cut(size, limit)
        except FileNotFoundError:
            pass
        except OSError as error:
            if not is_refusal(error):
                raise
            _log.warning("log_not_cut path=%s error=%s", self._path, error.strerror)
        return 0

    def _cut(self, size: int, limit: int) -> int:
        kept = self._path.with_suffix(f".1{self._path.suffix}")
        fresh = kept.with_suffix(".new")
        start = size - min(size, limit // KEPT_PART)
        times_of(kept).unlink(missing_ok=True)  # those of the former one
        with self._path.open("r+b") as log:
            log.seek(start)
            tail = log.read(limit // KEPT_PART)
            # Before anything is removed: an agent that is killed in between loses no line.
            is_kept = _is_kept(tail, log, fresh, kept)
            if not is_kept:
                kept.unlink(missing_ok=True)
            # Its process appends, so it goes on at the new end whatever the size is.
            lost = log.seek(0, os.SEEK_END)
            log.truncate(0)
        note = (
            f"[paceline] {size:,} bytes of this log were cut off here; its limit is {limit:,} "
            f"(`log` of the spec, and a part of the disk); the last of them are in {kept.name}\n"
        )
        with self._path.open("ab", buffering=0) as log:
            log.write(note.encode())
        if not is_kept:
            kept.write_bytes(tail)
        self.times.cut(kept, start, time.time())
        _log.warning("log_cut path=%s bytes=%d limit=%d", self._path, size, limit)
        return lost


def _is_kept(tail: bytes, log: BinaryIO, fresh: Path, kept: Path) -> bool:
    """Put the end of a log in place of the former one; False: the disk has no room for both."""
    try:
        with fresh.open("wb") as file:
            file.write(tail)
            file.write(log.read(max(len(tail), LEAST_BYTES)))  # what was printed meanwhile
    except OSError as error:
        fresh.unlink(missing_ok=True)
        if not is_refusal(error):
            raise
        return False
    fresh.replace(kept)
    return True
