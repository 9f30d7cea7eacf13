"""The planted-count job: every applied sample adds exactly 1 to a row of its own.

One table with one row per sample and epoch-independent ids, plus dense counters that span several
blocks (so every server holds some), all in float64 under SGD. With the loss below the update of a
contribution is +1 for each of its rows and +b for every counter, whatever the batch sizes; in BSP
the exact weighted mean turns the same into +1 and +B. A short step's mean is over what it has, and
ADJUST_LR weighs contributions, so with ``--by-updates`` rows are under Adam, which counts the
updates of each; every step of BSP is +B still.
"""

import argparse
import os
import time

import torch
from torch import nn

import paceline as pl

NUM_COUNTERS = 3 * 65_536
"""Three blocks of dense elements: with up to three servers each holds one."""


class Counts(nn.Module):
    """One row per sample, and dense counters."""

    def __init__(self, num_samples: int, num_counters: int = NUM_COUNTERS) -> None:
        super().__init__()
        self.seen = nn.Embedding(num_samples, 1, sparse=True, dtype=torch.float64)
        nn.init.zeros_(self.seen.weight)
        self.counters = nn.Parameter(torch.zeros(num_counters, dtype=torch.float64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Minus what is counted: its gradient is -1 per row and -b per counter."""
        counted: torch.Tensor = -self.seen(ids).sum() - ids.numel() * self.counters.sum()
        return counted


class SlowRecords(torch.utils.data.Dataset[tuple[torch.Tensor]]):
    """Records that take their time to read: what makes a loop wait for its input."""

    def __init__(self, num_samples: int, record_s: float) -> None:
        self.num_samples, self.record_s = num_samples, record_s

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        time.sleep(self.record_s)
        return (torch.tensor(index),)


def main() -> None:
    """Train as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-samples", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--step-s", type=float, default=0.02, help="of a whole share")
    parser.add_argument(
        "--share", type=int, default=0, help="samples of one; smaller batches take less"
    )
    parser.add_argument("--setup-s", type=float, default=0.0, help="from init to prepare")
    parser.add_argument("--record-s", type=float, default=0.0, help="to read one record")
    parser.add_argument("--synchronous", action="store_true")
    parser.add_argument("--by-updates", action="store_true", help="count updates of rows")
    parser.add_argument("--slow", default="", help="a node that takes three times as long")
    parser.add_argument("--counters", type=int, default=NUM_COUNTERS)
    options = parser.parse_args()
    slowness = 3 if os.environ["PACELINE_NODE"] == options.slow else 1

    job = pl.init()
    time.sleep(options.setup_s)  # stands for reading a vocabulary, or compiling a model
    rate = float(options.batch_size) if options.synchronous else 1.0
    model = Counts(options.num_samples, options.counters)
    rows, counters = list(model.seen.parameters()), [model.counters]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD([*counters, *rows], lr=rate)]
    if options.by_updates:
        optimizers = [torch.optim.SGD(counters, lr=rate), torch.optim.SparseAdam(rows)]
    job.prepare(model, optimizers)
    dataset = (
        SlowRecords(options.num_samples, options.record_s)
        if options.record_s
        else torch.utils.data.TensorDataset(torch.arange(options.num_samples))
    )
    for (ids,) in job.batches(dataset, batch_size=options.batch_size, epochs=options.epochs):
        loss = model(ids)
        if options.synchronous:
            loss = loss / ids.numel()
        loss.backward()
        # Stands for compute, so that faults fall into a step.
        part = min(1.0, ids.numel() / options.share) if options.share else 1.0
        time.sleep(options.step_s * slowness * part)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
