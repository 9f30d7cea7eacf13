"""What `paceline submit` hands to Ray, and what it refuses before that."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app

ADDRESS = ("--address", "http://head:8265")
Sent = list[tuple[Any, ...]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sent:
    found: Sent = []

    def send(*arguments: Any) -> str:
        found.append(arguments)
        return "raysubmit_1"

    monkeypatch.setattr("paceline.backends.ray.verbs.send", send)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    return found


def test_the_words_of_run_are_passed_on_and_the_scripts_folder_travels(
    sent: Sent, tmp_path: Path
) -> None:
    words = ["code/train.py", "--workers", "4", "--set", "seed=1", "--", "--lr", "0.1 2"]
    done = CliRunner().invoke(app, ["submit", *ADDRESS, "--home", "/shared", *words])
    assert done.exit_code == 0, done.output
    command = "PACELINE_KEPT=1 paceline run --backend ray train.py --workers 4 --set seed=1 -- --lr '0.1 2'"
    assert sent == [("http://head:8265", command, tmp_path / "code", "/shared")]
    assert "ray job logs --address http://head:8265 -f raysubmit_1" in done.stdout
    assert "note" not in done.output


def test_a_job_goes_on_where_jobs_are_kept(sent: Sent) -> None:
    done = CliRunner().invoke(app, ["submit", *ADDRESS, "--resume", "train-1"])
    assert done.exit_code == 0, done.output
    assert sent == [
        ("http://head:8265", "PACELINE_KEPT=1 paceline run --resume train-1", None, None)
    ]
    assert "is lost with it; with --home FOLDER" in done.output


@pytest.mark.parametrize(
    "before",
    [
        ("--name", "other.py"),
        ("--set=env.SPEC=other.yaml", "-d"),
        ("--set", "name=other.py", "--deterministic"),
        ("--batch_size", "4", "--nproc-per-node=2"),
    ],
)
def test_the_script_is_the_first_word_that_is_no_options_value(
    sent: Sent, tmp_path: Path, before: tuple[str, ...]
) -> None:
    script = ["code/train.py", "--resume"] if "--nproc-per-node=2" in before else ["code/train.py"]
    done = CliRunner().invoke(app, ["submit", *ADDRESS, *before, *script])
    assert done.exit_code == 0, done.output
    ((_, command, folder, _),) = sent
    words = [*before, "train.py", *script[1:]]
    assert shlex.split(command) == [
        "PACELINE_KEPT=1",
        "paceline",
        "run",
        "--backend",
        "ray",
        *words,
    ]
    assert folder == tmp_path / "code"


@pytest.mark.parametrize("flag", ["-m", "--module"])
def test_with_a_module_the_folder_of_the_command_travels(
    sent: Sent, tmp_path: Path, flag: str
) -> None:
    words = [flag, "code.train", "--workers", "4", "--", "--lr", "0.1"]
    done = CliRunner().invoke(app, ["submit", *ADDRESS, *words])
    assert done.exit_code == 0, done.output
    command = f"PACELINE_KEPT=1 {shlex.join(['paceline', 'run', '--backend', 'ray', *words])}"
    assert sent[0][1:3] == (command, tmp_path)


def test_a_resume_of_the_scripts_own_is_not_ours(sent: Sent) -> None:
    done = CliRunner().invoke(app, ["submit", *ADDRESS, "code/train.py", "--", "--resume"])
    assert done.exit_code == 0, done.output
    assert sent[0][1] == "PACELINE_KEPT=1 paceline run --backend ray train.py -- --resume"


@pytest.mark.parametrize("setting", [["--set", "script="], ["--set=script="]])
def test_a_job_at_a_url_goes_on_with_a_script_that_is_sent(
    sent: Sent, tmp_path: Path, setting: list[str]
) -> None:
    *before, last = setting
    words = ["--resume", "s3://jobs/train", *before, f"{last}code/train.py"]
    done = CliRunner().invoke(app, ["submit", *ADDRESS, *words])
    assert done.exit_code == 0, done.output
    assert shlex.split(sent[0][1])[-len(setting) :] == [*before, f"{last}train.py"]
    assert sent[0][2] == tmp_path / "code"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "got no script"),
        (["--workers", "4"], "got no script"),
        (["other.py"], "got other.py, which is no file"),
    ],
)
def test_what_is_no_job_is_refused(sent: Sent, words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["submit", *ADDRESS, *words])
    assert done.exit_code == 2
    assert message in done.output
    assert not sent
