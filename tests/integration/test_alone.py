"""A dense script started plainly computes what it computes as a job of one worker by all-reduce."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

SCRIPT = Path(__file__).with_name("jobs") / "dense.py"
LAUNCHER = "from paceline.cli.main import app; app()"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def run(*command: str) -> None:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.proves(form="batches", strategy="allreduce")
def test_alone_it_trains_bit_for_bit_as_one_worker_does(tmp_path: Path) -> None:
    alone, job = tmp_path / "alone.out", tmp_path / "job.out"
    run(str(SCRIPT), "--out", str(alone))
    flags = "--strategy", "allreduce", "--workers", "1", "--solution", "none"
    # As many threads as alone: more of them sum up in another order.
    threads = "--set", "torch_threads=1"
    run("-c", LAUNCHER, "run", str(SCRIPT), *flags, *threads, "--", "--out", str(job))
    found, expected = load_file(alone), load_file(job)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
