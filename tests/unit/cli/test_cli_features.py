"""Features: installed ones are listed, bring their commands, and one that is broken is left out."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import run as running
from paceline.wire.spec import JobSpec
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
    at = next(at for at, one in enumerate(listed) if one.startswith("greeting"))
    assert [" ".join(line.split()) for line in listed[at : at + 2]] == [
        "greeting greets people",
        "on with its commands; has commands; package theirs",
    ]


def test_a_name_that_is_taken_stays_who_had_it(tmp_path: Path) -> None:
    verb = THEIRS.replace("hello", "status")
    done = paceline(declared(tmp_path, verb.format(verbs="theirs:add_to")), "status", "--help")
    assert "--json" in done.stdout
    assert done.stderr == (
        "paceline: feature greeting is left out: paceline has a command status already\n"
    )
    site = declared(tmp_path / "more", THEIRS.format(verbs="theirs:add_to"))
    install(site, "first", THEIRS, "paceline.features", "greeting = first:FEATURE")
    done = paceline(site, "features")
    assert "package theirs" not in done.stdout
    assert done.stderr.startswith(
        "paceline: feature greeting of theirs is left out: first has a feature of this name\n"
    )


def test_a_spec_that_a_feature_spoils_is_as_it_was(tmp_path: Path) -> None:
    code = """
from paceline.base.features import Feature
FEATURE = Feature("greeting", "", checked="theirs:checked", completed="theirs:completed")
def checked(draft):
    draft.complain("solution", "auto", "a greeting", "say hello")
def completed(spec):
    return 3
"""
    (tmp_path / "train.py").write_text("")
    dry = ("run", str(tmp_path / "train.py"), "--dry-run")
    done = paceline(declared(tmp_path, code), *dry)
    assert done.returncode == 2
    assert "solution: got auto, expected a greeting; say hello" in done.stderr
    done = paceline(declared(tmp_path / "again", code.replace("draft.", "0 and draft.")), *dry)
    assert done.returncode == 0
    assert "paceline: feature greeting is left out: it completes a spec to 3" in done.stderr


def test_a_feature_that_prepares_nonsense_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts: list[tuple[str, Callable[[JobSpec], Any]]] = [
        ("broken", lambda _: 3),
        ("spoiling", lambda _: (3, ())),
        ("telling", lambda spec: (spec, ["a note"])),
    ]
    monkeypatch.setattr(running, "parts_of", lambda *_: parts)
    monkeypatch.setattr(running, "fitted", lambda spec: spec)
    spec = JobSpec(script="train.py")
    found, notes = running.prepared(spec)
    assert (found, notes[-1]) == (spec, "a note")
    said = capsys.readouterr().err
    assert "paceline: feature broken is left out: cannot unpack" in said
    assert "paceline: feature spoiling is left out: it prepares a spec to 3" in said


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
    site = declared(tmp_path, code, value)
    polite = THEIRS.format(verbs="polite:add_to").replace("hello", "welcome")
    install(site, "polite", polite, "paceline.features", "polite = polite:FEATURE")
    done = paceline(site, "welcome", "you")
    assert done.stdout == "welcome you\n", "the other feature has its command all the same"
    said = done.stderr.splitlines()
    assert len(said) == 1
    assert said[0].startswith("paceline: feature greeting is left out: ")
    assert fault in said[0]
