"""What the click examples share: their data as tensors, their arguments, the AUC.

A data set is a directory written by ``paceline data`` (make-ctr, adult, movielens, criteo).
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from paceline.features.data.ctr import CtrSettings
from paceline.features.data.make_ctr import make_ctr
from paceline.features.data.tables import Meta, read_meta

CACHE = Path(tempfile.gettempdir()) / f"paceline-examples-{os.getuid()}"


class Clicks(NamedTuple):
    """A batch of B rows with D numeric and F categorical columns; one row has no first axis."""

    dense: Tensor
    """(B, D) float32, standardised."""
    ids: Tensor
    """(B, F) int64."""
    label: Tensor
    """(B,) float32, 0 or 1."""


class ClickData(Dataset[Clicks]):
    """Rows in memory; a batch is one indexing per column."""

    def __init__(self, rows: Clicks, meta: Meta) -> None:
        self.rows = rows
        self.meta = meta
        self.num_dense = rows.dense.shape[1]
        self.vocab = list(meta.categorical.values())
        """Ids per field."""

    def __len__(self) -> int:
        return len(self.rows.label)

    def __getitem__(self, index: int) -> Clicks:
        return Clicks(*(column[index] for column in self.rows))

    def __getitems__(self, indices: Sequence[int]) -> Clicks:
        """Return the rows of a batch together; paceline asks for this where it is there."""
        rows = torch.as_tensor(indices)
        return Clicks(*(column.index_select(0, rows) for column in self.rows))


def arguments(doc: str | None, *, batch_size: int, epochs: int, lr: float) -> argparse.Namespace:
    """Parse the arguments that all click examples take."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--data", type=Path, help="directory written by `paceline data`")
    parser.add_argument("--rows", type=int, default=50_000, help="without --data: rows to generate")
    parser.add_argument("--batch-size", type=int, default=batch_size, help="of all workers")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--lr", type=float, default=lr)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load(directory: Path | None, rows: int) -> tuple[ClickData, ClickData]:
    """Return train and test of ``directory``, or of a generated click log of ``rows`` rows."""
    directory = directory or _generated(rows)
    meta = read_meta(directory)
    tables = [pq.read_table(directory / split) for split in ("train", "test")]
    dense = [_stack(table, meta.numeric, torch.float32) for table in tables]
    # Counts and amounts span decades: logarithms first. Test uses the mean and spread of train.
    dense = [values.sign() * values.abs().log1p() for values in dense]
    mean, std = dense[0].nanmean(dim=0), torch.from_numpy(np.nanstd(dense[0].numpy(), axis=0))
    ids = [_stack(table, tuple(meta.categorical), torch.int64) for table in tables]
    labels = [torch.tensor(table["label"].to_numpy(), dtype=torch.float32) for table in tables]
    train, test = (
        ClickData(Clicks(torch.nan_to_num((d - mean) / std.clamp(min=1e-6)), i, y), meta)
        for d, i, y in zip(dense, ids, labels, strict=True)
    )
    return train, test


def in_one_table(data: ClickData) -> ClickData:
    """Number the ids of all fields through, so that one embedding table serves them all."""
    offsets = torch.tensor([0, *data.vocab[:-1]]).cumsum(0)
    return ClickData(data.rows._replace(ids=data.rows.ids + offsets), data.meta)


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def auc(score: Tensor, label: Tensor) -> float:
    """Area under the ROC curve; tied scores count half. NaN where a class is missing."""
    positive = label.numpy() == 1
    _, group, counts = np.unique(score.numpy(), return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    num_positive = int(positive.sum())
    pairs = num_positive * (len(positive) - num_positive)
    above = mean_rank[group][positive].sum() - num_positive * (num_positive + 1) / 2
    return float(above / pairs) if pairs else float("nan")


def summary(score: Tensor, label: Tensor, meta: Meta) -> str:
    """One line on the held-out rows, with the best possible AUC where it is known."""
    ceiling = "" if meta.bayes_auc is None else f" (best possible {meta.bayes_auc:.4f})"
    return f"{meta.name}: test AUC {auc(score, label):.4f}{ceiling}"


def _stack(table: pa.Table, names: tuple[str, ...], dtype: torch.dtype) -> Tensor:
    """Columns side by side, row-major: a row's values lie together."""
    columns = [torch.tensor(table[name].to_numpy(), dtype=dtype) for name in names]
    return torch.stack(columns, dim=1) if columns else torch.empty(table.num_rows, 0, dtype=dtype)


def _generated(rows: int) -> Path:
    """Generate once per size; of workers that start together, one wins the final name."""
    final = CACHE / f"ctr-{rows}"
    if not final.exists():
        CACHE.mkdir(mode=0o700, exist_ok=True)
        own = Path(tempfile.mkdtemp(dir=CACHE))
        make_ctr(own, rows, CtrSettings())
        try:
            own.rename(final)
        except OSError:
            if not final.exists():
                raise
    return final
