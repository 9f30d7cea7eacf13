"""The same tiny model under torchrun: gloo DDP. Writes ``<rank>.<restart>.steps.f64`` and ``.pid``.

A restarted group begins anew (no checkpoint is read), which is the least that torchrun can do.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from tiny import DIM, NUM_ROWS
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--step-s", type=float, default=0.01)
    options = parser.parse_args()
    torch.set_num_threads(1)
    name = f"{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    steps = os.open(options.out / f"{name}.steps.f64", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    (options.out / f"{name}.pid").write_text(str(os.getpid()))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rows = nn.Embedding(NUM_ROWS, DIM)
    model = DistributedDataParallel(nn.Sequential(rows, nn.Linear(DIM, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        model(torch.randint(NUM_ROWS, (options.batch_size,))).mean().backward()
        time.sleep(options.step_s)
        optimizer.step()
        optimizer.zero_grad()
        os.write(steps, torch.tensor(time.monotonic(), dtype=torch.float64).numpy().tobytes())


if __name__ == "__main__":
    main()
