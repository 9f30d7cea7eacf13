"""What ``paceline sim stragglers`` and ``paceline bench stragglers`` have in common."""

import os
import shlex
import subprocess
import sys
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from paceline.base.errors import ConfigError
from paceline.studies.stragglers.figures import draw
from paceline.studies.stragglers.results import Results, decode


def circumstances() -> dict[str, Any]:
    """How results come about that begin now."""
    return {
        "version": version("paceline"),
        "commit": _commit(),
        "command": shlex.join(["paceline", *sys.argv[1:]]),
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def check_outputs(json: Path | None, plots: Path | None) -> None:
    """Refuse places for results that cannot be written to, before anything is run for them.

    Raises:
        ConfigError: such a place; ``plots`` is made.
    """
    if json is not None and json.is_dir():
        raise ConfigError(f"--json {json} is a directory; name a file in it")
    if json is not None and not os.access(json if json.exists() else json.parent, os.W_OK):
        raise ConfigError(
            f"--json {json} cannot be written; make the directory {json.parent} first, or name "
            "another place"
        )
    if plots is not None:
        try:
            plots.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--plots {plots} cannot be made ({error.strerror}); name another directory"
            ) from error


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


def _commit() -> str:
    """Return the commit of the source tree that this runs from; "no commit": it is installed."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except OSError:
        return "no commit"
    return done.stdout.strip() or "no commit"
