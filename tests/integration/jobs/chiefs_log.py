"""A trainer whose first worker alone writes a line behind each loop; it, or the other, dies once."""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--die", default="", help="rank:place, e.g. 0:loop1, 0:behind1, 0:written1")
parser.add_argument("--numbered", action="store_true", help="job.epochs numbers the epochs")
parser.add_argument("--breaks", action="store_true", help="each loop is left before its end")
parser.add_argument("--evaluates", action="store_true")
args = parser.parse_args()
args.out.mkdir(exist_ok=True)

features = torch.randn(64, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
data = TensorDataset(features)
torch.manual_seed(2)
job = pl.init()
model = nn.Linear(4, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
loader = DataLoader(data, batch_size=8)
model, optimizer, scheduler, loader = job.prepare(model, optimizer, scheduler, loader)


def die(place: str) -> None:
    if args.die == f"{job.rank}:{place}" and not (args.out / "died").exists():
        (args.out / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def measured() -> float:
    if not args.evaluates:
        return 0.0
    found = job.evaluate(lambda batch: {"value": model(batch[0]).squeeze(1).detach()}, data, 16)
    return float(found["value"].mean())


history = list[float]()
for epoch in job.epochs(4) if args.numbered else range(4):
    total, seen = 0.0, 0
    for index, (x,) in enumerate(loader):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(args.step_s)
        total, seen = total + float(optimizer.param_groups[0]["lr"]), seen + 1
        if index == 6:
            die(f"loop{epoch}")
            if args.breaks:
                break
    die(f"behind{epoch}")
    history.append(total / seen)
    value = measured()
    scheduler.step()
    if job.is_chief:
        weight = float(model.state_dict()["weight"].sum())
        with (args.out / "log").open("a") as log:
            log.write(f"{epoch} {seen} {value:.9f} {sum(history):.9f} {weight:.9f}\n")
    die(f"written{epoch}")
