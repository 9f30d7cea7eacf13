"""The port of a sink: where the curves of a job go in addition to its own file.

A package declares one by an entry point::

    [project.entry-points."paceline.sinks"]
    mine = "my_package.sinks:Mine"
"""

import importlib.util
import tempfile
from pathlib import Path
from typing import Protocol

import msgspec

from paceline.base.errors import ConfigError
from paceline.jobs.curves import CurveLine

GROUP = "paceline.sinks"


class SinkWriter(Protocol):
    """An open sink. All calls come from one thread of the master; an error ends the sink only."""

    def add(self, line: CurveLine) -> None:
        """Take a point of one or more curves; steps grow, but for `go_back`."""

    def go_back(self, step: int) -> None:
        """Points of this step and later ones are void: they come again."""

    def flush(self) -> None:
        """Hand over to the operating system what was added, about once a second."""

    def close(self) -> None:
        """Flush and end: nothing follows."""


class Sink(msgspec.Struct, frozen=True, kw_only=True):
    """A sink as the spec names it."""

    to: str
    """Place to which it writes: the value of ``log_to.NAME``; a path is absolute."""

    def check(self) -> None:
        """Try what it will need; called before a job starts.

        Raises:
            ConfigError: what is missing, and the remedy.
        """

    def open(self, job_id: str) -> SinkWriter:
        """Begin to write the curves of this job, or go on with them."""
        raise NotImplementedError


def check_package(name: str, to: str) -> None:
    """Check that the package of a sink is installed.

    Raises:
        ConfigError: it is not.
    """
    if importlib.util.find_spec(name) is None:
        raise ConfigError(
            f"got {to}, expected the package {name} to write there, which is not installed; run "
            f"`pip install 'paceline[{name}]'`"
        )


def check_folder(to: str) -> None:
    """Make the folder of a sink, and check that files can be written there.

    Raises:
        ConfigError: they cannot.
    """
    try:
        Path(to).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=to) as file:
            file.write(b"paceline")
    except OSError as error:
        expected = f"a folder to write to ({error.strerror})"
        raise ConfigError(f"got {to}, expected {expected}; name another") from error
