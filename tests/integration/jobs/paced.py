"""A script for torchrun whose steps all take as long: DDP over gloo, and a pause in each step.

It knows nothing of paceline. A rank that is named in the file ``--slow`` (``RANK SECONDS``) pauses
so much longer.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow", type=Path, required=True)
    parser.add_argument("--pause-s", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=100_000)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(options.steps):
        pause_s = options.pause_s
        if options.slow.exists():
            rank, seconds = options.slow.read_text().split()
            pause_s += float(seconds) if int(rank) == dist.get_rank() else 0.0
        time.sleep(pause_s)
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
