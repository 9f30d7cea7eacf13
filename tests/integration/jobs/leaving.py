"""A script that leaves its loop early: each rank after so many batches of its own."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, nargs="+", default=[-1], help="Of each rank.")
parser.add_argument("--how", choices=["break", "exit"], default="break")
parser.add_argument("--shard", action="store_true")
parser.add_argument("--again", action="store_true", help="A loop after the one that was left.")
parser.add_argument("--at-step", type=int, help="Leave by job.step, and not by a count.")
parser.add_argument("--die", default="", help="Rank and step of a death, in the second loop.")
parser.add_argument("--out", type=Path, help="Of what is done once.")
parser.add_argument("--late", type=int, help="Rank that is late in the step of --at-step.")
parser.add_argument("--die-after", type=int, help="Rank of a death, after the last loop.")
parser.add_argument("--linger-s", type=float, default=0.0, help="Of rank 0, after its loop.")
options = parser.parse_args()

job = pl.init()
torch.manual_seed(0)
model = nn.Linear(8, 4)
if options.shard:
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = job.prepare(model, optimizer)
x = torch.randn(4096, 8, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, x[:, :4])
steps = options.steps[job.rank % len(options.steps)]
for number, (x, y) in enumerate(job.batches(data, batch_size=8, epochs=100)):
    if number == steps:
        if options.how == "exit":
            sys.exit(0)
        break
    nn.functional.mse_loss(model(x), y).backward()
    if job.rank == options.late and job.step + 1 == options.at_step:
        time.sleep(1.0)
    optimizer.step()
    optimizer.zero_grad()
    if job.step == options.at_step:
        break
if options.again:
    for x, y in job.batches(data, batch_size=8):
        if f"{job.rank}:{job.step}" == options.die and not (options.out / "died").exists():
            (options.out / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
if not options.shard:
    values = torch.cat([one.detach().flatten() for one in model.parameters()])
    print(f"LEFT rank {job.rank} sum {values.double().sum().item():.9f}", flush=True)
if job.rank == options.die_after and not (options.out / "died").exists():
    (options.out / "died").touch()
    os.kill(os.getpid(), signal.SIGKILL)
if job.rank == 0:
    time.sleep(options.linger_s)
