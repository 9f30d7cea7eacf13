"""Which words after `paceline run` are paceline's, and which the script's: never silently."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from paceline.base.errors import ConfigError
from paceline.cli.main import app
from paceline.terminal.arguments import arrange, defined_in
from paceline.terminal.command_words import Options

OPTIONS = Options(
    {
        "--workers": True,
        "--epochs": True,
        "--name": True,
        "--detach": False,
        "-d": False,
        "-t": True,
    }
    | {"--nproc-per-node": True, "--tee": True},
    {"--nproc-per-node", "--tee", "-t"},
)


def divide(line: str, *defined: str) -> tuple[str, str]:
    """The words as the parser gets them, and what is printed; `defined`: flags of the script."""
    words, note = arrange(line.split(), OPTIONS, lambda _, names: names & {*defined})
    return " ".join(words), note


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--workers 2",
        "train.py --workers 2",
        "--epochs 7 train.py",
        "-d train.py data.csv --workers=2 -- --lr 0.1",
        "-- train.py --lr 0.1",
        "job.yaml -d --workers",
    ],
)
def test_what_nobody_could_mistake_stays_as_it_is_without_a_word(line: str) -> None:
    assert divide(line, "--epochs") == (line, "")


def test_a_flag_that_paceline_takes_and_the_script_has_is_named_with_the_way_to_pass_it_on() -> (
    None
):
    line = "--workers 2 train.py --epochs 7 -d --name=x in.csv -- --lr 1"
    words, note = divide(line, "--epochs", "--name", "--lr")
    assert words == line
    assert note.startswith("paceline: --epochs 7 --name=x: taken by paceline, though train.py")
    assert note.endswith(
        ": paceline run --workers 2 train.py -d -- --epochs 7 --name=x in.csv --lr 1"
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("train.py --lr 0.1 --workers 2 --x", "run train.py --workers 2 -- --lr 0.1 --x"),
        ("train.py --lr=0.1 -- --y", "run train.py -- --lr=0.1 --y"),
        ("train.py -q", "run train.py -- -q"),
        ("train.py --worker 2", "; write paceline run train.py --workers 2, or if --worker is"),
        ("--lr 0.1 train.py", "run train.py -- --lr"),
        ("train.py --nproc_per_node 2 --lr 1", "run train.py --nproc_per_node 2 -- --lr 1"),
    ],
)
def test_a_flag_that_paceline_does_not_have_is_refused_with_the_whole_command(
    line: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        divide(line)


@pytest.mark.parametrize("flag", ["--nproc-per-node 2", "--nproc_per_node=2", "-t3"])
def test_after_the_script_of_a_torchrun_command_everything_is_the_scripts(flag: str) -> None:
    words, note = divide(f"{flag} -d train.py --epochs 7 data --workers", "--epochs", "--workers")
    assert words == f"{flag} -d train.py -- --epochs 7 data --workers"
    assert note == ""


def test_a_flag_of_paceline_that_goes_to_a_torchrun_script_is_named() -> None:
    words, note = divide("--tee 3 train.py --detach --epochs 7", "--epochs")
    assert words == "--tee 3 train.py -- --detach --epochs 7"
    assert note.startswith("paceline: --detach: passed to train.py")


def test_with_dashes_a_torchrun_command_is_as_any_other() -> None:
    line = "--tee 3 train.py --detach -- --lr 1"
    assert divide(line) == (line, "")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('for f in ("--epochs", "--batch-size"): p.add_argument(f)', {"--epochs", "--batch-size"}),
        ('p.add_argument("--batch_size")', {"--batch-size"}),
        ('p.add_argument("--epochs-per-cut"); epochs = name = 1', set()),
        ("import tyro\ndef main(epochs: int, batch_size: int): ...", {"--epochs", "--batch-size"}),
        ('from absl import flags\nflags.DEFINE_integer("epochs", 1, "")', {"--epochs"}),
        ('p.add_argument("-d")', {"-d"}),
        ('"""A click model."""\nname = "click"', set()),
        ("import options", {"--name"}),
        ("from options import parse", {"--name"}),
        ("\xff", set()),
    ],
)
def test_flags_of_a_script_are_found_in_its_source_and_the_modules_beside_it(
    source: str, found: set[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(source, encoding="latin-1")
    (tmp_path / "options.py").write_text('import train\np.add_argument("--name")')
    assert defined_in(str(script), {"--epochs", "--batch-size", "--name", "-d"}) == found


@pytest.mark.parametrize(
    "source",
    [
        "from .options import parse",
        "from . import options",
        "from pkg import (parse, options)",
        "import pkg.options as o",
        "from pkg.options import parse",
        "from ..pkg.options import parse",
    ],
)
def test_flags_of_a_module_are_found_in_its_package(source: str) -> None:
    Path("pkg").mkdir()
    Path("pkg", "__init__.py").touch()
    Path("pkg", "train.py").write_text(source)
    Path("pkg", "options.py").write_text('from . import train\np.add_argument("--name")')
    assert defined_in("pkg.train", {"--epochs", "--name"}) == {"--name"}
    Path("pkg", "__main__.py").write_text("from .train import main")
    assert defined_in("pkg", {"--epochs", "--name"}) == {"--name"}


def test_what_is_no_script_defines_nothing() -> None:
    assert defined_in("nowhere.py", {"--epochs"}) == set()
    assert defined_in("job-1", {"--epochs"}) == set()


# ------------------------------------------------------------------------- the command itself


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text('p.add_argument("--epochs"); p.add_argument("--name")')


def dry_run(*args: str) -> Result:
    return CliRunner().invoke(app, ["run", "--dry-run", *args])


def test_the_command_takes_its_flags_and_says_so_on_stderr() -> None:
    done = dry_run("train.py", "--epochs", "7", "--name", "x")
    assert "epochs = 7  (--epochs)" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.endswith(": paceline run --dry-run train.py -- --epochs 7 --name x")
    assert dry_run("--epochs", "7", "train.py").stderr == ""


def test_a_module_runs_with_any_strategy_and_its_flags_follow_dashes() -> None:
    done = dry_run("-m", "train", "--strategy", "allreduce", "--epochs", "7", "--", "--lr", "1")
    assert "run_as = module  (--module)" in done.stdout
    assert "name = train  " in done.stdout
    assert "args = [--lr, 1]" in done.stdout
    assert done.stderr.endswith(
        ": paceline run --dry-run -m train --strategy allreduce -- --epochs 7 --lr 1\n"
    )
    done = dry_run("-m", "train", "--lr", "1")
    assert done.exit_code == 2
    assert "write paceline run --dry-run -m train -- --lr 1" in done.stderr
    assert "strategy = allreduce" in dry_run("-m", "train").stdout
    assert "strategy = script" in dry_run("--nproc-per-node", "2", "-m", "train").stdout


def test_a_torchrun_command_needs_no_dashes() -> None:
    done = dry_run("--nproc_per_node=2", "train.py", "--epochs", "7", "--lr", "1")
    assert done.stderr == ""
    assert "args = [--epochs, 7, --lr, 1]" in done.stdout
    assert "epochs = none" in done.stdout


def test_a_script_by_itself_gets_its_flag_by_the_remedy_not_by_losing_it() -> None:
    done = dry_run("--strategy", "script", "train.py", "--batch-size", "7")
    assert done.exit_code == 2
    assert "remove it, or write it after -- if --batch-size is the script's own" in done.stderr


def test_resume_of_a_script_is_told_from_a_flag_of_the_scripts() -> None:
    done = CliRunner().invoke(app, ["run", "train.py", "--resume", "cut.pt"])
    assert done.exit_code == 2
    assert "paceline run train.py -- --resume" in done.stderr
