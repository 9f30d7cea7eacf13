"""The page of all jobs."""

from pathlib import Path

import pytest

from paceline.features.report.overview import AllJobs
from tests.unit.cli.test_cli_commands import FAILED, ended_job


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    return tmp_path


def test_a_job_that_cannot_be_read_hides_no_other() -> None:
    names = [ended_job(name, **FAILED).job_id for name in ("one", "two", "three")]
    broken = ended_job("broken", **FAILED)
    broken.events.unlink()
    broken.events.mkdir()
    every = AllJobs()
    for _ in range(2):
        page = every.look()
        html = page.blocks[0].html
        assert all(f"/jobs/{name}" in html for name in names)
        assert broken.job_id not in html
        assert page.state.startswith("3 jobs in ") and page.state.endswith(", 1 cannot be read")
