"""The script of the recorded job: a small network learns to tell ten kinds of pictures."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline as pl

torch.manual_seed(0)
kinds = torch.randint(10, (6_400,))
pictures = torch.randn(10, 1, 28, 28)[kinds] + 3.0 * torch.randn(6_400, 1, 28, 28)
dataset = TensorDataset(pictures, kinds)

model = nn.Sequential(
    nn.Conv2d(1, 16, 5, padding=2),
    nn.ReLU(),
    nn.MaxPool2d(4),
    nn.Flatten(),
    nn.Linear(16 * 7 * 7, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

job = pl.init()
model, optimizer = job.prepare(model, optimizer)
for x, kind in job.batches(dataset, batch_size=256, epochs=20):
    loss = nn.functional.cross_entropy(model(x), kind)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    job.log(loss=loss)
