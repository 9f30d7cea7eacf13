"""The job of ``plan_switch.py``: steps of equal compute, whoever computes how much of them.

Appends to ``--out/<node>.f64`` for each batch: when it was ready, how many samples it has, and its
step, from 0.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
from tiny import Ids, _as_it_is
from torch import nn

import paceline as pl


class Floats(Ids):
    """Dataset of one number per sample."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return super().__getitems__(indices).float()[:, None]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--together", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    job = pl.init()
    model = nn.Linear(1, 1)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-9))
    num_samples = options.steps * options.batch_size
    data = Floats(num_samples, num_samples)
    with (options.out / f"{os.environ['PACELINE_NODE']}.f64").open("wb", buffering=0) as file:
        while len(list(options.out.glob("*.f64"))) < options.together:
            time.sleep(0.02)
        for batch in job.batches(data, options.batch_size, shuffle=False, collate_fn=_as_it_is):
            step = int(batch[0, 0]) // options.batch_size
            file.write(np.array([time.monotonic(), len(batch), step]).tobytes())
            model(batch / num_samples).square().mean().backward()
            time.sleep(options.step_s)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
