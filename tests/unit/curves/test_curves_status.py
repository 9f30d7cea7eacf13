"""What a script has logged is in the status of its job, which has ended."""

import json
from pathlib import Path

import pytest

from paceline.base.jobdir import JobDir
from tests.unit.cli.test_cli_commands import FAILED, ended_job, paceline, read_json


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def logging_job() -> JobDir:
    job = ended_job(**FAILED)
    lines = [
        {"t": 3.0, "step": step, "samples": 8 * step, "values": {"loss": 0.5 / step, "auc": "nan"}}
        for step in (1, 2)
    ]
    job.curves.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return job


def test_what_the_script_logged_is_in_the_status() -> None:
    job = logging_job()
    assert "loss 0.25  auc nan" in paceline("status", job.job_id).stdout
    assert read_json("status", job.job_id, "--json")["logged"] == [
        {"name": "loss", "value": 0.25, "step": 2},
        {"name": "auc", "value": "nan", "step": 2},
    ]
