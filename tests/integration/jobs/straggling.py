"""One row per sample under Adam, which counts the updates of each row; one worker is slow.

Whatever a step lacked, every row's count is the number of times that its sample was applied.
"""

import argparse
import os
import time

import torch
from torch import nn
from torch.optim import SparseAdam

import paceline as pl


def main() -> None:
    """Train; ``--slow`` takes five times as long as the others."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-samples", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--sample-s", type=float, default=0.002)
    parser.add_argument("--slow", default="")
    options = parser.parse_args()
    slow = os.environ["PACELINE_NODE"] == options.slow

    job = pl.init()
    model = nn.Embedding(options.num_samples, 1, sparse=True)
    model, optimizer = job.prepare(model, SparseAdam(model.parameters(), lr=0.1))
    dataset = torch.utils.data.TensorDataset(torch.arange(options.num_samples))
    for (ids,) in job.batches(dataset, batch_size=options.batch_size, epochs=options.epochs):
        model(ids).mean().backward()
        time.sleep(options.sample_s * len(ids) * (5 if slow else 1))
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
