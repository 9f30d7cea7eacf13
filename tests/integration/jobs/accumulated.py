"""Gradients added up by hand, and losses that are not finite, with a worker that dies once."""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--accumulate", type=int, default=4)
parser.add_argument("--die", default="")
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--sharded", action="store_true")
args = parser.parse_args()

generator = torch.Generator().manual_seed(5)
x = torch.randn(1000, 8, generator=generator, dtype=torch.float64)
y = x.sum(1, keepdim=True)
if args.accumulate == 1:
    y[::97] = float("nan")
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, generator=generator)
job = pl.init()
model = nn.Linear(8, 1).double()
if args.sharded:
    fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
job.prepare(model, optimizer, scheduler)
for _ in job.epochs(2):
    for number, (features, target) in enumerate(job.batches(loader, accumulate=args.accumulate)):
        if f"{job.rank}:{job.step}" == args.die and not (args.out / "died").exists():
            (args.out / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        loss = nn.functional.mse_loss(model(features), target) / args.accumulate
        time.sleep(args.step_s)
        if not loss.isfinite():
            continue
        loss.backward()
        if (number + 1) % args.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
values = [*model.state_dict().values(), torch.tensor(optimizer.param_groups[0]["lr"])]
line = " ".join(value.double().sum().item().hex() for value in values)
(args.out / f"{job.rank}-{os.getpid()}.end").write_text(f"{job.step} {line}")
