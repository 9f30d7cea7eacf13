"""The job of ``benchmarks/healthy.py``: a small dense model that really computes, for ever."""

import argparse

import torch
from torch import nn

import paceline as pl

WIDTH, HIDDEN, NUM_ROWS = 256, 512, 60_000


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--batch-size", type=int, default=768)
    options = flags.parse_args()
    job = pl.init()
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = job.prepare(model, optimizer)
    rows = pl.TensorRows(x=torch.randn(NUM_ROWS, WIDTH), y=torch.randn(NUM_ROWS, 1))
    for batch in job.batches(rows, batch_size=options.batch_size, epochs=100_000):
        nn.functional.mse_loss(model(batch.x), batch.y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
