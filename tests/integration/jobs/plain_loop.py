"""A loop as people have it, which declares nothing: it counts, averages, draws and stops early by itself.

Each life writes what it held at its end.
"""

import argparse
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl
from paceline.runtime.process.process import current

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--rollouts", action="store_true", help="draws its data again in each epoch")
parser.add_argument("--counted", action="store_true", help="leaves its loops by a count of its own")
parser.add_argument("--pause-s", type=float, default=0.0, help="of rank 0, after each epoch")
parser.add_argument("--die-at", type=int, default=-1, help="rank 1, in the body of this step")
parser.add_argument("--limit", type=int, default=-1, help="steps after which it leaves its loops")
parser.add_argument("--hold", default="", help="ranks that wait until the job stops")
parser.add_argument("--numbered", action="store_true", help="epochs of job.epochs")
parser.add_argument("--at-break", action="store_true", help="before a break, not before epoch 2")
parser.add_argument("--die-after", action="store_true", help="rank 1, after its last loop")
parser.add_argument("--shard", action="store_true", help="with fsdp")
args = parser.parse_args()

generator = torch.Generator().manual_seed(1)
features = torch.randn(320, 4, generator=generator, dtype=torch.float64)
target = features.sum(1, keepdim=True)
job = pl.init()
model = nn.Linear(4, 1).double()
if args.shard:
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(features, target), batch_size=16, shuffle=True)
model, optimizer, loader = job.prepare(model, optimizer, loader)
num_seen = 0


def weight() -> Tensor:
    found = model.weight.detach()
    return found.full_tensor() if isinstance(found, DTensor) else found


def hold() -> None:
    """Wait until somebody stops the job."""
    process = current()
    if process is None or str(job.rank) not in args.hold or (args.out / "resumed").exists():
        return
    (args.out / f"holds{job.rank}").touch()
    while not process.stop_requested:
        time.sleep(0.01)


def die_once(step: int) -> bool:
    """End rank 1 for good in the body of a step; whether another one is in it then."""
    died = args.out / "died"
    if step != args.die_at or died.exists():
        return False
    if job.rank == 1:
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return job.rank == 0


class Stopper:
    """Early stopping, as each of us has written it once."""

    def __init__(self, patience: int) -> None:
        self.best, self.bad, self.patience, self.history = float("inf"), 0, patience, list[float]()

    def is_over(self, loss: float) -> bool:
        self.history.append(loss)
        self.bad = 0 if loss < self.best * 0.5 else self.bad + 1
        self.best = min(self.best, loss)
        return self.bad > self.patience


class Trainer:
    """A class that trains, with what it counts in its attributes."""

    def __init__(self) -> None:
        self.steps, self.drawn = 0, list[float]()
        self.noise, self.stopper = np.random.default_rng(3), Stopper(1)
        self.between = list[float]()
        self.records, self.last = list[dict[str, Any]](), 0.0

    def epoch(self, batches: Any) -> tuple[float, int]:
        global num_seen
        total, count = 0.0, 0
        for number, (x, y) in enumerate(batches):
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * 0.99**self.steps
            is_left = die_once(self.steps)
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total, count = total + loss.item(), count + 1
            self.steps += 1
            num_seen += 1
            self.drawn.append(float(self.noise.random()) + number)
            # A new life is there before the body of the step that broke is over.
            time.sleep(3.0 if is_left else args.step_s)
            if args.at_break and self.steps == 35:
                hold()
            if (args.counted and self.steps % 20 == 15) or self.steps == args.limit:
                break
        self.last = loss.item()  # in a worker without a batch there is none
        return total / count, count  # and it divides by zero here

    def fit(self) -> dict[str, Any]:
        best, log, mine = None, {}, random.Random(os.getpid())
        for epoch in job.epochs(args.epochs) if args.numbered else range(args.epochs):
            # From the generators of the process, which each life goes on with.
            self.between += [random.random(), float(np.random.random()), torch.rand(()).item()]
            batches: Any = loader
            if epoch == 2 and not args.at_break:
                hold()
            if args.rollouts:
                drawn = torch.as_tensor(self.noise.normal(size=(320, 4)))
                batches = job.batches(
                    TensorDataset(drawn, drawn.sum(1, keepdim=True)), batch_size=16
                )
            mean, count = self.epoch(batches)
            mine.random()
            with torch.no_grad():
                loss = float(((model(features) - target) ** 2).mean())
            log[epoch] = loss
            self.records.append({"epoch": epoch, "of a share": mean, "at": f"epoch {epoch}"})
            print(f"rank {job.rank} epoch {epoch} mean {mean:.6f} of {count}", flush=True)
            if best is None or loss < best["loss"]:
                best = {"loss": loss, "weight": weight().clone()}
            if job.is_chief:
                time.sleep(args.pause_s)
            if self.stopper.is_over(loss) or self.steps == args.limit:
                break
        assert best is not None
        return {
            "weight": weight().flatten().tolist(),
            "best": best["weight"].flatten().tolist(),
            "log": list(log.values()),
            "history": self.stopper.history,
            "steps": [self.steps, num_seen, *map(int, log)],
            "records": [one["epoch"] for one in self.records],
            "drawn": self.drawn,
            "between": self.between,
        }


args.out.mkdir(exist_ok=True)
end = Trainer().fit()
if args.die_after and job.rank == 1 and not (args.out / "died").exists():
    (args.out / "died").touch()
    os.kill(os.getpid(), signal.SIGKILL)
(args.out / f"{job.rank}-{os.getpid()}.end").write_text(json.dumps(end))
