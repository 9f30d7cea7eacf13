"""Optimizers that call closures; a worker dies in one of the calls."""

import argparse
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam
from torch.utils.data import TensorDataset

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--kind", default="lbfgs", choices=["lbfgs", "wolfe", "clipped", "pair", "sgd"])
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--die", default="")
parser.add_argument("--differ", action="store_true")
parser.add_argument("--threads", type=int, nargs="*", default=[1])
parser.add_argument("--hidden", type=int, default=16)
parser.add_argument("--sharded", action="store_true")
args = parser.parse_args()

generator = torch.Generator().manual_seed(5)
x = torch.randn(256, 8, generator=generator, dtype=torch.float64)
y = torch.sin(x).sum(1, keepdim=True)
job = pl.init()
torch.set_num_threads(args.threads[job.rank % len(args.threads)])
body = nn.Sequential(nn.Linear(8, args.hidden), nn.Tanh()).double()
head = nn.Linear(args.hidden, 1).double()
model = nn.Sequential(body, head)
if args.sharded:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
line_search = "strong_wolfe" if args.kind == "wolfe" else None
if args.kind == "sgd":
    optimizers = [SGD(model.parameters(), lr=0.05, momentum=0.9)]
elif args.kind == "pair":
    optimizers = [Adam(body.parameters(), lr=0.01), LBFGS(head.parameters(), lr=0.3, max_iter=4)]
else:
    optimizers = [
        LBFGS(
            model.parameters(),
            lr=0.02 if args.kind == "clipped" else 0.3,
            max_iter=2 if args.kind == "clipped" else 5,
            history_size=4,
            line_search_fn=line_search,
        )
    ]
rate = torch.optim.lr_scheduler.ExponentialLR(optimizers[-1], 0.99)
job.prepare(model, optimizers, rate)


def die(call: int) -> None:
    if f"{job.rank}:{job.step}:{call}" == args.die and not (args.out / "died").exists():
        (args.out / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def closure_of(number: int, inputs: Tensor, wanted: Tensor) -> Callable[[], Tensor]:
    optimizer, calls = optimizers[number], 0

    def closure() -> Tensor:
        nonlocal calls
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        if args.kind == "clipped":
            job.clip_grad_norm_(1.5)
        calls += 1
        die(calls)
        return loss

    return closure


losses = job.state["losses"] = []
for inputs, wanted in job.batches(TensorDataset(x, y), batch_size=32, epochs=3):
    time.sleep(args.step_s)
    if args.differ and job.rank == 1:
        optimizers[0].param_groups[0]["max_iter"] = 3
    for number, optimizer in enumerate(optimizers):
        loss = optimizer.step(closure_of(number, inputs, wanted))
    rate.step()
    if args.kind != "sgd" and len(losses) < job.step:
        losses.append(loss.item())

whole = [getattr(one, "full_tensor", lambda one=one: one)() for one in model.state_dict().values()]
state = [one for opt in optimizers for one in opt.state.values()]
counts = [one["func_evals"] for one in state if "func_evals" in one]
values = [*(one.sum().item() for one in whole), *counts, *losses, rate.get_last_lr()[0]]
line = " ".join(float(one).hex() for one in values)
(args.out / f"{job.rank}-{os.getpid()}.end").write_text(f"{job.step} {line}")
