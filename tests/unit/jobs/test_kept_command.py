"""The process that Ray runs for a submitted job outlives the command that it keeps."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.base.jobdir import JobDir
from paceline.cli import run as running
from paceline.cli.main import app
from paceline.jobs import kept_command

FAKE = """
import os, signal, sys, time
said = open(os.environ["SAID"], "a")
print(*sys.argv[1:], "kept" if "PACELINE_KEPT" in os.environ else "plain", file=said, flush=True)
if sys.argv[1] == "run":
    if "early" not in sys.argv:
        open(os.environ["PACELINE_JOB_NOTE"], "w").write("/jobs/one")
        os.unlink(os.environ["PACELINE_JOB_NOTE"])
    if "wait" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1.0)
    if "code" in sys.argv:
        sys.exit(3)
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "attach":
    mark = os.environ["SAID"] + ".again"
    if not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(1)
"""


def kept(folder: Path, *words: str, term: bool = False) -> tuple[int, list[str]]:
    """Exit code of the keeper with a command that does as told, and what was run."""
    package = folder / "fake" / "paceline"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(FAKE)
    runner = folder / "keeper.py"
    runner.write_text(Path(kept_command.__file__).read_text())
    said = folder / "said"
    env = {
        **os.environ,
        "SAID": str(said),
        "PACELINE_KEPT": "1",
        "PYTHONPATH": str(folder / "fake"),
    }
    with subprocess.Popen(
        [sys.executable, "-S", str(runner), *words], env=env, stderr=subprocess.DEVNULL
    ) as one:
        if term:
            while not said.exists() or not said.read_text():
                time.sleep(0.01)
            one.send_signal(signal.SIGTERM)
        code = one.wait(20)
    return code, said.read_text().splitlines()


def test_a_killed_command_is_followed_by_others_until_the_job_ends(tmp_path: Path) -> None:
    again = "attach /jobs/one --stops plain"
    assert kept(tmp_path, "run", "train.py") == (1, ["run train.py plain", again, again])


def test_a_command_that_ends_by_itself_is_not_followed(tmp_path: Path) -> None:
    assert kept(tmp_path, "run", "code") == (3, ["run code plain"])


def test_a_command_that_was_killed_before_there_was_a_job_is_not_followed(tmp_path: Path) -> None:
    assert kept(tmp_path, "run", "early") == (137, ["run early plain"])


def test_who_was_told_to_stop_and_is_killed_is_followed_by_a_stop(tmp_path: Path) -> None:
    code, said = kept(tmp_path, "run", "wait", term=True)
    assert (code, said) == (0, ["run wait plain", "stop /jobs/one plain"])


def test_the_keeper_imports_the_standard_library_alone() -> None:
    code = f"import sys; sys.argv=['k']; exec(open({kept_command.__file__!r}).read().split('if __name__')[0])"
    done = subprocess.run([sys.executable, "-IS", "-c", code], check=False)
    assert done.returncode == 0


def test_a_command_names_its_job_to_its_keeper_and_not_to_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import paceline as pl\n")
    seen = list[str]()

    def start(*_: object) -> JobDir:
        seen.extend(name for name in os.environ if name == kept_command.NOTE)
        return JobDir(tmp_path / "job")

    monkeypatch.setattr(running, "start", start)
    note = tmp_path / "note"
    words = ["run", str(tmp_path / "train.py"), "--detach"]
    done = CliRunner().invoke(app, words, env={kept_command.NOTE: str(note)})
    assert done.exit_code == 0, done.output
    assert note.read_text() == str(tmp_path / "job")
    assert not seen
