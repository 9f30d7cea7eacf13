"""Libraries that not every job needs, and the extras of the package that install them.

A module that uses such a library imports it under `extra_for`. The module itself is imported only
where its feature is used, so a plain installation runs every job that does without.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.base.errors import ConfigError

EXTRAS = {
    "alembic": "sql",
    "llvmlite": "servers",
    "numba": "servers",
    "prometheus_client": "metrics",
    "pyarrow": "parquet",
    "scipy": "sizing",
    "sqlalchemy": "sql",
}
"""The extra that installs each optional library."""


@contextmanager
def extra_for(feature: str) -> Iterator[None]:
    """Import optional libraries that a feature needs.

    Args:
        feature: what needs them, as a user knows it; the subject of the error's line.

    Raises:
        ConfigError: one is not installed; the line names it and its extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        line = missing_line(feature, error)
        if not line:
            raise
        raise ConfigError(line) from error


def missing_line(feature: str, error: ModuleNotFoundError) -> str:
    """Say which extra installs the module that was not found; empty: none does."""
    library = (error.name or "").partition(".")[0]
    return _line(feature, library) if library in EXTRAS else ""


def complaint(feature: str, *libraries: str) -> str:
    """Say that a feature needs a library that is not installed, without importing it.

    Returns:
        One line; empty: all of them are installed.
    """
    for library in libraries:
        if not _is_installed(library):
            return _line(feature, library)
    return ""


def _line(feature: str, library: str) -> str:
    remedy = f"`pip install 'paceline[{EXTRAS[library]}]'`"
    return f"{feature} needs {library}, which is not installed; run {remedy}"


def _is_installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:
        return False
