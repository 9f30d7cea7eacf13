"""A job runs to its end where a feature of paceline is not installed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.without_feature import FEATURES, environment_without

TALLY = Path(__file__).parents[2] / "examples" / "05_every_sample_once.py"
QUICK = "report"
"""The feature whose absence concerns most of what a run prints."""


@pytest.mark.parametrize(
    "name",
    [one if one == QUICK else pytest.param(one, marks=pytest.mark.soak) for one in FEATURES],
)
def test_a_job_runs_without_a_feature(name: str, tmp_path: Path) -> None:
    home = {"PACELINE_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "paceline", "run", str(TALLY), "--workers", "1"]
    done = subprocess.run(
        [*command, "--servers", "1", "--", "--rows", "2000", "--batch-size", "64"],
        env=environment_without(name, tmp_path / "site") | home,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    *_, last = [line for line in done.stdout.splitlines() if not line.startswith("report: ")]
    assert re.match(r"Finished: 1,800 of 1,800 samples in the model .* Nothing went wrong\.", last)
    pages = list((tmp_path / "home" / "jobs").glob("*/report.html"))
    assert bool(pages) == (name != "report")
