"""The files a job leaves behind as facts: events and metrics, whole or as they grow.

The master writes them, and may be killed in the middle of a line; a reader sees whole lines only.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from paceline.jobs.jsonl import before, last_line
from paceline.wire.events.lines import AnyEvent, decode_events


class NodePoint(msgspec.Struct, frozen=True):
    """One node in one line of ``metrics.jsonl``; counters go over all its lives."""

    step: int = 0
    samples: int = 0
    """Handed to its training loop."""
    bpt_s: float = 0.0
    compute_s: float = 0.0
    server_s: float = 0.0
    message_s: float = 0.0
    data_s: float = 0.0
    rss_bytes: int = 0
    cpu_s: float = 0.0
    cores: float | None = None
    """Granted to it; None: there is no quota, or it is not known."""


class MetricsPoint(msgspec.Struct, frozen=True):
    """One line of ``metrics.jsonl``: the job as measured, once per second."""

    t: float
    """Unix time."""
    committed: int
    """Samples in the model."""
    samples_per_s: float
    """Mean over the last ten seconds."""
    nodes: dict[str, NodePoint] = {}


class Tail:
    """New whole lines of a growing file; one that is not there yet has none."""

    def __init__(self, path: Path, *, from_end: bool = False, start: int = 0) -> None:
        """``start``: the byte of the first line."""
        self._path = path
        self._read_bytes = path.stat().st_size if from_end and path.exists() else start

    def lines(self) -> list[bytes]:
        """Return the lines that were added since the last call, without their ends."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._read_bytes:
                self._read_bytes = 0  # it was cut, and begins again
            file.seek(self._read_bytes)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(end)
        return whole.split(b"\n") if end else []

    @property
    def read_bytes(self) -> int:
        """The byte up to which it was read."""
        return self._read_bytes

    def rest(self) -> list[bytes]:
        """Return what was printed last and has no end of line: at most one, which must not grow."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            text = file.read()
        self._read_bytes += len(text)
        return [text] if text else []


def read_events(path: Path) -> list[AnyEvent]:
    """Return all events of a job so far, in order."""
    return decode_events(Tail(path).lines())


def read_metrics(path: Path) -> list[MetricsPoint]:
    """Read all measurements of a job that are kept, in order, but for torn or damaged lines."""
    return decode_metrics([*Tail(before(path)).lines(), *Tail(path).lines()])


def decode_metrics(lines: Iterable[bytes]) -> list[MetricsPoint]:
    """Read lines of measurements, but for torn or damaged ones."""
    found = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            found.append(msgspec.json.decode(line, type=MetricsPoint))
    return found


def read_last_metrics(path: Path, tail_bytes: int = 1 << 16) -> MetricsPoint | None:
    """The newest measurement; None: there is none, or its line is damaged."""
    if (line := last_line(path, tail_bytes)) is None:
        return None
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode(line, type=MetricsPoint)
    return None
