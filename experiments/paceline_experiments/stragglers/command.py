"""Common part of ``paceline sim stragglers`` and ``paceline bench stragglers``."""

import sys
from pathlib import Path

import msgspec

from paceline.base.errors import ConfigError
from paceline_experiments.stragglers.figures import draw
from paceline_experiments.stragglers.results import Results, decode


def kept(json: Path, fresh: Results) -> Results:
    """The results in a file, to be gone on with; ``fresh`` if there is no such file.

    Raises:
        ConfigError: they are of another preset, or of another state of the program.
    """
    if not json.exists():
        return fresh
    try:
        found = decode(json.read_bytes())
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"--continue: {json} holds no results ({error}); leave --continue out"
        ) from error
    for what in ("preset", "version", "commit", "call_costs"):
        was, now = getattr(found, what), getattr(fresh, what)
        if was != now:
            raise ConfigError(
                f"--continue: the results in {json} have {what} {was}, and this run has {now}; "
                "name another file"
            )
    return found


def draw_into(directory: Path | None, results: Results) -> None:
    """Draw all figures, and say where; None: not wanted."""
    if directory is not None:
        for path in draw(results, directory):
            print(path, file=sys.stderr)
