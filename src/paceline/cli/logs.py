"""``paceline logs``: what the processes of a job have printed, all, the last, or as it grows."""

import sys
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from paceline.base.errors import ConfigError
from paceline.base.log_times import printed_by, start_since, times_of
from paceline.jobs.log_files import CUT_OFF, LogFiles
from paceline.jobs.spec_values import parse_ago_s

BLOCK_BYTES = 1 << 16
STAMP = "%Y-%m-%d %H:%M:%S"
"""Format of the time with which lines of paceline's own processes begin, in local time."""
STAMP_BYTES = 19


class LogFilter(Struct, frozen=True, kw_only=True):
    """A choice of log lines, and how they are printed."""

    node: str | None = None
    """None: lines of all nodes."""
    tail: int | None = None
    """Number of lines printed from the end of each log; None: all."""
    since_s: float | None = None
    """Unix time before which lines are left out; None: none is."""
    as_json: bool = False
    timestamps: bool = False
    """Whether each line shows when it was printed, as far as the node's agent noted it."""
    follow: bool = False


class LogLine(Struct, frozen=True):
    """One line as JSON."""

    node: str
    line: str
    time_s: float | None = None
    """Unix time by which it was printed, at most a second late; None: neither noted nor stamped."""


def parse_since(text: str, now_s: float) -> float:
    """Unix time of ``10m``, ``2d`` (so long ago) or ``2026-11-25 15:27``, in local time.

    Raises:
        ConfigError: it is neither.
    """
    ago_s = parse_ago_s(text)
    if ago_s is not None:
        return now_s - ago_s
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        expected = "how long ago, or a time; write e.g. --since 10m or --since '2026-11-25 15:27'"
        raise ConfigError(f"--since: got {text!r}, expected {expected}") from error


class GrowingLog:
    """New whole lines of a growing log."""

    def __init__(self, files: LogFiles, name: str, start: int) -> None:
        """``start``: the byte of the first line."""
        self._files, self._name = files, name
        self.upto = start
        """The byte up to which the log was read."""
        #: What was read and has no end of line.
        self._open = b""

    @property
    def told_bytes(self) -> int:
        """The byte up to which lines were returned."""
        return self.upto - len(self._open)

    def lines(self) -> list[bytes]:
        """Return the lines that were added since the last call, without their ends."""
        whole, end, self._open = self._read().rpartition(b"\n")
        return whole.split(b"\n") if end else []

    def rest(self) -> list[bytes]:
        """Return what was printed last and has no end of line: at most one, which must not grow."""
        text, self._open = self._read(), b""
        return [text] if text else []

    def _read(self) -> bytes:
        """Return what was not returned yet."""
        size = self._files.size(self._name) or 0
        if size < self.upto:
            self.upto, self._open = 0, b""  # it was cut, and begins again
        if size > self.upto:
            fresh = self._files.read(self._name, self.upto, size - self.upto)
            self.upto += len(fresh)
            self._open += fresh
        return self._open


def show_logs(files: LogFiles, wanted: LogFilter) -> None:
    """Print logs, and go on while the job runs if asked to.

    Raises:
        ConfigError: no log of that name.
    """
    only = [f"{wanted.node}.log"] if wanted.node else []
    if only and files.size(only[0]) is None:
        there = ", ".join(map(_node_of, files.logs())) or "none"
        raise ConfigError(f"no log of {wanted.node!r} in job {files.job_id}; there are: {there}")
    for name in only or files.logs():
        _show_cut_off(files, name, wanted)
    tails: dict[str, GrowingLog] = {}
    # Before the reading: what is written before the end is read after it.
    goes_on = wanted.follow and files.runs()
    while True:
        for name in only or files.logs():
            if name not in tails:
                tails[name] = GrowingLog(files, name, _start(files, name, wanted))
            tail = tails[name]
            _print(files, name, tail.lines(), tail.told_bytes, wanted)
            if not goes_on:
                _print(files, name, tail.rest(), tail.told_bytes, wanted, ended=False)
        sys.stdout.flush()
        if not goes_on:
            return
        goes_on = files.wait({name: tails[name].upto for name in tails}, every=not only)


def _print(
    files: LogFiles,
    name: str,
    lines: list[bytes],
    read_bytes: int,
    wanted: LogFilter,
    *,
    ended: bool = True,
) -> None:
    """Print lines that end at a byte of their log; ``ended``: each with an end of line."""
    has_times = lines and (wanted.timestamps or wanted.as_json)
    printed_s = printed_by(files.whole(_times_of(name))) if has_times else lambda _: None
    at = read_bytes - sum(len(line) + ended for line in lines)
    for line in lines:
        at += len(line) + ended
        time_s = printed_s(at)
        if time_s is None and wanted.as_json:
            time_s = _stamp_s(line) or None
        print(_printed(_node_of(name), line.decode(errors="replace"), time_s, wanted))


def _times_of(name: str) -> str:
    return times_of(Path(name)).name


def _node_of(name: str) -> str:
    return name.removesuffix(CUT_OFF).removesuffix(".log")


def _printed(node: str, line: str, time_s: float | None, wanted: LogFilter) -> str:
    if wanted.as_json:
        return msgspec.json.encode(LogLine(node, line, time_s)).decode()
    stamp = ""
    if wanted.timestamps and time_s is not None:
        stamp = f"{datetime.fromtimestamp(time_s).strftime(STAMP)} "  # noqa: DTZ006
    return f"{stamp}{line}" if wanted.node else f"{node} | {stamp}{line}"


def _show_cut_off(files: LogFiles, log: str, wanted: LogFilter) -> None:
    """Show what is kept of the part of a log that was cut off, as far as it is wanted."""
    name = f"{_node_of(log)}{CUT_OFF}"
    size = files.size(name)
    if size is None or (wanted.since_s or 0.0) > files.changed_s(name):
        return
    start = 0
    if wanted.since_s is not None:
        start = start_since(files.whole(_times_of(name)), size, wanted.since_s) or 0
    if wanted.tail is not None:
        _, missing = find_last(files, log, wanted.tail)
        start = max(start, find_last(files, name, missing)[0])
    tail = GrowingLog(files, name, start)
    _print(files, name, tail.lines(), tail.told_bytes, wanted)
    _print(files, name, tail.rest(), tail.told_bytes, wanted, ended=False)


def _start(files: LogFiles, name: str, wanted: LogFilter) -> int:
    """The byte from which on a log is wanted."""
    since, size = 0, files.size(name) or 0
    if wanted.since_s is not None:
        known = start_since(files.whole(_times_of(name)), size, wanted.since_s)
        since = _find_stamp(files, name, wanted.since_s) if known is None else known
    last = 0 if wanted.tail is None else find_last(files, name, wanted.tail)[0]
    return max(since, last)


def find_last(files: LogFiles, name: str, count: int) -> tuple[int, int]:
    """The byte at which the last ``count`` lines begin, and how many of them the log lacks.

    Read from its end on, as far as that takes; what has no end of line is a line, too.
    """
    at = size = files.size(name) or 0
    if count <= 0 or not size:
        return size, max(0, count)
    left = count + (files.read(name, size - 1, 1) == b"\n")
    while at:
        first = max(0, at - BLOCK_BYTES)
        block = files.read(name, first, at - first)
        found = block.count(b"\n")
        if found >= left:
            for _ in range(left - 1):
                block = block[: block.rindex(b"\n")]
            return first + block.rindex(b"\n") + 1, 0
        left, at = left - found, first
    return 0, left - 1


def _find_stamp(files: LogFiles, name: str, unix_s: float) -> int:
    """The first line that is stamped with that time or a later one; the end: there is none."""
    start = 0
    text = files.read(name, 0, files.size(name) or 0)
    while start < len(text):
        if _stamp_s(text[start : start + STAMP_BYTES]) >= unix_s:
            return start
        start = text.find(b"\n", start) + 1 or len(text)
    return start


def _stamp_s(line: bytes) -> float:
    try:
        return datetime.strptime(line[:STAMP_BYTES].decode(), STAMP).timestamp()  # noqa: DTZ007
    except ValueError:
        return 0.0  # goes with the line before it
