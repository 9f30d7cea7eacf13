"""Sets its rate by a counter of its own, which a new life of a worker begins again."""

import torch
from torch.utils.data import TensorDataset

import paceline as pl

g = torch.Generator().manual_seed(1)
x = torch.randn(400, 8, generator=g)
data = TensorDataset(x, x.sum(1, keepdim=True))

job = pl.init()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = job.prepare(model, optimizer)
steps = 0
history = []
for epoch in job.epochs(3):
    for a, b in job.batches(data, batch_size=16):
        steps += 1
        for group in optimizer.param_groups:
            group["lr"] = 0.05 if steps <= 8 else 0.005
        loss = torch.nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    history.append(epoch)
    job.barrier()
if job.is_chief:
    print("steps", steps, history)
