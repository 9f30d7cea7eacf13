"""Forgets loss.backward()."""

import torch
from torch.utils.data import TensorDataset

import paceline as pl

x = torch.randn(400, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
job = pl.init()
model, optimizer = job.prepare(model, optimizer)
for a, b in job.batches(data, batch_size=16):
    loss = torch.nn.functional.mse_loss(model(a), b)
    optimizer.step()
    optimizer.zero_grad()
