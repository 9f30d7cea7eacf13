"""Each example runs as it stands and learns: without a launcher, and one on servers, too."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(tmp_path: Path, *command: str, timeout_s: float = 100.0) -> str:
    # TMPDIR: the generated click log goes there, not to a cache left by an earlier run.
    own = {"TMPDIR": str(tmp_path), "PACELINE_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        env=os.environ | own,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_example(name: str, tmp_path: Path, *flags: str) -> str:
    return run(tmp_path, str(EXAMPLES / name), *flags)


def check_auc(said: str) -> None:
    found = re.search(r"test AUC ([\d.]+) \(best possible ([\d.]+)\)", said)
    assert found is not None, said
    # Ten thousand rows are far from enough for the ceiling; an unlearned model has 0.5.
    assert 0.65 < float(found[1]) < float(found[2])


@pytest.mark.soak  # CI has it in a plain installation
def test_the_minimal_example_finds_the_weights(tmp_path: Path) -> None:
    found = re.search(r"largest error ([\d.]+)", run_example("01_minimal.py", tmp_path))
    assert found is not None
    assert float(found[1]) < 0.05


@pytest.mark.soak  # CI has one on servers
@pytest.mark.parametrize("name", ["02_wide_deep.py", "03_xdeepfm.py", "04_dcn.py"])
def test_a_click_example_learns_from_generated_rows(name: str, tmp_path: Path) -> None:
    check_auc(run_example(name, tmp_path, "--rows", "10000", "--epochs", "1"))


def test_a_click_example_learns_on_servers_as_it_stands(tmp_path: Path) -> None:
    script, launcher = str(EXAMPLES / "02_wide_deep.py"), "from paceline.cli.main import app; app()"
    said = run(
        tmp_path,
        *("-c", launcher, "run", script, "--workers", "2", "--servers", "1"),
        *("--", "--rows", "10000", "--epochs", "1"),
    )
    check_auc(said)
    assert "9,000 of 9,000 samples in the model" in said
    assert "Nothing went wrong." in said


@pytest.mark.soak
@pytest.mark.timeout(500)
def test_optuna_searches_over_jobs_and_stops_those_that_it_gives_up(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="Optuna; `pip install optuna`")
    said = run(
        tmp_path, str(EXAMPLES / "optuna_search" / "search.py"), "--trials", "4", timeout_s=450.0
    )
    trials = re.findall(r"^\d+ (trial-\S+) (\w+) ([\d.]+) ", said, re.MULTILINE)
    assert len(trials) == 4
    finished = [float(loss) for _, state, loss in trials if state == "complete"]
    best = re.search(r"^best: ([\d.]+) with", said, re.MULTILINE)
    assert best is not None
    assert float(best[1]) == pytest.approx(min(finished), abs=1e-4)
    assert min(finished) < 0.5, "a model that has learned nothing has 1.1"
    ends = {}
    for job, state, _ in trials:
        outcome = json.loads((tmp_path / "home" / "jobs" / job / "outcome.json").read_text())
        assert state == "pruned" or outcome["state"] == "finished"
        ends[job] = outcome["state"]
    assert "stopped" in ends.values(), "a trial that was given up while its job ran"
