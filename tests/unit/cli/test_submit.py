"""What `paceline submit` hands to Ray, and what it refuses before that."""

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

    monkeypatch.setattr("paceline.cli.submit.send", send)
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
    command = "paceline run --backend ray train.py --workers 4 --set seed=1 -- --lr '0.1 2'"
    assert sent == [("http://head:8265", command, tmp_path / "code", "/shared")]
    assert "ray job logs --address http://head:8265 -f raysubmit_1" in done.stdout
    assert "note" not in done.output


def test_a_job_goes_on_where_jobs_are_kept(sent: Sent) -> None:
    done = CliRunner().invoke(app, ["submit", *ADDRESS, "--resume", "train-1"])
    assert done.exit_code == 0, done.output
    assert sent == [("http://head:8265", "paceline run --resume train-1", None, None)]
    assert "is lost with it; with --home FOLDER" in done.output


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
