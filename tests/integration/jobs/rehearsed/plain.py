"""A loop over epochs that declares nothing: a rate by hand, a header, a history of records."""

import builtins
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl

generator = torch.Generator().manual_seed(1)
features = torch.randn(256, 4, generator=generator)
target = features.sum(1, keepdim=True)
job = pl.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(features, target), batch_size=16, shuffle=True)
print("optimizer at", object.__repr__(optimizer))
model, optimizer, loader = job.prepare(model, optimizer, loader)
records = []


def print(*words: object) -> None:  # noqa: A001 - as scripts have it that print times
    builtins.print(time.strftime("[%H:%M:%S]"), *words)


def train(epoch: int) -> float:
    header = f"Epoch: [{epoch}]"
    for number, (x, y) in enumerate(loader):
        rate = 0.05 / (1 + epoch + number / len(loader))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
    print(header, f"rate {rate:.5f}")
    print(f"{header} loss of a share {loss.item():.6f}")
    return loss.item()


for epoch in range(3):
    last = train(epoch)
    records.append({"epoch": epoch, "of a share": last})
Path("log.txt").write_text(f"in {os.getcwd()}: {[one['epoch'] for one in records]}\n")
Path(f"events.out.tfevents.{time.time_ns()}.{os.getpid()}").write_text("x")
