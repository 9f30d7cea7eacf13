"""The decision log as the master writes it: lines in order, numbers that go on, a bounded size."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from paceline.jobs.jsonl import LineFile, before
from paceline.policy.decisions.past import last_number
from paceline.policy.straggler.decision_log import AnyLine, Begun

LOG_BYTES = 64 << 20
"""A decision log that is larger is put aside, and the one that lay there is dropped."""


class DecisionFile:
    """A log that goes on where a former master has ended.

    Args:
        path: of the log.
        wall_clock: Unix time, which every line gets.
    """

    def __init__(self, path: Path, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self.next_no = _continue(path)
        """Number of the first decision that is written now."""
        self._lines = LineFile(path)
        self._begun: Begun | None = None

    def add(self, line: AnyLine) -> None:
        """Keep a line for the next `flush`; a `Begun` also begins each new file."""
        line = msgspec.structs.replace(line, t=self._wall_clock())
        if isinstance(line, Begun):
            self._begun = line
        self._lines.add(line)

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
