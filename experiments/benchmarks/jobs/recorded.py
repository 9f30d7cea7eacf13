"""The job of ``restart_redo.py``: emulated compute per sample, and a record of every sample begun.

Appends to ``--out/<node>.<inc>.f64``, as a worker begins a batch, for each sample of it: when
(monotonic), and which.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
from tiny import Ids, Tiny, _as_it_is

import paceline as pl


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--num-samples", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--sample-s", type=float, required=True)
    options = parser.parse_args()
    job = pl.init()
    model = Tiny(1024, 8, table=True)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    name = f"{os.environ['PACELINE_NODE']}.{os.environ['PACELINE_INC']}.f64"
    with (options.out / name).open("wb", buffering=0) as file:
        dataset = Ids(options.num_samples, options.num_samples)
        for ids in job.batches(dataset, options.batch_size, shuffle=False, collate_fn=_as_it_is):
            times = np.full(len(ids), time.monotonic())
            file.write(np.stack([times, ids.numpy()], axis=1).tobytes())
            model(ids % model.num_rows).backward()
            time.sleep(options.sample_s * len(ids))  # stands for compute
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
