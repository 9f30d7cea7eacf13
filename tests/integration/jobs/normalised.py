"""A model with BatchNorm that is evaluated in training mode, without ``model.eval()``.

Each worker writes ``--out/RANK.end``, a file of its own state dict, and appends to ``--out/begun``
for each life how many batches its BatchNorm had seen in its first body. ``--die RANK:STEP`` kills
the first life of a worker there.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--die", default="")
options = parser.parse_args()

torch.manual_seed(1)
x = torch.randn(640, 4) + 3.0
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
job = pl.init()
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
model.register_buffer("scale", torch.full((3,), 7.0, dtype=torch.bfloat16))
model.register_buffer("table", torch.ones(1 << 17, dtype=torch.uint8))
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
is_first = True
for _ in job.epochs(2):
    for features, target in job.batches(data, batch_size=32):
        if is_first:
            is_first = False
            with (options.out / "begun").open("a") as file:
                file.write(f"{job.rank} {int(model[1].num_batches_tracked)}\n")
        nn.functional.mse_loss(model(features), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(options.step_s)
        marker = options.out / "died"
        if options.die == f"{job.rank}:{job.step}" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if job.step % 10 == 0:
            job.evaluate(lambda b: {"seen": model(b[0])}, data, batch_size=64)
torch.save(model.state_dict(), options.out / f"{job.rank}.end")
