"""The planted-count job (tests/chaos/planted.py), with notes of which process computed what, when.

Each process appends to files of its own in ``--out``: ``<node>.<inc>.ids`` (int64: the samples that
its loop was given, in order) and ``<node>.<inc>.times`` (float64: the unix time of each batch).
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[3]))

import paceline as pl
from tests.chaos.planted import Counts

HOG_BYTES = 4 << 30


def hog_once(marker: Path) -> None:
    """Use more memory than the node may, in the first life only."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    torch.ones(HOG_BYTES // 8, dtype=torch.float64)


def main() -> None:
    """Train, then evaluate if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--num-samples", type=int, default=4096)
    parser.add_argument("--data", type=Path, help="a file of the samples, as numpy has it")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--slow-until-told", action="store_true", help="by a file named hurry")
    parser.add_argument("--slow-s", type=float, default=0.3, help="a step until then")
    parser.add_argument("--synchronous", action="store_true")
    parser.add_argument("--together", type=int, default=1, help="wait until so many are there")
    parser.add_argument("--together-at", type=int, default=1, help="in which batch")
    parser.add_argument("--keep-at", type=int, help="batch after which a cut is asked for")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--hog", action="store_true")
    parser.add_argument("--say", action="store_true", help="print a line in each batch")
    options = parser.parse_args()
    name = f"{os.environ['PACELINE_NODE']}.{os.environ['PACELINE_INC']}"

    job = pl.init()
    model = Counts(options.num_samples)
    rate = float(options.batch_size) if options.synchronous else 1.0
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=rate))
    ids = torch.arange(options.num_samples)
    if options.data is not None:
        ids = torch.from_numpy(np.load(options.data))
    dataset = torch.utils.data.TensorDataset(ids)
    samples = (options.out / f"{name}.ids").open("wb", buffering=0)
    times = (options.out / f"{name}.times").open("wb", buffering=0)
    with samples, times:
        for num_batches, (ids,) in enumerate(job.batches(dataset, options.batch_size), 1):
            samples.write(ids.numpy().tobytes())
            times.write(torch.tensor([time.time()], dtype=torch.float64).numpy().tobytes())
            if options.say:
                print(f"batch {num_batches} of {name}", flush=True)
            if options.hog and num_batches == 10:
                hog_once(options.out / "hogged")
            while (
                num_batches == options.together_at
                and len(list(options.out.glob("*.ids"))) < options.together
            ):
                time.sleep(0.02)
            loss = model(ids) / (ids.numel() if options.synchronous else 1)
            loss.backward()
            # Stands for compute, so that faults fall into a step.
            slow = options.slow_until_told and not (options.out / "hurry").exists()
            time.sleep(options.slow_s if slow else options.step_s)
            optimizer.step()
            optimizer.zero_grad()
            if num_batches == options.keep_at:
                job.checkpoint()
    if options.evaluate:
        found = job.evaluate(lambda batch: {"seen": model.seen(batch[0])[:, 0]}, dataset, 100)
        save_file(found, options.out / f"{name}.evaluated")
        if job.is_chief:
            save_file(dict(job.state_dict()), options.out / "model.safetensors")


if __name__ == "__main__":
    main()
