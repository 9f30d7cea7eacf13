"""A short storm over four members on two machines: every kind of fault, and an exact model."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paceline_experiments.machines import TOOLS
from paceline_experiments.storm.faults import KINDS

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, (*TOOLS, "gcc"))),
        reason="machines of namespaces need root, and clocks a compiler",
    ),
]


@pytest.mark.proves(form="batches", strategy="allreduce", death=("worker", "agent", "master"))
def test_a_short_storm_leaves_the_counts_exact(tmp_path: Path) -> None:
    found = tmp_path / "storm.json"
    storm = [sys.executable, "-m", "paceline_experiments.storm", "--quick"]
    done = subprocess.run(
        [*storm, "--json", str(found), "--page", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(found.read_text())
    assert figures["faults"] == len(KINDS)
    assert figures["wrong_counts"] == 0
    assert figures["left"] == []
    assert (tmp_path / "figures/storm.svg").exists()
