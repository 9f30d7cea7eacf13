"""Wide & Deep with a tally: proof by counting that each sample's gradient is in the model once.

The tally is a second model, with one row per training sample and an optimizer of its own. Its loss
is minus the rows of the batch, so a sample's gradient adds exactly 1 to the sample's row (float64,
SGD, lr 1). It travels with the click model's gradients in the same contributions, and is applied,
cut and restored with them. For mode asp or a job alone: each contribution is an update of its own.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

import torch
from ctr import ClickData, Clicks, arguments, in_one_table, load, summary
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import Dataset

import paceline as pl

WideDeep = import_module("02_wide_deep").WideDeep


class Numbered(NamedTuple):
    """A batch, and which rows of the data set it consists of."""

    rows: Tensor
    """(B,) int64."""
    clicks: Clicks


class NumberedData(Dataset[Numbered]):
    """A data set whose batches know their row numbers."""

    def __init__(self, data: ClickData) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, indices: Sequence[int]) -> Numbered:
        return Numbered(torch.as_tensor(indices), self.data.__getitems__(indices))


class Tally(nn.Module):
    """How often the gradient of each sample was applied."""

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.counts = nn.Embedding(num_samples, 1, sparse=True, dtype=torch.float64)
        nn.init.zeros_(self.counts.weight)

    def forward(self, rows: Tensor) -> Tensor:
        """Return a loss whose gradient is -1 for each of the rows."""
        return -self.counts(rows).sum()


def main() -> None:
    """Train, count, then report on the rows held out."""
    args = arguments(__doc__, batch_size=768, epochs=1, lr=0.01)
    train, test = (in_one_table(part) for part in load(args.data, args.rows))
    torch.manual_seed(args.seed)
    model, tally = WideDeep(train.num_dense, train.vocab), Tally(len(train))
    optimizers = [
        torch.optim.Adagrad(model.parameters(), lr=args.lr),
        torch.optim.SGD(tally.parameters(), lr=1.0),
    ]

    job = pl.init()
    model, tally, optimizers = job.prepare(model, tally, optimizers)
    data = NumberedData(train)
    for rows, clicks in job.batches(data, batch_size=args.batch_size, epochs=args.epochs):
        loss = binary_cross_entropy_with_logits(model(clicks.dense, clicks.ids), clicks.label)
        (loss + tally(rows)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def predict(batch: Clicks) -> dict[str, Tensor]:
        return {"score": model(batch.dense, batch.ids), "label": batch.label}

    result = job.evaluate(predict, test, batch_size=4096)
    if job.is_chief:
        print(summary(result["score"], result["label"], test.meta))
        counts = tally.state_dict()["counts.weight"]
        low, high = int(counts.min()), int(counts.max())
        print(f"tally: {len(counts):,} rows, the smallest {low}, the largest {high}")


if __name__ == "__main__":
    main()
