"""The job of ``failslow_s2.py``: steps of emulated compute per sample, slower while a file says so.

Compute is a sleep of ``--sample-s`` for each sample, times the number in ``--out/<node>.factor``
where there is one. Appends to ``--out/<node>.f64`` for each batch: when it was ready, how many
samples it has, and its step, from 0.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import paceline as pl


def factor(file: Path) -> float:
    """Return how many times as long as usual this worker takes now."""
    try:
        return float(file.read_text())
    except FileNotFoundError:
        return 1.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--sample-s", type=float, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    job = pl.init()
    model = nn.Linear(1, 1)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-9))
    rows = pl.TensorRows(number=torch.arange(options.steps * options.batch_size))
    node = os.environ["PACELINE_NODE"]
    slow = options.out / f"{node}.factor"
    with (options.out / f"{node}.f64").open("wb", buffering=0) as stamps:
        for batch in job.batches(rows, options.batch_size, shuffle=False):
            number = batch.number
            step = int(number[0]) // options.batch_size
            stamps.write(np.array([time.monotonic(), len(number), step]).tobytes())
            loss = model(number[:, None] / len(rows)).square().mean()
            # A worker's own time ends with backward.
            time.sleep(options.sample_s * len(number) * factor(slow))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
