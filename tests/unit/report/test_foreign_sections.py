"""Sections that a feature of another package adds to a report."""

import json
from pathlib import Path

import pytest

from paceline.base.jobdir import JobDir
from tests.unit.cli.test_cli_commands import ended_job
from tests.unit.cli.test_cli_features import declared, paceline
from tests.unit.cli.test_sections import THEIRS


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return ended_job(state="finished", exit_code=0, committed=500, total=500)


def test_a_section_is_on_the_page_in_the_text_and_among_the_numbers(
    job: JobDir, tmp_path: Path
) -> None:
    site = declared(tmp_path, THEIRS)
    shown = paceline(site, "report", job.job_id)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "\n  all of it\n\n  node        kWh\n  worker-0    1.5\n" in shown.stdout
    page = job.report.read_text()
    assert "<h2>What it &lt;cost&gt;</h2><p>all of it</p><" in page
    assert "<b>drawn</b>" in page
    assert '<p class="faint">as of the meter</p>' in page
    assert "It took 500 mWh." in page
    numbers = json.loads(paceline(site, "report", job.job_id, "--json").stdout)
    assert numbers["sections"] == {"energy": {"kwh": 1.5}}


@pytest.mark.parametrize(
    ("sound", "broken"),
    [("    add(Section(", "    add(tuple("), ("def tell(facts, add):", "def tell(facts):")],
)
def test_a_section_that_fails_is_left_out_and_named_once(
    job: JobDir, tmp_path: Path, sound: str, broken: str
) -> None:
    code = THEIRS.replace(sound, broken)
    assert code != THEIRS
    shown = paceline(declared(tmp_path, code), "report", job.job_id)
    assert shown.returncode == 0
    assert "job completion time" in shown.stdout
    (line,) = shown.stderr.splitlines()
    assert line.startswith("paceline: feature greeting is left out: ")


def test_without_sections_that_have_numbers_no_name_is_added(job: JobDir, tmp_path: Path) -> None:
    assert "sections" not in json.loads(paceline(tmp_path, "report", job.job_id, "--json").stdout)
