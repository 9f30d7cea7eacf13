"""``paceline logs``: what the processes of a job have printed, all, the last, or as it grows."""

import sys
import time
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.log_times import printed_by, start_since
from paceline.jobs.history import Tail
from paceline.jobs.launch import is_supervised
from paceline.jobs.spec_values import parse_ago_s

FOLLOW_S = 0.3
BLOCK_BYTES = 1 << 16
STAMP = "%Y-%m-%d %H:%M:%S"
"""Format of the time with which lines of paceline's own processes begin, in local time."""
STAMP_BYTES = 19
CUT_OFF = ".1.log"
"""Ends the name of what is kept of a log that became too long."""


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


def show_logs(job: JobDir, wanted: LogFilter) -> None:
    """Print logs, and go on while the job runs if asked to.

    Raises:
        ConfigError: no log of that name.
    """
    if wanted.node and not (job.logs / f"{wanted.node}.log").exists():
        there = ", ".join(path.stem for path in _logs(job)) or "none"
        raise ConfigError(f"no log of {wanted.node!r} in job {job.job_id}; there are: {there}")
    wanted_logs = [job.logs / f"{wanted.node}.log"] if wanted.node else _logs(job)
    for path in wanted_logs:
        _show_cut_off(path, wanted)
    tails: dict[Path, Tail] = {}
    while True:
        # Before the reading: what is written before the end is read after it.
        goes_on = wanted.follow and not job.outcome.exists() and is_supervised(job)
        for path in wanted_logs if wanted.node else _logs(job):
            if path not in tails:
                tails[path] = Tail(path, start=_start(path, wanted))
            lines = tails[path].lines()
            _print(path, lines, tails[path].read_bytes, wanted)
            if not goes_on:
                _print(path, tails[path].rest(), tails[path].read_bytes, wanted, ended=False)
        sys.stdout.flush()
        if not goes_on:
            return
        time.sleep(FOLLOW_S)  # noqa: TID251


def _print(
    log: Path, lines: list[bytes], read_bytes: int, wanted: LogFilter, *, ended: bool = True
) -> None:
    """Print lines that end at a byte of their log; ``ended``: each with an end of line."""
    has_times = lines and (wanted.timestamps or wanted.as_json)
    printed_s = printed_by(log) if has_times else lambda _: None
    at = read_bytes - sum(len(line) + ended for line in lines)
    for line in lines:
        at += len(line) + ended
        time_s = printed_s(at)
        if time_s is None and wanted.as_json:
            time_s = _stamp_s(line) or None
        print(_printed(_node_of(log), line.decode(errors="replace"), time_s, wanted))


def _node_of(log: Path) -> str:
    return log.name.removesuffix(CUT_OFF).removesuffix(".log")


def _printed(node: str, line: str, time_s: float | None, wanted: LogFilter) -> str:
    if wanted.as_json:
        return msgspec.json.encode(LogLine(node, line, time_s)).decode()
    stamp = ""
    if wanted.timestamps and time_s is not None:
        stamp = f"{datetime.fromtimestamp(time_s).strftime(STAMP)} "  # noqa: DTZ006
    return f"{stamp}{line}" if wanted.node else f"{node} | {stamp}{line}"


def _show_cut_off(log: Path, wanted: LogFilter) -> None:
    """Show what is kept of the part of a log that was cut off, as far as it is wanted."""
    path = log.with_suffix(CUT_OFF)
    if not path.exists() or (wanted.since_s or 0.0) > path.stat().st_mtime:
        return
    start = 0 if wanted.since_s is None else start_since(path, wanted.since_s) or 0
    if wanted.tail is not None:
        _, missing = find_last(log, wanted.tail)
        start = max(start, find_last(path, missing)[0])
    tail = Tail(path, start=start)
    _print(path, tail.lines(), tail.read_bytes, wanted)
    _print(path, tail.rest(), tail.read_bytes, wanted, ended=False)


def _logs(job: JobDir) -> list[Path]:
    found = (path for path in job.logs.glob("*.log") if not path.name.endswith(CUT_OFF))
    return sorted(found, key=lambda path: (not path.stem.startswith("worker"), path.stem))


def _start(log: Path, wanted: LogFilter) -> int:
    """The byte from which on a log is wanted."""
    since = 0
    if wanted.since_s is not None:
        known = start_since(log, wanted.since_s)
        since = _find_stamp(log, wanted.since_s) if known is None else known
    last = 0 if wanted.tail is None else find_last(log, wanted.tail)[0]
    return max(since, last)


def find_last(log: Path, count: int) -> tuple[int, int]:
    """The byte at which the last ``count`` lines begin, and how many of them the log lacks.

    Read from its end on, as far as that takes; what has no end of line is a line, too.
    """
    with log.open("rb") as file:
        at = size = file.seek(0, 2)
        if count <= 0 or not size:
            return size, max(0, count)
        file.seek(size - 1)
        left = count + (file.read(1) == b"\n")
        while at:
            first = max(0, at - BLOCK_BYTES)
            file.seek(first)
            block = file.read(at - first)
            found = block.count(b"\n")
            if found >= left:
                for _ in range(left - 1):
                    block = block[: block.rindex(b"\n")]
                return first + block.rindex(b"\n") + 1, 0
            left, at = left - found, first
    return 0, left - 1


def _find_stamp(log: Path, unix_s: float) -> int:
    """The first line that is stamped with that time or a later one; the end: there is none."""
    start = 0
    with log.open("rb") as file:
        for line in file:
            if _stamp_s(line) >= unix_s:
                return start
            start += len(line)
    return start


def _stamp_s(line: bytes) -> float:
    try:
        return datetime.strptime(line[:STAMP_BYTES].decode(), STAMP).timestamp()  # noqa: DTZ007
    except ValueError:
        return 0.0  # goes with the line before it
