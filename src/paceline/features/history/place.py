"""Where the history of jobs lies: a URL, and who has named it. Imports nothing slow."""

import os
import re
from typing import NamedTuple

from paceline.base.errors import ConfigError
from paceline.base.jobdir import home
from paceline.base.optional import complaint
from paceline.wire.spec import JobSpec

VARIABLE = "PACELINE_HISTORY"
NOWHERE = "off"
"""Value of `VARIABLE` with which no history is kept."""
KINDS = ("sqlite", "postgresql")
FILE = "history.sqlite"
"""Name of the history in PACELINE_HOME, where no other place is named."""


class HistoryPlace(NamedTuple):
    """Where the history lies."""

    url: str
    named: str
    """The setting that names it; empty: nobody does."""


def history_place(spec: JobSpec | None = None) -> HistoryPlace | None:
    """Find the history: as the spec says, else the environment, else in PACELINE_HOME.

    Returns:
        The place; None: no history is wanted.

    Raises:
        ConfigError: what names it is no URL of a database that can hold it.
    """
    asked, named = (spec.history, _where(spec)) if spec else (None, "")
    if asked is None:
        asked, named = os.environ.get(VARIABLE) or None, VARIABLE
    if asked is None:
        return HistoryPlace(f"sqlite:///{home() / FILE}", "")
    return place_of(asked, named)


def usable_place(spec: JobSpec) -> HistoryPlace | None:
    """Find the history of a job; also None where nobody has named one and SQLAlchemy is missing.

    Raises:
        ConfigError: what names it is no URL of a database that can hold it.
    """
    place = history_place(spec)
    return place if place is None or place.named or not missing_history() else None


def missing_history() -> str:
    """Say that the library of the usual history is not installed; empty: it is."""
    return complaint("the history of jobs", "sqlalchemy", "alembic")


def note_on_history(spec: JobSpec) -> str:
    """Say that a job will not be in the usual history; empty: it will, or nobody wants it."""
    is_left_out = history_place(spec) is not None and usable_place(spec) is None
    return f"note: this job is not remembered: {missing_history()}" if is_left_out else ""


def place_of(asked: str, named: str) -> HistoryPlace | None:
    """Return the place that a setting names; None: no history is wanted.

    Raises:
        ConfigError: it is no URL of a database that can hold it.
    """
    if asked == NOWHERE:
        return None
    kind = re.match(r"([a-z0-9]+)(\+[a-z0-9_]+)?://.", asked)
    if kind is None or kind[1] not in KINDS:
        raise ConfigError(
            f"{named}: got {without_password(asked)!r}, expected the URL of a database; write "
            "sqlite:////folder/file, postgresql+psycopg://host/name, or off"
        )
    if kind[1] == "sqlite" and not asked.partition("://")[2].startswith("//"):
        raise ConfigError(
            f"{named}: got {asked!r}, expected a whole path; write sqlite:////folder/file"
        )
    return HistoryPlace(asked, named)


def _where(spec: JobSpec) -> str:
    place = spec.sources.get("history", "history")
    return place if place.startswith("--") or place == "history" else f"{place}: history"


def without_password(url: str) -> str:
    """Return a URL as it may be shown."""
    url = re.sub(r"(?<=://)([^/@]*?):[^/@]*@", r"\1:***@", url)
    return re.sub(r"(?<=[?&])([^=&]*passw[^=&]*)=[^&]*", r"\1=***", url)
