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


HELPS = {"--help", "--help-all"}


def told(word: str) -> tuple[dict[str, str], str]:
    """The flags that a help lists, with what it says of each, and its text."""
    done = CliRunner().invoke(app, ["run", word], env={"COLUMNS": "120", "NO_COLOR": "1"})
    assert done.exit_code == 0, done.output
    lines = " ".join(line.strip("│ ") for line in done.output.splitlines())
    parts = re.split(r"(?:^| )(--[a-z-]+)(?=  )", lines)
    return {flag: " ".join(text.split()) for flag, text in zip(parts[1::2], parts[2::2])}, lines


def test_help_lists_ten_flags_each_with_its_default() -> None:
    flags, text = told("--help")
    first = {flag.names[0] for flag in FLAGS if flag.is_first}
    assert flags.keys() - HELPS == first | {"--set", "--detach", "--resume", "--dry-run"}
    assert len(flags.keys() - HELPS) == 10
    assert [flag for flag in flags.keys() - HELPS if " Default: " not in flags[flag]] == []
    assert "`paceline run --help-all` lists all flags" in text
    assert "Exit codes" not in text


@pytest.mark.parametrize(
    ("flag", "default"),
    [
        ("--workers", "1"),
        ("--mode", "bsp"),
        ("--backend", "local"),
        ("--seed", "0"),
        ("--device", "none"),
        ("--solution", "auto"),
        ("--name", "the script's"),
    ],
)
def test_a_default_is_that_of_the_spec(flag: str, default: str) -> None:
    (found,) = (one for one in FLAGS if one.names[0] == flag)
    assert found.told.endswith(f" Default: {default}.")


def test_help_all_lists_all_flags() -> None:
    short, _ = told("--help")
    flags, text = told("--help-all")
    assert flags.keys() == short.keys() | {"--web"} | {flag.names[0] for flag in FLAGS}
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
