"""What scripts expect of a Python process holds in a worker: processes of their own, and the end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACELINE = (sys.executable, "-c", "from paceline.cli.main import app; app()")
SCRIPT = """
import atexit, multiprocessing, os, threading, time
from concurrent.futures import ProcessPoolExecutor
import torch
import paceline as pl
from torch.utils.data import DataLoader, TensorDataset

def square(x):
    return x * x

def forked(job, ends):
    for use in (job.state_dict, pl.init):
        try:
            use()
        except Exception as error:
            ends.put(str(error))

def main():
    global late
    job, model = pl.init(), torch.nn.Linear(2, 1)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for (x,) in job.batches(TensorDataset(torch.ones(8, 2)), batch_size=4):
        model(x).mean().backward()
        optimizer.step()
    fork, spawn = (multiprocessing.get_context(kind) for kind in ("fork", "spawn"))
    with fork.Pool(2) as pool:  # ends its processes by SIGTERM
        assert pool.map(square, range(3)) == [0, 1, 4]
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        assert list(pool.map(square, range(3))) == [0, 1, 4]
    assert len(list(DataLoader(TensorDataset(torch.ones(8)), num_workers=1))) == 8
    child = fork.Process(target=forked, args=(job, ends := fork.Queue()))
    child.start()
    said = [ends.get(timeout=20) for _ in range(2)]
    assert "process that the script forked" in said[0], said
    assert "was started by the script" in said[1], said
    child.join()
    late = open(f"late.{job.rank}", "w")
    late.write("flushed")
    # The job is not over before the process has ended.
    atexit.register(lambda: (time.sleep(1.5), open(f"exit.{job.rank}", "w").close()))

if __name__ == "__main__":
    main()
"""


# As long as its commands take on two cores that three other jobs use.
@pytest.mark.timeout(240)
def test_processes_of_the_script_s_own_and_an_end_as_python_s(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    flags = "--servers", "1", "--workers", "1", "--set", "preflight=false"
    done = subprocess.run(
        [*PACELINE, "run", "train.py", *flags],
        env=os.environ | {"PACELINE_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "late.0").read_text() == "flushed"
    assert (tmp_path / "exit.0").exists()
