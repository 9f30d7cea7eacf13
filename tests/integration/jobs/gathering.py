"""Workers tell each other in the body of a loop what they have found; one dies before its word.

They read batches of several sizes.
"""

import argparse
import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--die", default="")
args = parser.parse_args()

generator = torch.Generator().manual_seed(5)
x = torch.randn(256, 8, generator=generator, dtype=torch.float64)
data = TensorDataset(x, x.sum(1, keepdim=True))
edges = [0, 5, 38, 60, 61, 90, 97, 132, 150, 152, 201, 230, 256]
loader = DataLoader(data, batch_sampler=[[*range(low, high)] for low, high in pairwise(edges)])
job = pl.init()
model = nn.Linear(8, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
job.prepare(model, optimizer)
life = args.out / f"{job.rank}-{os.getpid()}"


def dies(when: str) -> None:
    if f"{job.rank}:{when}:{job.step}" == args.die and not (args.out / "died").exists():
        (args.out / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


for _ in job.epochs(2):
    for features, target in job.batches(loader):
        dies("before")
        begun = job.step
        before = job.all_gather(begun)
        if set(before) != {begun}:
            raise RuntimeError(f"at step {begun} all workers said {before}")
        nn.functional.mse_loss(model(features), target).backward()
        time.sleep(args.step_s)
        dies("within")
        optimizer.step()
        optimizer.zero_grad()
        if (agreed := job.agree(job.step)) != job.step:
            raise RuntimeError(f"after step {job.step} the first worker said {agreed}")
        if job.step % 3 == 0:
            dies("after")
            held_out = nn.functional.mse_loss(model(x), data.tensors[1]).item()
            told = job.all_gather(held_out)
            job.barrier()
            with life.with_suffix(".told").open("a") as file:
                file.write(f"{job.step} {job.broadcast(job.rank)} {told}\n")
values = " ".join(value.double().sum().item().hex() for value in model.state_dict().values())
life.with_suffix(".end").write_text(f"{job.step} {values}")
