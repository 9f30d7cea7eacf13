"""Series whose change points other people have marked, as a test of the verification.

The Turing Change Point Dataset (van den Burg & Williams, arXiv:2003.06222) is not part of this
project: the caller names a directory with its JSON files.

A series has levels about zero, and a job's times have not. So a standard deviation of its first 30
values counts for a factor of e^0.2, and a change of half of it is just above the threshold.
"""

import math
import statistics
from pathlib import Path

import msgspec

from paceline.base.errors import ConfigError
from paceline.policy.stats.noisy import NoisyChangePoints
from paceline_experiments.outputs import table

KNOWN: dict[str, int | None] = {
    "quality_control_1": 146,
    "quality_control_2": 97,
    "quality_control_3": 179,
    "quality_control_4": 341,
    "quality_control_5": None,
    "bank": None,
}
"""Index of the first value after a series' change, by the dataset's own word; None: no change."""
_SCALE = 0.2
_FIRST = 30
_MARGIN = 5


class TcpdRow(msgspec.Struct, frozen=True, kw_only=True):
    """Row of what was found in one series."""

    series: str
    known: int | None
    found: list[int]
    """First values after the changes."""

    @property
    def right(self) -> bool:
        """Whether the known change was found within 5 values, and no other."""
        if self.known is None:
            return not self.found
        return len(self.found) == 1 and abs(self.found[0] - self.known) <= _MARGIN


def run_tcpd(directory: Path) -> list[TcpdRow]:
    """Look for changes in all series.

    Raises:
        ConfigError: the directory lacks one.
    """
    return [
        TcpdRow(series=name, known=known, found=_changes(_values(directory / f"{name}.json")))
        for name, known in KNOWN.items()
    ]


def _values(path: Path) -> list[float]:
    try:
        found = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"--data: {path} cannot be read ({error.strerror}); name a directory with the JSON "
            "files of the Turing Change Point Dataset"
        ) from error
    return [float(value) for value in found["series"][0]["raw"]]


def _changes(values: list[float]) -> list[int]:
    deviation = statistics.pstdev(values[:_FIRST])
    changes = NoisyChangePoints()
    found = []
    for index, value in enumerate(values):
        change = changes.update(math.exp(_SCALE * (value - values[0]) / deviation))
        if change is not None:
            found.append(index - change.values + 1)
    return found


def markdown_tcpd(rows: list[TcpdRow]) -> str:
    """Return the table of all series."""
    cells = [
        (
            row.series,
            "none" if row.known is None else str(row.known),
            ", ".join(map(str, row.found)) or "none",
            "yes" if row.right else "no",
        )
        for row in rows
    ]
    return table(("series", "known change", "found", "right"), cells)
