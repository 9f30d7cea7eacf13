"""What ``paceline sim stragglers`` and ``paceline bench stragglers`` have in common."""

import shlex
import subprocess
import sys
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paceline.cli.stragglers.figures import draw
from paceline.sim.experiments import Preset
from paceline.sim.results import Results


def circumstances(preset: Preset) -> dict[str, Any]:
    """How results come about that begin now: fields of `Results`."""
    return {
        "preset": preset.name,
        "version": version("paceline"),
        "commit": _commit(),
        "command": shlex.join(["paceline", *sys.argv[1:]]),
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "notes": preset.notes,
    }


def draw_into(directory: Path | None, results: Results) -> None:
    """Draw all figures, and say where; None: not wanted."""
    if directory is not None:
        for path in draw(results, directory):
            print(path, file=sys.stderr)


def _commit() -> str:
    """Of the source tree that this runs from; none: it is installed."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except OSError:
        return "no commit"
    return done.stdout.strip() or "no commit"
