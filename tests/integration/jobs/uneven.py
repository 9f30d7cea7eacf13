"""Three of four rows that are asked for lie in one bucket of the table: bucket 5."""

import time

import torch
from torch import nn

import paceline as pl
from paceline.wire.schema import NUM_BUCKETS

HOT, NUM_ROWS, DIM = 5, 64 * NUM_BUCKETS, 16


def main() -> None:
    """Train until the job is stopped."""
    job = pl.init()
    table = nn.Embedding(NUM_ROWS, DIM, sparse=True)
    model, optimizer = job.prepare(table, torch.optim.SGD(table.parameters(), lr=0.01))
    samples = torch.arange(NUM_ROWS)
    hot = HOT + NUM_BUCKETS * (samples % (NUM_ROWS // NUM_BUCKETS))
    rows = torch.where(samples % 4 == 0, samples // 4, hot)
    dataset = torch.utils.data.TensorDataset(rows)
    for (ids,) in job.batches(dataset, 64, epochs=1_000_000, shuffle=False):
        model(ids).sum().backward()
        time.sleep(0.01)  # stands for compute
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
