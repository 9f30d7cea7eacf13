"""The smallest job: a linear model on made-up data. Lines with ``job`` or ``pl`` are paceline's."""

import torch
from torch.utils.data import TensorDataset

import paceline as pl

torch.manual_seed(0)
inputs = torch.randn(20_000, 10)
weights = torch.arange(10.0)
targets = inputs @ weights + 0.1 * torch.randn(20_000)
dataset = TensorDataset(inputs, targets)

model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

job = pl.init()
model, optimizer = job.prepare(model, optimizer)
for x, y in job.batches(dataset, batch_size=256, epochs=2):
    loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

if job.is_chief:
    print(f"largest error {(model.weight - weights).abs().max():.4f}")
