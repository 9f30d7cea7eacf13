"""A script that counts its batches, and trains until there were so many.

Rank 1 dies once, in its 10th. Each life writes how many it counted, and the job's step then, to
``--out/RANK.PID.end``.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--pause-s", type=float, default=0.0, help="Of rank 0, behind its last loop.")
options = parser.parse_args()
x = torch.randn(320, 4, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, x.sum(1, keepdim=True))
job = pl.init()
model = nn.Linear(4, 1)
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
died = options.out / "died"
count = 0
while count < 50:
    for features, target in job.batches(data, batch_size=16):
        nn.functional.mse_loss(model(features), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        count += 1
        time.sleep(0.04)
        if (count, job.rank) == (10, 1) and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if count >= 50:
            break
if job.rank == 0:
    time.sleep(options.pause_s)
(options.out / f"{job.rank}.{os.getpid()}.end").write_text(f"{count} {job.step}")
