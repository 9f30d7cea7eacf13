"""A loop over epochs as examples have it: validation, a schedule and a best loss between loops.

Each life notes the epochs that it begins and ends, and what it held at its end.
"""

import argparse
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler
from torch.utils.data import default_collate as collated

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--evaluate-every", type=int, default=5, help="steps; 0: between loops only")
parser.add_argument("--sharded", action="store_true")
parser.add_argument("--late", action="store_true", help="rank 0 notes a loss when others are on")
parser.add_argument("--breaks", action="store_true", help="each loop after five steps")
parser.add_argument("--first-only", action="store_true", help="only rank 0 evaluates, slowly")
parser.add_argument("--stream", action="store_true", help="of a length that it does not say")
parser.add_argument("--sampled", action="store_true", help="a sampler, and a collate_fn of its own")
parser.add_argument("--prepared", action="store_true", help="loop over the prepared loader")
parser.add_argument("--die-last", action="store_true", help="rank 1, after rank 0 has returned")
parser.add_argument("--step-s", type=float, default=0.0)
args = parser.parse_args()


class Stream(IterableDataset[tuple[torch.Tensor, ...]]):
    """In each epoch other rows, and fewer; goes on from where its state says."""

    def __init__(self, rows: TensorDataset) -> None:
        self.rows, self.epoch, self.at = rows, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.at = epoch, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        order = torch.randperm(256, generator=torch.Generator().manual_seed(self.epoch))
        while self.at < len(order) - self.epoch:
            self.at += 1
            yield self.rows[order[self.at - 1]]


def weighted(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    features, target = collated(rows)
    return [features, target, 1 + features[:, :1] ** 2]


generator = torch.Generator().manual_seed(5)
x = torch.randn(256, 8, generator=generator, dtype=torch.float64)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=32, shuffle=True, generator=generator)
stream = Stream(data)
if args.stream:
    loader = DataLoader(stream, batch_size=32)
if args.sampled:
    sampler = WeightedRandomSampler(1 + x[:, 0].abs(), len(x))
    loader = DataLoader(data, batch_size=32, sampler=sampler, collate_fn=weighted)
job = pl.init()
model = nn.Linear(8, 1).double()
if args.sharded:
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scheduler = StepLR(optimizer, 1, 0.8)
if args.prepared:
    *_, loader = job.prepare(model, optimizer, scheduler, loader)
else:
    job.prepare(model, optimizer, scheduler)
job.state["losses"] = losses = []
life = args.out / f"{job.rank}-{os.environ.get('PACELINE_INC', '')}"


def await_another_life() -> None:
    """Return when worker 1 lives again and has had time to come to the next loop."""
    (args.out / "late").touch()
    while len([*args.out.glob("1-*.epochs")]) < 2:
        time.sleep(0.05)
    time.sleep(1.5)


def errors(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    if args.first_only:
        (args.out / "evaluates").touch()
        time.sleep(0.1)
    return {"loss": model(batch[0]) - batch[1]}


if args.first_only and job.rank == 0:
    job.evaluate(errors, data, batch_size=16)
found = torch.zeros(1)
for epoch in job.epochs(args.epochs):
    with life.with_suffix(".epochs").open("a") as file:
        file.write(f"{epoch} ")
    stream.set_epoch(epoch)
    for features, target, *weights in loader if args.prepared else job.batches(loader):
        squares = (model(features) - target) ** 2
        (squares * weights[0] if args.sampled else squares).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if args.evaluate_every and job.step % args.evaluate_every == 0:
            job.evaluate(lambda batch: {"y": model(batch[0])}, data, batch_size=64)
        time.sleep(args.step_s)
        if args.breaks and job.step % 5 == 0:
            break
    if job.rank == 0 or not args.first_only:
        found = job.evaluate(errors, data, batch_size=16)["loss"]
    if args.late and job.rank == 0 and epoch == 1:
        await_another_life()
    losses.append(found.square().mean().item())
    scheduler.step()
    if not (args.late or args.first_only):  # others would wait for the one that is late
        ranks = job.all_gather(job.rank)
        assert ranks == sorted(ranks)
        assert ranks
        job.barrier()
    with life.with_suffix(".ended").open("a") as file:
        file.write(f"{epoch} ")
    if job.agree(epoch == args.epochs - 2):
        break
if args.die_last and job.rank == 1 and not (args.out / "died").exists():
    (args.out / "died").touch()
    while not [*args.out.glob("0-*.end")]:
        time.sleep(0.05)
    time.sleep(1.5)
    os.kill(os.getpid(), signal.SIGKILL)
total = model.weight.detach().sum()
values = [
    getattr(total, "full_tensor", lambda: total)().item(),
    optimizer.param_groups[0]["lr"],
    *losses,
]
life.with_suffix(".end").write_text(" ".join(value.hex() for value in values))
