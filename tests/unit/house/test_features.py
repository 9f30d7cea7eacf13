"""Each feature can be taken away: the command line is there, without the feature's commands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.base.features import installed
from paceline.jobs.ground import FEATURE_KEYS
from tests.without_feature import FEATURES, FOLDERS, environment_without

VERBS = {
    "cluster": ["cluster"],
    "curves": [],
    "data": ["data"],
    "exporter": [],
    "failslow": ["failslow"],
    "formats": [],
    "history": ["history"],
    "rehearse": ["rehearse", "check"],
    "report": ["report"],
    "sharing": [],
    "stragglers": [],
    "sizes": [],
}
BOTH = """
from paceline.cli.main import app
app(["--help"], standalone_mode=False)
print("FEATURES")
app(["features"], standalone_mode=False)
"""


def test_each_folder_of_a_feature_is_declared_and_says_which_file_to_read_first() -> None:
    folders = {one.parent.name: one.parent for one in FOLDERS.glob("*/__init__.py")}
    assert sorted(folders) == FEATURES == sorted(VERBS)
    assert not [name for name, folder in folders.items() if not (folder / "README.md").exists()]


@pytest.mark.parametrize("name", FEATURES)
def test_without_a_feature_the_other_commands_are_there(name: str, tmp_path: Path) -> None:
    without = environment_without(name, tmp_path)

    done = subprocess.run(
        [sys.executable, "-c", BOTH], env=without, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    told, listed = done.stdout.split("FEATURES\n")
    words = {
        found[1] for line in told.splitlines() if (found := re.match(r"[│ ]*([a-z-]+) ", line))
    }
    assert {"run", "status", "features"} <= words
    others = {verb for other, verbs in VERBS.items() if other != name for verb in verbs}
    assert others <= words
    assert not words & set(VERBS[name])
    assert set(FEATURES) - {line.split()[0] for line in listed.splitlines()} == {name}


def test_the_core_knows_the_keys_of_all_features_where_they_are_not_there() -> None:
    keys = [key for one in installed() if one.feature for key in one.feature.keys]
    assert sorted(keys) == sorted(FEATURE_KEYS)
