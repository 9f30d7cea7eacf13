"""Trains, and notes before each step how many threads torch has, until a file named end is there."""

import argparse
import time
from pathlib import Path

import torch

import paceline as pl


def main() -> None:
    """Train until told to end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--own", type=int, help="threads that the script sets itself")
    options = parser.parse_args()
    if options.own:
        torch.set_num_threads(options.own)
    job = pl.init()
    model = torch.nn.Linear(1, 1)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    dataset = torch.utils.data.TensorDataset(torch.rand(1 << 16, 1))
    with (options.out / "threads").open("w", buffering=1) as notes:
        for (x,) in job.batches(dataset, 16):
            notes.write(f"{torch.get_num_threads()}\n")
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.05)
            if (options.out / "end").exists():
                break


if __name__ == "__main__":
    main()
