"""An average of the weights, a counter and a rate by `job.step`, with a worker that dies once."""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--die", default="")
parser.add_argument("--named", action="store_true", help="the script keeps the average itself")
parser.add_argument("--step-s", type=float, default=0.0)
args = parser.parse_args()

generator = torch.Generator().manual_seed(5)
x = torch.randn(2048, 8, generator=generator, dtype=torch.float64)
rows = pl.TensorRows(x=x, y=x.sum(1, keepdim=True))
job = pl.init()
model = nn.Linear(8, 1).double()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
job.prepare(model, optimizer)
if args.named:
    job.state["ema"] = ema
job.state["rates"] = []
for batch in job.batches(rows, batch_size=64, epochs=2):
    if f"{job.rank}:{job.step}" == args.die and not (args.out / "died").exists():
        (args.out / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    rate = optimizer.param_groups[0]["lr"] = 0.1 / (1 + job.step)
    nn.functional.mse_loss(model(batch.x), batch.y).backward()
    optimizer.step()
    optimizer.zero_grad()
    ema.update_parameters(model)
    if len(job.state["rates"]) < job.step:
        job.state["rates"].append(rate)
    time.sleep(args.step_s)
values = [*ema.state_dict().values(), torch.tensor(job.state["rates"])]
line = " ".join(value.double().sum().item().hex() for value in values)
with (args.out / f"{job.rank}-{os.getpid()}.end").open("w") as file:
    file.write(f"{len(job.state['rates'])} {int(ema.n_averaged)} {line}")
