"""An environment in which a feature of paceline is not installed, and the tests that pass there."""

import importlib.metadata
import os
from pathlib import Path

import paceline
from paceline.base.features import GROUP

FOLDERS = Path(paceline.__file__).parent / "features"
FEATURES = sorted(
    one.name
    for one in importlib.metadata.entry_points(group=GROUP)
    if one.value.startswith("paceline.features.")
)
"""The features that are declared by paceline itself."""

TESTS = Path(__file__).parent
OF_FEATURES = {"ctr": "data", "scheduling": "cluster"}
"""Rooms of tests/unit that test a feature, and have another name than it."""
OF_BOTH = ("data",)
"""Rooms that have a feature's name, and test the core."""
OF_NEITHER = ("benchmarks", "chaos", "experiments", "house", "sim")
"""Rooms that test what is no part of the package: they may use all features."""
CORE = [
    *(
        room
        for room in sorted(TESTS.glob("unit/*/"))
        if any(room.glob("**/test_*.py"))
        and room.name not in {*OF_FEATURES, *OF_NEITHER, *FEATURES} - {*OF_BOTH}
    ),
    *(TESTS / name for name in ("conformance", "model", "parity")),
]
"""Folders whose tests pass whichever features are there."""

SITE = """
import importlib.metadata
import sys

GONE = {gone!r}
installed = importlib.metadata.entry_points

def is_gone(module):
    return module == GONE or module.startswith(GONE + ".")

def entry_points(**wanted):
    found = installed(**wanted)
    if "group" not in wanted:
        return found
    left = [one for one in found if not is_gone(one.value.partition(":")[0])]
    return importlib.metadata.EntryPoints(left)

class Gone:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if is_gone(name):
            raise ModuleNotFoundError(f"{{name}} is not there", name=name)

importlib.metadata.entry_points = entry_points
sys.meta_path.insert(0, Gone)
"""
"""Runs in each Python process that starts with it on its path."""


def environment_without(name: str, site: Path) -> dict[str, str]:
    """Environment of processes for which the feature's folder and entry points are not there.

    Args:
        name: of the feature.
        site: a folder for what Python loads at its start.
    """
    site.mkdir(parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text(SITE.format(gone=f"paceline.features.{name}"))
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path, "COLUMNS": "200"}
