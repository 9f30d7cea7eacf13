"""`paceline rm` and `prune`: what is over goes, what lives or lies elsewhere stays."""

import errno
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from paceline.base.jobdir import JobDir
from paceline.base.processes import JOB_DIR, try_lock
from paceline.cli import removal
from paceline.cli.main import app
from paceline.jobs import leftovers
from paceline.jobs.outcome import Outcome, write_outcome
from paceline.terminal.options import console
from paceline.wire import spec as specs
from paceline.wire.spec import CheckpointSpec, JobSpec

DAY_S = 86_400


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    monkeypatch.setattr("paceline.cli.removal.find_job_processes", lambda _: [])
    monkeypatch.setattr("paceline.cli.main.clear_leftovers", list)
    return tmp_path


def paceline(*args: str) -> Result:
    return CliRunner().invoke(app, args)


def ended_job(name: str, exit_code: int | None = 0, days: float = 0.0, cuts: str = "") -> JobDir:
    """A job that is over; `exit_code` None: its processes died."""
    job = JobDir.create(name)
    job.run_dir.rmdir()
    checkpoint = CheckpointSpec(dir=cuts) if cuts else CheckpointSpec()
    specs.save(JobSpec(script="/home/me/train.py", checkpoint=checkpoint), job.spec)
    job.events.write_text("")
    (job.cuts / "0001").mkdir()
    (job.cuts / "0001" / "model").write_bytes(b"x" * 10_000)
    if exit_code is not None:
        state = "failed" if exit_code else "finished"
        write_outcome(
            msgspec.convert({"state": state, "exit_code": exit_code}, Outcome), job.outcome
        )
    for path in (job.spec, job.events, job.outcome):
        if path.exists():
            then_s = path.stat().st_mtime - days * DAY_S
            os.utime(path, (then_s, then_s))
    return job


def left(home: Path) -> set[str]:
    return {path.name.partition("-")[0] for path in (home / "jobs").iterdir()}


def test_jobs_that_are_over_are_removed_with_their_run_directories(home: Path) -> None:
    first, second = ended_job("one"), ended_job("two", None)
    ended_job("three")
    first.make_run_dir()  # of a machine that was switched off
    result = paceline("rm", "one", second.job_id, "one")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"removed {first.job_id}: ")
    assert lines[-1].startswith("freed ")
    assert lines[-1].endswith(" of 2 jobs")
    assert left(home) == {"three"}
    assert not first.run_dir.exists()


def test_a_page_that_is_drawn_meanwhile_goes_too(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ended_job("one")
    job.report.write_text("without drawings")
    remove_one = removal._remove_one

    def draw_then_remove(path: Path) -> None:
        remove_one(path)
        if path == job.report and path not in drawn:
            drawn.append(path)
            path.write_text("with drawings")

    drawn: list[Path] = []
    monkeypatch.setattr(removal, "_remove_one", draw_then_remove)
    assert paceline("rm", "one").exit_code == 0
    assert drawn
    assert left(home) == set()


def test_a_job_that_lives_is_not_removed_nor_is_any_other_then(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_job("one")
    living = ended_job("two", None)
    lock = try_lock(living.supervisor_lock)
    assert lock is not None
    result = paceline("rm", "one", "two")
    assert paceline("prune", "--older-than", "0s").exit_code == 0
    os.close(lock)
    assert result.exit_code == 2
    assert f"`paceline stop {living.job_id}`" in result.stderr
    assert left(home) == {"two"}
    # Nobody supervises it, but a worker of it is left.
    monkeypatch.undo()
    monkeypatch.setenv("PACELINE_HOME", str(home))
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {JOB_DIR: str(living.path)},
    ) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        assert paceline("rm", "two").exit_code == 2
        worker.communicate(b"\n")
    assert paceline("rm", "two").exit_code == 0
    assert left(home) == set()


def test_a_cleaner_that_any_command_has_started_is_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_job("one")
    looks: list[Path] = []

    def lock(path: Path) -> int | None:
        looks.append(path)
        return try_lock(path) if len(looks) > 1 else None  # the cleaner has it at the first look

    monkeypatch.setattr("paceline.cli.removal.try_lock", lock)
    assert paceline("rm", "one").exit_code == 0
    assert left(home) == set()


def test_a_job_that_cannot_be_removed_keeps_no_other_from_going(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = ended_job("one")
    ended_job("two")
    real = shutil.rmtree

    def refuse(path: Path) -> None:
        if path == stuck.cuts:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        real(path)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    result = paceline("prune", "--finished")
    assert result.exit_code == 2
    assert left(home) == {"one"}
    assert result.stdout.splitlines()[-1].endswith(" of 1 job")
    assert f"job {stuck.job_id} is removed in part only (Permission denied" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_run_directory_that_another_user_has_made_stays_and_hinders_nobody(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.base.jobdir.SHARED_MEMORY", home)
    job = ended_job("one")
    job.make_run_dir()
    (job.run_dir / "file").touch()
    os.chown(job.run_dir, 65_534, 65_534)
    assert leftovers.clear_leftovers() == []
    assert paceline("prune", "--finished").exit_code == 0
    assert not job.path.exists()
    assert (job.run_dir / "file").exists()


@pytest.mark.parametrize("cuts", ["s3://bucket/prefix", "/data/cuts"])
def test_cuts_elsewhere_stay_and_that_is_said(cuts: str) -> None:
    ended_job("one", cuts=cuts)
    assert f"; cuts in {cuts} stay" in paceline("rm", "one").stdout


def test_files_that_links_lead_to_stay(home: Path) -> None:
    job = ended_job("one")
    outside = home / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    (job.path / "link").symlink_to(outside)
    (home / "jobs" / "alias").symlink_to(job.path)
    refused = paceline("rm", "alias")
    assert refused.exit_code == 2
    assert "is a link" in refused.stderr
    assert paceline("rm", "one").exit_code == 0
    assert (outside / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("args", "stay"),
    [
        (("--older-than", "7d"), {"new", "newdead"}),
        (("--finished",), {"failed", "dead", "newdead"}),
        (("--older-than", "7d", "--finished"), {"new", "failed", "dead", "newdead"}),
        (("--older-than", "30d"), {"new", "old", "failed", "dead", "newdead"}),
        (("--finished", "--dry-run"), {"new", "old", "failed", "dead", "newdead"}),
    ],
)
def test_jobs_are_pruned_by_age_and_end(args: tuple[str, ...], stay: set[str], home: Path) -> None:
    ended_job("new")
    ended_job("old", days=8)
    ended_job("failed", 1, days=8)
    ended_job("dead", None, days=8)
    ended_job("newdead", None)
    result = paceline("prune", *args)
    assert result.exit_code == 0
    assert left(home) == stay
    gone = 5 - len(stay)
    if "--dry-run" in args:
        assert result.stdout.splitlines()[-1].startswith("would free ")
    else:
        assert len(result.stdout.splitlines()) == 1 + gone


def test_what_is_to_go_is_named_with_its_end_and_age() -> None:
    job = ended_job("failed", 1, days=8)
    (line, _) = paceline("prune", "--older-than", "7d").stdout.splitlines()
    assert line.startswith(f"removed {job.job_id} (failed, 8 d ago): ")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((), "expected --older-than TIME, --finished, or both"),
        (("--older-than", "7"), "--older-than: got '7', expected a time; write e.g. 7d"),
        (("--older-than", "long"), "--older-than: got 'long'"),
    ],
)
def test_nothing_goes_unasked(args: tuple[str, ...], told: str, home: Path) -> None:
    ended_job("one", days=100)
    result = paceline("prune", *args)
    assert result.exit_code == 2
    assert told in result.stderr
    assert left(home) == {"one"}


def test_a_job_that_is_not_there_is_exit_code_2(home: Path) -> None:
    ended_job("one")
    for command in ("rm", "status", "logs", "attach", "explain"):
        result = paceline(command, "nope")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "no job matches 'nope'" in result.stderr
    assert left(home) == {"one"}


VERSION = """
import sys
sys.argv = ["paceline", "--version"]
from paceline.__main__ import main
main()
assert "typer" not in sys.modules, "a version is said without the command"
"""


def test_the_version_is_said() -> None:
    said = paceline("--version").stdout
    assert said == f"paceline {version('paceline')}\n"
    for call in (["-m", "paceline", "--version"], ["-c", VERSION]):
        done = subprocess.run([sys.executable, *call], capture_output=True, text=True, check=True)
        assert done.stdout == said


def test_a_shell_completes_ids_of_jobs() -> None:
    job = ended_job("one")
    assert completed("paceline rm o") == [job.job_id]
    assert completed("paceline run --resume o") == [job.job_id]
    assert completed("paceline checkpoint ls o") == [job.job_id]


def test_a_shell_completes_files_where_no_job_is_meant() -> None:
    ended_job("one")
    assert completed("paceline run o") == []


def test_a_shell_completes_the_words_that_a_flag_takes() -> None:
    assert completed("paceline run --strategy ") == ["ps", "allreduce", "fsdp", "script"]
    assert completed("paceline run --samples at-l") == ["at-least-once"]


def completed(typed: str) -> list[str]:
    words = {
        "_PACELINE_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ")),
    }
    return CliRunner().invoke(app, [], prog_name="paceline", env=words).stdout.split()


def test_letters_that_a_locale_lacks_are_escaped() -> None:
    job = ended_job("one")
    specs.save(JobSpec(script="/home/m\N{LATIN SMALL LETTER U WITH DIAERESIS}/train.py"), job.spec)
    result = CliRunner(charset="ascii").invoke(app, ["ps", "--json"])
    assert result.exit_code == 0, result.exception
    assert "/home/m\\xfc/train.py" in result.stdout


def test_a_closed_standard_output_is_no_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    ended_job("one")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        console().print("unread")


@pytest.mark.parametrize("args", [("jobs",), ("status", "one"), ("run", "-h")])
def test_a_pipe_gets_no_colours(args: tuple[str, ...]) -> None:
    ended_job("one", 1)
    assert "\x1b" not in paceline(*args).output
