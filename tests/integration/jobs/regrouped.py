"""Layers that begin to train in later epochs: one is thawed, another one added to the optimizer."""

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
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--die", default="")
parser.add_argument("--differ", action="store_true")
parser.add_argument("--ranges", action="store_true")
args = parser.parse_args()

generator = torch.Generator().manual_seed(5)
x = torch.randn(256, 8, generator=generator, dtype=torch.float64)
data = TensorDataset(x, x.sum(1, keepdim=True))
job = pl.init()
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
model.double()
model[0].requires_grad_(False)
optimizer = torch.optim.Adam([*model[0].parameters(), *model[4].parameters()], lr=0.02)
job.prepare(model, optimizer)
for epoch in range(4) if args.ranges else job.epochs(4):
    if epoch >= 1 and not (args.differ and job.rank == 1):
        model[0].requires_grad_(True)
    if epoch >= 2 and len(optimizer.param_groups) == 1:
        model[2].zero_grad()  # of the epochs in which no optimizer had it
        optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.01})
    for features, target in job.batches(data, batch_size=32):
        died = args.out / f"died-{job.rank}"
        if f"{job.rank}:{job.step}" in args.die.split(",") and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        nn.functional.mse_loss(model(features), target).backward()
        time.sleep(args.step_s)
        optimizer.step()
        optimizer.zero_grad()
params = [param for group in optimizer.param_groups for param in group["params"]]
moments = [optimizer.state[param]["exp_avg_sq"] for param in params]
values = [*model.state_dict().values(), *moments]
line = " ".join(value.double().sum().item().hex() for value in values)
(args.out / f"{job.rank}-{os.getpid()}.end").write_text(line)
