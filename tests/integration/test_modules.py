"""``paceline run -m pkg.train`` with each strategy: the package's own imports work as in Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCHER = "from paceline.cli.main import app; app()"
MODEL = """
from torch import nn

def make(words):
    return nn.Linear(words, 1)
"""
TRAIN = """
import argparse, os, sys
from pathlib import Path

import torch

import paceline as pl
from .parts.model import make
from . import parts

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--sharded", action="store_true")
args = parser.parse_args()
job = pl.init()
model = make(4)
if args.sharded:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.prepare(model, optimizer)
data = torch.utils.data.TensorDataset(torch.ones(64, 4))
for (x,) in job.batches(data, batch_size=16, epochs=args.epochs, num_workers=1):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
said = __name__, __package__, __spec__.name, Path(sys.argv[0]).name, sys.argv[1:], parts.__name__
Path(f"{job.rank}.said").write_text(repr(said))
"""
ON_ITS_OWN = """
import os, sys
from pathlib import Path

from .parts.model import make
from . import parts

make(4)
said = __name__, __package__, __spec__.name, Path(sys.argv[0]).name, sys.argv[1:], parts.__name__
Path(f"{os.environ['RANK']}.said").write_text(repr(said))
"""
FLAGS = {
    "script": ("--strategy", "script"),
    "allreduce": ("--strategy", "allreduce"),
    "fsdp": ("--strategy", "fsdp"),
    "servers": ("--servers", "1", "--mode", "bsp"),
}


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg" / "parts").mkdir(parents=True)
    for folder in ("pkg", "pkg/parts"):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "pkg" / "parts" / "model.py").write_text(MODEL)
    (tmp_path / "pkg" / "train.py").write_text(TRAIN)


@pytest.mark.parametrize(
    "strategy",
    [
        "allreduce",
        *(pytest.param(one, marks=pytest.mark.soak) for one in ("servers", "fsdp", "script")),
    ],
)
def test_a_module_with_relative_imports_trains_as_python_would_run_it(strategy: str) -> None:
    own = ["--epochs", "2", *(["--sharded"] if strategy == "fsdp" else [])]
    if strategy == "script":
        Path("pkg", "train.py").write_text(ON_ITS_OWN)
    command = [sys.executable, "-c", LAUNCHER, "run", "-m", "pkg.train", "--workers", "2"]
    done = subprocess.run(
        [*command, *FLAGS[strategy], "--set", "preflight=false", "--", *own],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    expected = repr(("__main__", "pkg", "pkg.train", "train.py", own, "pkg.parts"))
    assert [Path(f"{rank}.said").read_text() for rank in range(2)] == [expected] * 2
