"""Features: installed ones are listed, bring their commands, and one that is broken is left out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.running import install

THEIRS = """
from paceline.base.features import Feature

FEATURE = Feature(name="greeting", about="greets people", verbs="{verbs}")

def add_to(app):
    @app.command()
    def hello(name: str) -> None:
        print(f"hello {{name}}")
"""


def paceline(site: Path, *args: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-m", "paceline", *args],
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def declared(site: Path, code: str, value: str = "theirs:FEATURE") -> Path:
    return install(site, "theirs", code, "paceline.features", f"greeting = {value}")


def test_a_feature_of_another_package_is_listed_and_has_its_command(tmp_path: Path) -> None:
    site = declared(tmp_path, THEIRS.format(verbs="theirs:add_to"))
    assert paceline(site, "hello", "world").stdout == "hello world\n"
    listed = paceline(site, "features").stdout.splitlines()
    (line,) = [one for one in listed if one.startswith("greeting")]
    assert " ".join(line.split()) == "greeting theirs greets people its commands commands"


@pytest.mark.parametrize(
    ("code", "value", "fault"),
    [
        ("1 / 0", "theirs:FEATURE", "division by zero"),
        ("FEATURE = 3", "theirs:FEATURE", "theirs:FEATURE is 3, and no paceline.base.features"),
        ("", "theirs:FEATURE", "has no attribute 'FEATURE'"),
        (THEIRS.format(verbs="theirs:FEATURE"), "theirs:FEATURE", "not callable"),
        (THEIRS.format(verbs="theirs:nothing"), "theirs:FEATURE", "has no attribute 'nothing'"),
    ],
)
def test_a_feature_that_cannot_be_loaded_is_named_and_costs_no_other(
    code: str, value: str, fault: str, tmp_path: Path
) -> None:
    done = paceline(declared(tmp_path, code, value), "check", "--help")
    assert done.returncode == 0, "rehearse has its commands all the same"
    said = done.stderr.splitlines()
    assert len(said) == 1
    assert said[0].startswith("paceline: feature greeting is left out, since it fails: ")
    assert fault in said[0]
