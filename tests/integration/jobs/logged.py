"""A loop that logs each step: its loss from all workers, a sum from the chief between epochs."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--sharded", action="store_true")
parser.add_argument("--step-s", type=float, default=0.05)
args = parser.parse_args()

x = torch.arange(256.0).reshape(256, 1) / 256
data = TensorDataset(x, 2 * x)
job = pl.init()
model = nn.Linear(1, 1)
if args.sharded:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.prepare(model, optimizer)
for epoch in job.epochs(args.epochs):
    for features, target in job.batches(data, batch_size=16):
        loss = nn.functional.mse_loss(model(features), target)
        job.log(loss=loss, step=job.step, late=float("nan"))
        loss.backward()
        time.sleep(args.step_s)
        optimizer.step()
        optimizer.zero_grad()
        job.log(samples=job.samples, workers=job.num_workers)
    if job.is_chief:
        job.log({"epoch/end": epoch})
