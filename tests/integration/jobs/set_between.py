"""What a script sets of its model between its loops, by the epoch: a late life runs no such line."""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--die", default="")
parser.add_argument("--ranges", action="store_true")
args = parser.parse_args()

generator = torch.Generator().manual_seed(5)
x = torch.randn(256, 8, generator=generator, dtype=torch.float64)
data = TensorDataset(x, x.sum(1, keepdim=True))
job = pl.init()
model = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.5), nn.Linear(8, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
job.prepare(model, optimizer)
model[0].requires_grad_(False)
loss_of = functional.mse_loss
for epoch in range(4) if args.ranges else job.epochs(4):
    if epoch >= 1:
        model[0].requires_grad_(True)
        model[1].negative_slope = 0.5 / (1 + epoch)
    if epoch >= 2:
        loss_of = functional.smooth_l1_loss
    for features, target in job.batches(data, batch_size=32):
        if f"{job.rank}:{job.step}" == args.die and not (args.out / "died").exists():
            (args.out / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        loss_of(model(features), target).backward()
        time.sleep(args.step_s)
        optimizer.step()
        optimizer.zero_grad()
line = " ".join(value.sum().item().hex() for value in model.state_dict().values())
(args.out / f"{job.rank}-{os.getpid()}.end").write_text(line)
