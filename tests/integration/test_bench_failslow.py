"""Real ranks and links become slow, and the bench writes down what their jobs say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from paceline_experiments.failslow.networks import can_make_networks
from paceline_experiments.failslow.trials import CASES

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
PACELINE = (sys.executable, "-c", "from paceline.cli.main import app; app()")


@pytest.mark.skipif(not can_make_networks(), reason="needs root, ip and tc, to make links slow")
def test_a_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    results = tmp_path / "results.json"
    command = [*PACELINE, "bench", "failslow", "--quick", "--json", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(results.read_text())
    assert [trial["case"] for trial in found["trials"]] == [*CASES, "healthy"]
    assert all(trial["told"] for trial in found["trials"][:-1]), done.stderr
    assert not found["notes"]
