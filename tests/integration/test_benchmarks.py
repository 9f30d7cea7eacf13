"""Every benchmark still runs, with small sizes: in `make soak`, and the quickest one in CI."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "benchmarks"
SCRIPTS = [path for path in sorted(FOLDER.glob("*.py")) if "__main__" in path.read_text()]
"""What can be run; the rest is what these share."""
QUICKEST = "decision_cost"


def in_soak(script: Path) -> object:
    marks = [] if script.stem == QUICKEST else [pytest.mark.soak]
    return pytest.param(script, id=script.stem, marks=marks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", [in_soak(script) for script in SCRIPTS])
def test_a_quick_run(script: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(script), "--quick"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
