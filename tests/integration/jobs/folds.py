"""A model per fold, one after the other, with something of all that a script does between loops."""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--die", default="", help="RANK:FOLD:STEP, once; more of them by commas")
parser.add_argument("--init", action="store_true", help="a job object for each fold")
parser.add_argument("--leave", action="store_true", help="loops over batches in their midst")
parser.add_argument("--same", action="store_true", help="one model, whose optimizers follow")
parser.add_argument("--more", action="store_true", help="worker 0 prepares once more than others")
parser.add_argument("--differ", action="store_true", help="the second model begins elsewhere")
parser.add_argument("--range", action="store_true", help="epochs that job.epochs does not count")
parser.add_argument("--stay-s", type=float, default=0.0, help="behind the first loop that is left")
parser.add_argument("--late-s", type=float, default=0.0, help="before a new life begins")
args = parser.parse_args()

generator = torch.Generator().manual_seed(5)
x = torch.randn(256, 8, generator=generator, dtype=torch.float64)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)


def net(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Linear(width, 1)).double()


def predicted(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"y": model(batch[0])[:, 0]}


def die(fold: int) -> None:
    here = f"{job.rank}:{fold}:{job.step}"
    if here in args.die.split(",") and not (args.out / f"died-{here}").exists():
        (args.out / f"died-{here}").touch()
        os.kill(os.getpid(), signal.SIGKILL)


if args.late_s and any(args.out.glob("died-*")):
    time.sleep(args.late_s)
job = pl.init()
model = net(8)
scores: list[float] = []
for fold in range(3):
    if args.init and fold:
        job = pl.init()
    train = Subset(data, [k for k in range(256) if k % 3 != fold])
    held_out = Subset(data, range(fold, 256, 3))
    if not args.same:
        model = net(8 + fold)
    if args.differ and fold and job.rank:
        nn.init.ones_(model[2].weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    if args.more and fold == 1 and job.rank == 0:
        job.prepare(net(8))
    job.prepare(model, optimizer, scheduler)
    losses = job.state["losses"] = []
    # Not the last one: a worker that comes then would train it to its end.
    leaves = args.leave and fold < 2
    for _ in range(2) if args.range else job.epochs(2):
        model.train()
        for features, target in job.batches(train, batch_size=34):
            die(fold)
            loss = nn.functional.mse_loss(model.eval()(features), target)
            loss.backward()
            time.sleep(args.step_s)
            optimizer.step()
            optimizer.zero_grad()
            if leaves and job.step == 7:
                break
        time.sleep(args.stay_s if leaves and job.step == 7 and fold == 0 else 0.0)
        scheduler.step()
        model.eval()
        found = job.evaluate(predicted, held_out)["y"]
        losses.append(nn.functional.mse_loss(found, y[fold::3, 0]).item())
        if job.agree(leaves and job.step == 7):
            break
    scores += [
        losses[-1],
        float(len(losses)),
        job.step,
        job.samples,
        optimizer.param_groups[0]["lr"],
    ]
    scores += job.all_gather(
        sum(value.double().sum().item() for value in model.state_dict().values())
    )[:1]
line = " ".join(float(value).hex() for value in scores)
(args.out / f"{job.rank}-{os.getpid()}.end").write_text(line)
