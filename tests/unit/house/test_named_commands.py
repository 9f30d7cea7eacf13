"""A command that a text of paceline names in backticks is one that the command line takes."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import paceline
from paceline.base.features import installed
from paceline.cli.hints import hints
from paceline.cli.main import app

SOURCE = Path(paceline.__file__).parent
NAMED = re.compile(r"`(paceline (?:[^`\n]|\n)+)`")
ROOT: Any = get_command(app)


def texts(tree: ast.AST) -> Iterator[str]:
    """Each text of a module; what is put in when it is said stands as X."""
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=parts):
                yield "".join(
                    str(getattr(part, "value", "X")) if isinstance(part, ast.Constant) else "X"
                    for part in parts
                )
            case ast.Constant(value=str(text)):
                yield text
            case _:
                continue


@cache
def named() -> list[tuple[str, str]]:
    """Where a command is named, and the command."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for text in texts(ast.parse(path.read_text())):
            for command in NAMED.findall(text):
                found.append((path.relative_to(SOURCE).as_posix(), " ".join(command.split())))
    return sorted(set(found))


def fault(command: str) -> str:
    """What of a command the command line does not know; empty: nothing."""
    words = shlex.split(command)[1:]
    at: Any = ROOT
    while words and hasattr(at, "commands"):
        word = words.pop(0)
        if word.startswith("-"):
            known = {name for param in at.params for name in param.opts} | {"--help"}
            return "" if word in known else word
        if word in ("X", "...", "…", "COMMAND"):
            return ""
        if word not in at.commands:
            return word
        at = at.commands[word]
    if at.name == "submit":
        return ""  # passes on what `run` takes
    known = {name for param in at.params for name in param.opts} | {"--help"}
    own = words[: words.index("--")] if "--" in words else words
    own = own[: next((at for at, word in enumerate(own) if word in ("...", "…")), len(own))]
    unknown = [
        word
        for word in own
        if word.startswith("-") and word.partition("=")[0].replace("_", "-") not in known
    ]
    return unknown[0] if unknown else ""


def test_texts_name_commands_and_flags_that_there_are() -> None:
    assert len(named()) > 50
    faults = [
        f"{place}: `{command}`: {what}" for place, command in named() if (what := fault(command))
    ]
    assert faults == []


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("paceline resume JOB", "resume"),
        ("paceline run X --worker 2", "--worker"),
        ("paceline run X -- --worker 2", ""),
        ("paceline checkpoint list JOB", "list"),
        ("paceline --versoin", "--versoin"),
    ],
)
def test_a_command_that_there_is_not_is_found(command: str, what: str) -> None:
    assert fault(command) == what


def test_a_feature_is_switched_on_by_flags_that_there_are() -> None:
    run = ROOT.commands["run"]
    known = {name for param in run.params for name in param.opts}
    named = {
        (one.name, flag)
        for one in installed()
        if one.feature is not None
        for flag in re.findall(r"--[a-z-]+", one.feature.switch)
    }
    assert named
    assert {(name, flag) for name, flag in named if flag not in known} == set()


def test_no_hint_hides_a_command() -> None:
    assert hints().keys().isdisjoint(ROOT.commands)
