"""``paceline --help``: verbs in panels, and each of them in one line of 80 columns."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from paceline.cli.main import _Group, app
from paceline.terminal.groups import EXPERTS, LOOK, PANELS

NARROW = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}


def groups(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command that has commands of its own."""
    if children := getattr(command, "commands", None):
        yield words
        for name, child in children.items():
            yield from groups(child, (*words, name))


def panels(text: str) -> dict[str, list[str]]:
    """The lines of each panel of a help, by its title."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in text.splitlines():
        if begun := re.match(r"╭─ (.+?) ─", line):
            title = begun[1]
        elif title and line.startswith("│"):
            found.setdefault(title, []).append(line.strip("│ "))
    return found


def help_of(root: typer.Typer, *words: str) -> dict[str, list[str]]:
    done = CliRunner().invoke(root, [*words, "--help"], env=NARROW)
    assert done.exit_code == 0, done.output
    return panels(done.output)


@pytest.mark.parametrize("words", [*groups(get_command(app))], ids=" ".join)
def test_a_command_takes_one_line_of_80_columns(words: tuple[str, ...]) -> None:
    found = help_of(app, *words)
    found.pop("Options")
    command: Any = get_command(app)
    for word in words:
        command = command.commands[word]
    listed = [line.split()[0] for lines in found.values() for line in lines]
    assert sorted(listed) == sorted(command.commands), "each has one line"


def test_the_verbs_stand_in_their_panels() -> None:
    found = help_of(app)
    assert list(found) == ["Options", *PANELS]
    first = {title: lines[0].split()[0] for title, lines in found.items()}
    assert first["Every day"] == "run"
    assert first["Look"] == "ps"
    assert first["Change"] == "scale"


def test_a_command_that_names_no_panel_is_for_experts() -> None:
    root = typer.Typer(cls=_Group)
    root.command("theirs")(lambda: None)
    root.command("looks", rich_help_panel=LOOK)(lambda: None)
    root.command("elsewhere", rich_help_panel="Of a company")(lambda: None)
    found = help_of(root)
    assert list(found)[1:] == [LOOK, EXPERTS, "Of a company"]
    assert found[EXPERTS] == ["theirs"]


def test_a_short_command_needs_no_check_of_values_by_pydantic() -> None:
    """Importing it would take a fifth of the time of such a command."""
    code = (
        "import sys; from typer.testing import CliRunner; from paceline.cli.main import app; "
        "assert CliRunner().invoke(app, ['status', 'nowhere']).exit_code == 2; "
        "assert 'pydantic' not in sys.modules; "
        "CliRunner().invoke(app, ['logs', 'nowhere', '--tail', '3']); "
        "assert CliRunner().invoke(app, ['logs', '--tail', 'x']).exit_code == 2"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
