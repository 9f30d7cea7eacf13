"""The job of ``exactly_once_cost.py`` and ``solution_cost.py``: runs of steps, when told to.

After the first ``--run-steps`` steps every worker reads a byte from the pipe ``<--gate>.<node>``
before each run of so many, and the chief appends the run's seconds to ``--out`` after it. Workers
of one synchronous job (``--together``) wait for each other first, and stop after the same steps.
``--model click``: a click model (26 fields, one table of dim
16, MLP 512-256-1, Adagrad); ``tiny``: one small layer, so that a step is little but its messages.
Batches are made before.
"""

import argparse
import os
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


class Batches(torch.utils.data.Dataset[tuple[int, torch.Tensor]]):
    """Dataset of so many samples from a pool made before, with their step if not shuffled."""

    def __init__(self, num_samples: int, batch_size: int, rows_per_field: int) -> None:
        self.num_samples, self.batch_size = num_samples, batch_size
        offsets = torch.arange(FIELDS) * rows_per_field
        random = torch.Generator().manual_seed(0)
        shape = (8, batch_size, FIELDS)
        self.pool = torch.randint(rows_per_field, shape, generator=random) + offsets

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> tuple[int, torch.Tensor]:
        first = int(indices[0])
        return first // self.batch_size, self.pool[first % len(self.pool), : len(indices)]


def _as_it_is(batch: tuple[int, torch.Tensor]) -> tuple[int, torch.Tensor]:
    return batch


def await_all(out: Path, node: str, together: int) -> None:
    """Wait until so many workers are here."""
    out.with_name(f"{out.name}.{node}.here").touch()
    while len(list(out.parent.glob(f"{out.name}.*.here"))) < together:
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--model", choices=("click", "tiny"), required=True)
    parser.add_argument("--num-samples", type=int, default=10**9)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--rows-per-field", type=int, default=20_000)
    parser.add_argument("--run-steps", type=int, default=10)
    parser.add_argument("--together", type=int, default=1)
    options = parser.parse_args()
    job = pl.init()
    model = Click(options.rows_per_field) if options.model == "click" else Tiny()
    model, optimizer = job.prepare(model, torch.optim.Adagrad(model.parameters(), lr=0.01))
    dataset = Batches(options.num_samples, options.batch_size, options.rows_per_field)
    node = os.environ["PACELINE_NODE"]
    await_all(options.out, node, options.together)
    start_s = None
    for number, (step, ids) in enumerate(
        job.batches(
            dataset,
            batch_size=options.batch_size,
            shuffle=options.together == 1,
            collate_fn=_as_it_is,
        )
    ):
        model(ids).backward()
        optimizer.step()
        optimizer.zero_grad()
        done = 1 + (number if options.together == 1 else step)
        if options.gate and done % options.run_steps == 0:
            if start_s is not None and job.is_chief:
                with options.out.open("a") as out:
                    out.write(f"{time.perf_counter() - start_s}\n")
            # Between two steps, so that nobody's computation seems to take so long.
            if Path(f"{options.gate}.{node}").read_bytes() == b"":
                return
            start_s = time.perf_counter()


if __name__ == "__main__":
    main()
