"""The report's page at the end of a job, and its command."""

import fcntl
import os
import re
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.base.processes import try_lock
from paceline.cli.main import app
from paceline.features.report.page import write_report
from paceline.jobs.facts import read_facts
from paceline.wire import spec as specs
from paceline.wire.spec import JobSpec
from tests.unit.cli.test_cli_commands import (
    FAILED,
    ended_job,
    paceline,
    read_json,
)
from tests.unit.cli.test_cli_removal import completed
from tests.unit.curves.test_curves_status import logging_job


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    return tmp_path


def test_a_report_of_an_end_that_cannot_be_read_is_refused() -> None:
    damaged = ended_job(**FAILED)
    damaged.outcome.write_bytes(damaged.outcome.read_bytes()[:37])
    told = paceline("report", damaged.job_id)
    assert told.exit_code == 2
    assert f"{damaged.outcome}: got a file that is no end of a job" in told.stderr


def test_a_beginning_that_fits_several_jobs_is_refused() -> None:
    ended_job(**FAILED)
    ended_job("older", **FAILED)
    result = paceline("report", "old")
    assert result.exit_code == 2
    assert "'old' is the beginning of 2 jobs: " in result.stderr


def test_files_that_are_damaged_hide_no_job() -> None:
    job = ended_job(**FAILED)
    job.metrics.write_bytes(b"\0" * 100 + b"\n")
    job.events.write_bytes(b"\0" * 100 + b"\n")
    job.curves.write_bytes(b"{\n\xff\n")
    shown = paceline("report", job.job_id)
    assert (shown.exit_code, shown.exception) == (0, None)
    assert job.job_id in shown.stdout


def test_what_the_script_logged_is_in_the_report() -> None:
    job = logging_job()
    assert re.search(r"logged last +loss 0\.25  auc nan", paceline("report", job.job_id).stdout)
    page = job.report.read_text()
    assert "What the script logged" in page
    assert page.count(">loss<") == page.count(">auc<") == 1


def test_a_report_says_whether_its_job_runs() -> None:
    job = ended_job()
    assert f"interrupted: all its processes died; `paceline run --resume {job.job_id}`" in (
        paceline("report").stdout
    )
    lock = try_lock(job.supervisor_lock)
    assert lock is not None
    shown = paceline("report").stdout
    os.close(lock)
    assert re.search(r"result +running\b", shown)
    assert "1.00 s so far" in shown


def test_a_report_can_be_made_of_a_job_long_ended(tmp_path: Path) -> None:
    ended_job(**FAILED)
    page = tmp_path / "page.html"
    result = paceline("report", "--html", str(page))
    assert result.exit_code == 0
    assert "failed: it broke" in result.stdout
    assert '<dl class="tiles">' in page.read_text()


@pytest.mark.parametrize("error", [ValueError("log axis"), RuntimeError("no font"), OSError("x")])
def test_a_report_that_cannot_be_drawn_does_not_change_how_the_job_ended(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    ended_job(state="finished", exit_code=0, committed=500, total=500)
    monkeypatch.setattr("paceline.features.report.page.render", fail)
    result = paceline("attach")
    assert result.exit_code == 0
    assert f"no report.html: {error}" in result.stdout


def test_a_page_replaces_what_another_command_left() -> None:
    job = ended_job(state="finished", exit_code=0, committed=500, total=500)
    (job.path / "report.html.new").write_text("of one that was killed while it wrote")
    write_report(read_facts(job), job)
    assert '<dl class="tiles">' in job.report.read_text()
    assert [path.name for path in job.path.glob("report.html*")] == ["report.html"]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_page_that_a_person_has_named_does_not_take_the_place_of_a_link_or_a_pipe(
    kind: str, tmp_path: Path
) -> None:
    ended_job(state="finished", exit_code=0, committed=500, total=500)
    real, named = tmp_path / "real.html", tmp_path / "named"
    if kind == "link":
        real.write_text("old")
        named.symlink_to(real)
    else:
        os.mkfifo(named)
        reader = os.open(named, os.O_RDWR)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)
    assert paceline("report", "--html", str(named)).exit_code == 0
    if kind == "link":
        assert named.is_symlink()
        assert '<dl class="tiles">' in real.read_text()
    else:
        assert stat.S_ISFIFO(named.lstat().st_mode)
        assert os.read(reader, 1 << 20).startswith(b"<!doctype html>")
        os.close(reader)


def test_a_report_that_cannot_be_written_does_not_change_how_the_job_ended() -> None:
    job = ended_job(state="finished", exit_code=0, committed=500, total=500)
    job.report.mkdir()
    result = paceline("attach")
    assert result.exit_code == 0
    assert "no report.html" in result.stdout


def test_a_report_in_numbers_keeps_its_names() -> None:
    job = ended_job(**FAILED, jct_s=50.0)
    job.curves.write_text('{"t":1.0,"step":4,"samples":400,"values":{"loss":"nan"}}\n')
    found = read_json("report", "--json")
    assert tuple(found) == (
        *("job_id", "state", "exit_code", "error", "started_s", "jct_s", "training_s"),
        *("committed", "total", "samples_per_s", "relaunches", "restores", "valid_cuts"),
        *("stalled_s", "undone", "incidents", "workers", "logged"),
    )
    assert (found["job_id"], found["state"], found["exit_code"]) == (job.job_id, "failed", 3)
    assert (found["jct_s"], found["committed"], found["total"]) == (50.0, 500, 1000)
    assert found["logged"] == [{"name": "loss", "value": "nan", "step": 4}]
    assert not job.report.exists()
    assert "leave out --html" in paceline("report", "--json", "--open").stderr
    interrupted = ended_job("dead")
    assert read_json("report", interrupted.job_id, "--json")["state"] == "interrupted"


def test_a_page_that_cannot_be_written_is_a_mistake(tmp_path: Path) -> None:
    ended_job(**FAILED)
    for place, why in ((tmp_path / "no" / "x.html", "No such file"), (tmp_path, "Is a directory")):
        result = paceline("report", "old", "--html", str(place))
        assert result.exit_code == 2
        assert f"paceline: report: got --html {place}, expected a file to write to" in result.stderr
        assert why in result.stderr


def test_letters_that_a_locale_lacks_are_escaped() -> None:
    job = ended_job(**FAILED)
    specs.save(JobSpec(script="/home/m\N{LATIN SMALL LETTER U WITH DIAERESIS}/train.py"), job.spec)
    result = CliRunner(charset="ascii").invoke(app, ["report", "old"])
    assert result.exit_code == 0, result.exception
    assert "/home/m\\xfc/train.py" in result.stdout


def test_a_pipe_gets_no_colours_and_a_shell_completes_ids() -> None:
    job = ended_job(**FAILED)
    assert "\x1b" not in paceline("report", "old").output
    assert completed("paceline report o") == [job.job_id]
