"""A trainer that counts its own iterations and asks for batches with ``next``, without end.

It has callbacks that keep a best value and an average of weights, and reads a sampler of more entries than it ever needs, or
goes through its data again and again. Each life writes what it held at its end.
"""

import argparse
import copy
import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--again", action="store_true", help="a generator goes through the data again")
parser.add_argument("--tail-s", type=float, default=0.0, help="how long it works on at its end")
parser.add_argument("--meets", action="store_true", help="all workers meet then")
parser.add_argument("--die", default="", help="rank:iterations, after the last optimizer.step()")
args = parser.parse_args()

generator = torch.Generator().manual_seed(1)
features = torch.randn(320, 4, generator=generator, dtype=torch.float64)
target = features.sum(1, keepdim=True)
data = TensorDataset(features, target)
job = pl.init()
best, history = float("inf"), list[dict[str, Any]]()


def cycle(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from batches


class Trainer:
    def __init__(self, model: nn.Module, most: int) -> None:
        self.model, self.most, self.iterations, self.loss = model, most, 0, torch.zeros(())
        self.average = copy.deepcopy(model).requires_grad_(False)
        self.callbacks = defaultdict[str, list[Callable[["Trainer"], None]]](list)

    def loader(self) -> DataLoader[Any]:
        if args.again:
            return DataLoader(data, batch_size=16, shuffle=True)
        sampler = RandomSampler(data, replacement=True, num_samples=int(1e10))
        return DataLoader(data, batch_size=16, sampler=sampler)

    def run(self) -> None:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.model, optimizer, loader = job.prepare(self.model, optimizer, self.loader())
        batches = cycle(loader) if args.again else iter(loader)
        while self.iterations < self.most:
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(loader)
                x, y = next(batches)
            self.loss = nn.functional.mse_loss(self.model(x), y)
            self.model.zero_grad()
            self.loss.backward()
            optimizer.step()
            time.sleep(args.step_s)
            self.iterations += 1
            for callback in self.callbacks["batch"]:
                callback(self)


def judge(trainer: Trainer) -> None:
    global best
    if trainer.iterations % 10 == 0:
        with torch.no_grad():
            found = float(nn.functional.mse_loss(trainer.model(features), target))
        history.append({"at": trainer.iterations, "loss": found, "share": trainer.loss.item()})
        best = min(best, found)


def average(trainer: Trainer) -> None:
    for mean, value in zip(trainer.average.parameters(), trainer.model.parameters(), strict=True):
        mean.lerp_(value.detach(), 0.1)


def die(trainer: Trainer) -> None:
    if f"{job.rank}:{trainer.iterations}" == args.die and not (args.out / "died").exists():
        (args.out / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


args.out.mkdir(exist_ok=True)
trainer = Trainer(nn.Linear(4, 1).double(), 50)
trainer.callbacks["batch"] += [average, judge, die]
trainer.run()
(args.out / f"left-{job.rank}").touch()
time.sleep(args.tail_s)
if args.meets:
    job.barrier()
held = {
    "weight": [float(one) for one in trainer.model.state_dict()["weight"].flatten()],
    "average": [float(one) for one in trainer.average.state_dict()["weight"].flatten()],
    "iterations": trainer.iterations,
    "best": best,
    "history": [value for one in history for value in (one["at"], one["loss"])],
}
(args.out / f"{job.rank}-{os.getpid()}.end").write_text(json.dumps(held))
