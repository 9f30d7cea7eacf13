"""The job of ``exactly_once_cost.py``: runs of so many steps, each when it is told to.

Reads a byte from the pipe ``--gate`` before each run, and appends its seconds to ``--out`` after
it. ``--model click``: a click model (26 fields, one table of dim 16, MLP 512-256-1, Adagrad);
``tiny``: one small layer, so that a step is little but its messages. Batches are made before.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn

import paceline as pl

FIELDS, DIM = 26, 16


class Click(nn.Module):
    """The throughput benchmark's model, with a smaller table."""

    def __init__(self, rows_per_field: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(FIELDS * rows_per_field, DIM, sparse=True)
        self.mlp = nn.Sequential(
            nn.Linear(FIELDS * DIM, 512),
            nn.ReLU(),
            nn.Linear(512, 256),
            nn.ReLU(),
            nn.Linear(256, 1),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return self.mlp(self.rows(ids).flatten(1)).square().mean()


class Tiny(nn.Module):
    """One small layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FIELDS, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return self.layer(ids.float()).square().mean()


class Batches(torch.utils.data.Dataset[torch.Tensor]):
    """So many samples, out of a pool that was made before."""

    def __init__(self, num_samples: int, batch_size: int, rows_per_field: int) -> None:
        self.num_samples = num_samples
        offsets = torch.arange(FIELDS) * rows_per_field
        random = torch.Generator().manual_seed(0)
        shape = (8, batch_size, FIELDS)
        self.pool = torch.randint(rows_per_field, shape, generator=random) + offsets

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.pool[0, index % self.pool.shape[1]]

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return self.pool[indices[0] % len(self.pool), : len(indices)]


def _as_it_is(batch: torch.Tensor) -> torch.Tensor:
    return batch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--model", choices=("click", "tiny"), required=True)
    parser.add_argument("--num-samples", type=int, default=10**9)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--rows-per-field", type=int, default=20_000)
    parser.add_argument("--run-steps", type=int, default=10)
    options = parser.parse_args()
    job = pl.init()
    model = Click(options.rows_per_field) if options.model == "click" else Tiny()
    model, optimizer = job.prepare(model, torch.optim.Adagrad(model.parameters(), lr=0.01))
    dataset = Batches(options.num_samples, options.batch_size, options.rows_per_field)
    start_s = time.perf_counter()
    for number, ids in enumerate(
        job.batches(dataset, batch_size=options.batch_size, collate_fn=_as_it_is)
    ):
        if options.gate and number % options.run_steps == 0:
            if number:
                with options.out.open("a") as out:
                    out.write(f"{time.perf_counter() - start_s}\n")
            if options.gate.read_bytes() == b"":
                return
            start_s = time.perf_counter()
        model(ids).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
