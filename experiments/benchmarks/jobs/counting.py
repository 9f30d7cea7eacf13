"""The job of `server_scaling.py`: each sample adds 1 to a row of its own, with emulated compute.

Writes into ``--out`` one file per life (``<node>.<inc>.steps.f64``): the monotonic time at which
each step ended. Samples come in order, so position p of the feed is row p, modulo the table.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn

import paceline as pl


class Counts(nn.Module):
    """One row per sample."""

    def __init__(self, num_rows: int, dim: int) -> None:
        super().__init__()
        self.seen = nn.Embedding(num_rows, dim, sparse=True, _weight=torch.zeros(num_rows, dim))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Minus what is counted: its gradient is -1 in each element of a row."""
        counted: torch.Tensor = -self.seen(ids).sum()
        return counted


class Ids(torch.utils.data.Dataset[torch.Tensor]):
    """Sample i is i."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor(indices)


def _as_it_is(batch: torch.Tensor) -> torch.Tensor:
    return batch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--dim", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--synchronous", action="store_true")
    options = parser.parse_args()
    name = f"{os.environ['PACELINE_NODE']}.{os.environ['PACELINE_INC']}"
    steps = os.open(options.out / f"{name}.steps.f64", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    job = pl.init()
    # In steps the gradient is the mean over the whole batch, which is a power of two: no rounding.
    rate = float(options.batch_size) if options.synchronous else 1.0
    model = Counts(options.rows, options.dim)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    model, optimizer = job.prepare(model, optimizer)
    batches = job.batches(
        Ids(options.rows),
        batch_size=options.batch_size,
        epochs=1_000_000,
        shuffle=False,
        collate_fn=_as_it_is,
    )
    for ids in batches:
        loss = model(ids)
        if options.synchronous:
            loss = loss / ids.numel()
        loss.backward()
        time.sleep(options.step_s)  # stands for compute
        optimizer.step()
        optimizer.zero_grad()
        stamp = torch.tensor(time.monotonic(), dtype=torch.float64)
        os.write(steps, stamp.numpy().tobytes())


if __name__ == "__main__":
    main()
