"""The planted-count job (tests/chaos/planted.py) over a stream, or over lines being counted."""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

sys.path.insert(0, str(Path(__file__).parents[3]))

import paceline as pl
from paceline.runtime.data import growth
from paceline.runtime.data.sources.growing_files import GrowingFiles
from paceline.runtime.data.sources.text_lines import TextLines
from tests.chaos.planted import Counts


class Numbers(IterableDataset[int]):
    """Numbers of a length that it does not say, from where its state says."""

    def __init__(self, count: int) -> None:
        self.count, self.at = count, 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]

    def __iter__(self) -> Iterator[int]:
        while self.at < self.count:
            self.at += 1
            yield self.at - 1


def number(record: dict[str, Any]) -> int:
    """Of a record of a tar file."""
    return int(record["id"])


def main() -> None:
    """Train as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "source", type=Path, help="a directory of JSONL or tar files, or a text file; else numbers"
    )
    parser.add_argument("--num-samples", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--num-loaders", type=int, default=0)
    parser.add_argument("--step-s", type=float, default=0.02)
    options = parser.parse_args()
    # Every text file is a long one here.
    growth.COUNTED_AT_ONCE_BYTES = 0

    job = pl.init()
    model = Counts(options.num_samples)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    source = options.source
    dataset: Any = None
    if is_tar := any(source.glob("*.tar")):
        dataset = pl.TarRows(f"{source}/*.tar", parse=number)
    elif source.is_dir():
        dataset = GrowingFiles(source)
    else:
        dataset = TextLines(source, int) if source.exists() else Numbers(options.num_samples)
    for batch in job.batches(
        dataset, options.batch_size, options.epochs, num_workers=options.num_loaders
    ):
        ids = batch.id if source.is_dir() and not is_tar else batch
        model(ids).backward()
        time.sleep(options.step_s)  # stands for compute, so that faults fall into a step
        optimizer.step()
        optimizer.zero_grad()
    if job.is_chief:
        torch.save(model.state_dict(), source.with_suffix(".pt"))


if __name__ == "__main__":
    main()
