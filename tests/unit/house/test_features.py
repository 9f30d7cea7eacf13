"""Each feature can be taken away: the command line is there, without the feature's commands."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.base.features import installed
from paceline.jobs.ground import FEATURE_KEYS
from tests.integration.running import install
from tests.quick import MORE
from tests.without_feature import (
    CORE,
    FEATURES,
    FOLDERS,
    OF_FEATURES,
    TESTS,
    environment_without,
)

VERBS = {
    "cluster": ["cluster"],
    "curves": [],
    "data": ["data"],
    "exporter": [],
    "failslow": ["failslow"],
    "formats": ["verify"],
    "history": ["history"],
    "rehearse": ["rehearse", "check"],
    "report": ["report"],
    "schema": ["schema"],
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


def test_a_package_that_names_its_feature_like_one_of_ours_is_left_out(tmp_path: Path) -> None:
    site = install(tmp_path, "more", "", "paceline.features", f"{FEATURES[0]} = more:FEATURE")
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "features"],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "package more" not in done.stdout
    assert done.stderr == (
        f"paceline: feature {FEATURES[0]} of more is left out: "
        "paceline has a feature of this name\n"
    )


# ----------------------------------------------------------------------------- rooms of tests
#
# Tests of the core pass with any feature's folder removed. `tests/integration/test_without_features`
# runs them so; here is what can be seen without running them.

OURS = re.compile(
    rf"paceline\.features\.\w|tests\.unit\.({'|'.join([*FEATURES, *OF_FEATURES])})\b(?<!\.data)"
)
"""Modules of a feature, and of its tests."""


def features_in(tree: ast.AST) -> Iterator[str]:
    """Modules of features that a file imports, or names in a text by which it is loaded."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                named = [one.name for one in names]
            case ast.ImportFrom(module=str(module), names=names):
                named = [f"{module}.{one.name}" for one in names]
            case ast.Constant(value=str(text)) if re.fullmatch(r"[\w.]+", text):
                named = [text]
            case _:
                continue
        yield from filter(OURS.match, named)


def test_tests_of_the_core_use_no_feature() -> None:
    assert {"cli", "data", "jobs", "master", "runtime", "model"} <= {room.name for room in CORE}
    new = {file for room in CORE for file in room.rglob("*.py")}
    new |= {*TESTS.glob("*.py"), *TESTS.glob("unit/*.py")} - {TESTS / "quick.py"}
    seen, found = set[Path](), {}
    while new:
        seen |= new
        trees = {file: ast.parse(file.read_text()) for file in new}
        found |= {file: named for file, one in trees.items() if (named := [*features_in(one)])}
        new = {used for one in trees.values() for used in of_tests(one)} - seen
    assert found == {}
    assert TESTS / "integration" / "running.py" in seen


def of_tests(tree: ast.AST) -> Iterator[Path]:
    """Files of tests that a file imports."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("tests."):
                if (file := TESTS.parent / f"{module.replace('.', '/')}.py").exists():
                    yield file
            case _:
                continue


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from paceline.features.report import page", ["paceline.features.report.page"]),
        ("from paceline import features", []),
        ("from paceline.base import features", []),
        ("import paceline.features.report", ["paceline.features.report"]),
        ("patch('paceline.features.report.page')", ["paceline.features.report.page"]),
        ("install(site, 'paceline.features')", []),
        ("from tests.unit.sizes.sizing import seen", ["tests.unit.sizes.sizing.seen"]),
        ("from tests.unit.data.test_torch_loader import trained", []),
    ],
)
def test_a_feature_in_a_test_of_the_core_is_found(line: str, found: list[str]) -> None:
    assert [*features_in(ast.parse(line))] == found


def test_quick_checks_of_a_feature_run_its_tests_under_their_other_name() -> None:
    for room, feature in OF_FEATURES.items():
        assert MORE[f"src/paceline/features/{feature}"] == f"tests/unit/{room}"
    for file, room in MORE.items():
        assert (TESTS.parent / file).exists() and (TESTS.parent / room).exists()
