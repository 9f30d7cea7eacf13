"""``paceline run --help`` is for a first week; ``--help-all`` has the rest, by feature."""

import re
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.jobs.flags import OF_SPEC
from paceline.terminal.run_help import ALL
from paceline.terminal.torchrun import TORCHRUN_FLAGS

FLAGS = [flag for flag in (*OF_SPEC.values(), *TORCHRUN_FLAGS) if flag.help]


def told(word: str) -> tuple[set[str], str]:
    """The flags that a help lists, and its text."""
    done = CliRunner().invoke(app, ["run", word], env={"COLUMNS": "120", "NO_COLOR": "1"})
    assert done.exit_code == 0, done.output
    return set(re.findall(r"^[│ ]+(--[a-z-]+)", done.output, re.MULTILINE)), done.output


def test_help_lists_what_a_first_week_needs() -> None:
    flags, text = told("--help")
    first = {flag.names[0] for flag in FLAGS if flag.is_first}
    assert flags == first | {"--set", "--detach", "--resume", "--dry-run", "--help-all", "--help"}
    assert "--help-all lists all flags" in text.replace("`paceline run ", "").replace("`", "")
    assert len(flags) < 20
    assert "Exit codes" not in text


def test_help_all_lists_all_flags() -> None:
    short, _ = told("--help")
    flags, text = told("--help-all")
    assert flags == short | {flag.names[0] for flag in FLAGS}
    assert "Exit codes" in text


@pytest.mark.parametrize("all_flags", [False, True])
def test_a_help_hides_no_flag_from_a_shell_that_completes_it(
    all_flags: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run: Any = get_command(app).commands["run"]  # type: ignore[attr-defined]
    epilog = run.epilog
    context = run.make_context("run", ["train.py"])
    context.meta[ALL] = all_flags
    context.get_help()
    assert "--workers" in capsys.readouterr().out
    hidden = {name for param in run.params if getattr(param, "hidden", 0) for name in param.opts}
    assert not hidden & {flag.names[0] for flag in FLAGS}
    assert run.epilog == epilog
