"""A log of decisions as a master writes it: lines in order, numbers that go on, bounded size."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from paceline.jobs.jsonl import LineFile, before
from paceline.policy.decisions.past import last_number

LOG_BYTES = 64 << 20
"""Bytes beyond which a log is put aside, and the one that lay there is dropped."""


class DecisionFile:
    """A log that goes on where a former master has ended.

    Args:
        path: of the log.
        wall_clock: Unix time, which every line gets as its ``t``.
    """

    def __init__(self, path: Path, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self.next_no = _continue(path)
        """Number of the first decision that is written now."""
        self._lines = LineFile(path)
        self._begun: msgspec.Struct | None = None

    def begin(self, line: msgspec.Struct) -> None:
        """Write a line that also begins each new file."""
        self._begun = self.add(line)
        self.flush()

    def add(self, line: msgspec.Struct) -> msgspec.Struct:
        """Keep a line for the next `flush`; return it with its time."""
        line = msgspec.structs.replace(line, t=self._wall_clock())
        self._lines.add(line)
        return line

    def flush(self) -> None:
        """Write what was added."""
        self._lines.flush()
        if self._lines.num_bytes > LOG_BYTES:
            self._lines.put_aside()
            if self._begun is not None:
                self._lines.add(self._begun)
                self._lines.flush()


def _continue(log: Path) -> int:
    """The number of the next decision in a log that a former master may have left in mid-line."""
    last = 0
    for path in (before(log), log):
        if not path.exists():
            continue
        with path.open("rb+") as lines:
            last = max(last, last_number(lines))
            if lines.tell():
                lines.seek(-1, os.SEEK_END)
                if lines.read(1) != b"\n":
                    lines.write(b"\n")
    return last + 1
