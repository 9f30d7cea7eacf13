"""Worker 1 changes something by itself: once, or at every step."""

import argparse

import torch
from torch import nn

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["weight", "rate"])
what = parser.parse_args().what

generator = torch.Generator().manual_seed(5)
x = torch.randn(4096, 8, generator=generator)
job = pl.init()
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
job.prepare(model, optimizer)
rows = pl.TensorRows(x=x, y=x.sum(1, keepdim=True))
for own, batch in enumerate(job.batches(rows, batch_size=64, epochs=2), 1):
    if job.rank == 1 and what == "rate" and own > 10:
        optimizer.param_groups[0]["lr"] = 0.01 / own
    nn.functional.mse_loss(model(batch.x), batch.y).backward()
    optimizer.step()
    optimizer.zero_grad()
    if job.rank == 1 and what == "weight" and own == 10:
        with torch.no_grad():
            model.weight[0, 3] += 1e-3
print(f"END {job.rank} {job.step} {model.weight.double().sum().item().hex()}", flush=True)
