"""Output of experiments: where it goes, how it came about, and tables."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paceline.base.errors import ConfigError


def circumstances() -> dict[str, Any]:
    """Say how results come about that begin now."""
    return {
        "version": version("paceline"),
        "commit": commit(),
        "command": shlex.join(["paceline", *sys.argv[1:]]),
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def commit() -> str:
    """Return the commit of the source tree that this runs from; "no commit": it is installed."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except OSError:
        return "no commit"
    return done.stdout.strip() or "no commit"


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


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table of text and then numbers. Empty: there are no rows."""
    body = [f"| {' | '.join(row)} |" for row in rows]
    if not body:
        return ""
    ruler = "|---|" + "---:|" * (len(head) - 1)
    return "\n".join([f"| {' | '.join(head)} |", ruler, *body])


def goal_table(goals: Iterable[tuple[str, str, bool]]) -> str:
    """Format a Markdown table of goals: what was to be reached, what was measured, and whether."""
    rows = [(goal, measured, "yes" if reached else "no") for goal, measured, reached in goals]
    return table(("goal", "measured", "reached"), rows)
