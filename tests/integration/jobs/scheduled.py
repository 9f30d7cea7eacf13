"""A schedule of as many steps as there are global batches, though one worker is slow or dies."""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

import paceline as pl

NUM_SAMPLES, BATCH, EPOCHS = 640, 16, 2

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--slow", type=int, default=-1)
parser.add_argument("--slow-s", type=float, default=0.1)
parser.add_argument("--die-at", type=int, default=-1)
args = parser.parse_args()

job = pl.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = OneCycleLR(optimizer, 0.1, total_steps=EPOCHS * NUM_SAMPLES // BATCH)
other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1, momentum=0.9)
other._opt_called = True  # type: ignore[attr-defined]
undisturbed = OneCycleLR(other, 0.1, total_steps=EPOCHS * NUM_SAMPLES // BATCH)
rates = [undisturbed.get_last_lr()[0]]
for _ in range(EPOCHS * NUM_SAMPLES // BATCH):
    undisturbed.step()
    rates.append(undisturbed.get_last_lr()[0])

job.prepare(model, optimizer, scheduler)
data = torch.utils.data.TensorDataset(torch.ones(NUM_SAMPLES, 4))
job.state["reached"] = bodies = 0
for (x,) in job.batches(data, batch_size=BATCH, epochs=EPOCHS):
    bodies += 1
    rate = optimizer.param_groups[0]["lr"]
    assert rate == rates[job.step], (rate, job.step)
    if job.step >= args.die_at >= 0 and job.rank == 1 and not (args.out / "died").exists():
        (args.out / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if job.rank == args.slow:
        time.sleep(args.slow_s)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    job.state["reached"] = job.step
assert job.state["reached"] > 70
last = optimizer.param_groups[0]["lr"]
assert last == rates[-1], (last, rates[-1])
(args.out / f"{job.rank}.end").write_text(f"{job.step} {bodies}")
