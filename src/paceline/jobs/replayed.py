"""Logs of decisions that `paceline replay` makes again: each feature that decides declares its own.

A feature names a `ReplayedLog` as the ``replayed`` of its `paceline.base.features.Feature`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.features import parts_of, say_failed
from paceline.base.jobdir import JobDir
from paceline.policy.decisions.past import Again, Decider, Line
from paceline.policy.plugins import Plugins


class ToldLog(msgspec.Struct, Generic[Line], frozen=True, kw_only=True):
    """A log of decisions, and the words in which `paceline replay` tells of it."""

    policies: Plugins[Any]
    what: str
    """Word for a policy of this log."""
    unit: str
    """Word for a line of this log."""
    name: str
    """Name of the log for people."""
    by: tuple[Decider, ...]
    """The policies that were asked, in order."""
    log: tuple[tuple[Decider, Line], ...]
    own: tuple[Again[Any], ...] = ()
    """Lines that are paceline's own code, which no policy stands in for, made again."""
    columns: tuple[str, ...]
    cells: Callable[[Line], tuple[str, ...]]
    head: Callable[[Any], str]
    """Which line it is."""
    words: Callable[[Sequence[Any]], str]
    does: str
    """Verb for the policy in a line that counts decisions."""
    silent: tuple[type, ...] = ()
    """Acts that are not worth a row."""
    counts: type = object
    """Acts that count."""


class ReplayedLog(NamedTuple):
    """A kind of log: where it lies in a job's folder, and how it is read."""

    file: str
    """Name of a log of this kind, for people."""
    place: Callable[[JobDir], Path]
    """Path of a job's log of this kind; there need be no such file."""
    read: Callable[[Path], ToldLog[Any] | None]
    """Reads a file; None: it is no log of this kind. Raises ConfigError where it is one and cannot
    be read."""
    policies: Plugins[Any] | None
    """Policies that may be asked instead of the log's own; None: none stands in for it."""
    absent: Callable[[JobDir], ConfigError | None] = lambda _job: None
    """Says why a job has no such log, with the remedy; None: nothing is to be said of that."""


def logs_of_features() -> list[ReplayedLog]:
    """Return the kinds of logs that features declare."""
    found: list[ReplayedLog] = []
    for name, log in parts_of("replayed", say_failed):
        if isinstance(log, ReplayedLog):
            found.append(log)
        else:
            say_failed(name, TypeError(f"its log is {log!r:.100}, and no ReplayedLog"))
    return found


def why_no_log(job: JobDir) -> ConfigError:
    """Say why a job, of which nothing was decided, has no log."""
    found = (log.absent(job) for log in logs_of_features())
    unwritten = ConfigError(
        f"job {job.job_id}: no decisions were written that an installed feature reads"
    )
    return next(filter(None, found), unwritten)
