"""Where a feature of paceline is not installed, a job runs to its end, and the core's tests pass."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.without_feature import CORE, FEATURES, TESTS, environment_without

SCRIPT = Path(__file__).parents[2] / "examples" / "01_minimal.py"
QUICK = "report"
"""The feature whose absence concerns most of what a run prints."""


@pytest.mark.parametrize(
    "name",
    [one if one == QUICK else pytest.param(one, marks=pytest.mark.soak) for one in FEATURES],
)
def test_a_job_runs_without_a_feature(name: str, tmp_path: Path) -> None:
    home = {"PACELINE_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "paceline", "run", str(SCRIPT), "--workers", "1"]
    done = subprocess.run(
        [*command, "--servers", "1"],
        env=environment_without(name, tmp_path / "site") | home,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # On a busy machine it may say, besides, how long it waits for the job's master.
    assert "feature" not in done.stderr
    assert "Traceback" not in done.stderr
    *_, last = [line for line in done.stdout.splitlines() if not line.startswith("report: ")]
    assert re.match(
        r"Finished: 40,000 of 40,000 samples in the model .* Nothing went wrong\.", last
    )
    pages = list((tmp_path / "home" / "jobs").glob("*/report.html"))
    assert bool(pages) == (name != "report")


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FEATURES)
def test_tests_of_the_core_pass_without_a_feature(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-m", "not soak"]
    command += ["-n", "auto", "--dist", "worksteal", "--maxfail", "5"]
    done = subprocess.run(
        [*command, *map(str, CORE)],
        cwd=TESTS.parent,
        env=environment_without(name, tmp_path / "site"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
