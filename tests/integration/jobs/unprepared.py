"""What a script keeps for itself: a schedule, an average made early, values beside batches."""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--die", default="", help="RANK:STEP,...: in the midst of a step, once each")
parser.add_argument("--step-s", type=float, default=0.0)
args = parser.parse_args()

generator = torch.Generator().manual_seed(5)
x = torch.randn(320, 8, generator=generator, dtype=torch.float64)
sampler = RandomSampler(range(320), generator=torch.Generator().manual_seed(1))
loader = DataLoader(
    TensorDataset(x, x.sum(1, keepdim=True)),
    batch_sampler=BatchSampler(sampler, 32, drop_last=True),
)
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()
ema = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
schedule = OneCycleLR(optimizer, 0.1, total_steps=30)
weights = [1 + 0.05 * k for k in range(1000)]
job = pl.init()
model, optimizer, loader = job.prepare(model, optimizer, loader)
for _, scale in zip(range(3), [1.0, 0.5, 0.25], strict=True):
    for (features, target), weight in zip(loader, weights):
        died = args.out / f"died-{job.rank}-{job.step}"
        if f"{job.rank}:{job.step}" in args.die.split(",") and not died.exists():
            died.touch()
            time.sleep(0.3)  # the other one waits for the sum
            os.kill(os.getpid(), signal.SIGKILL)
        loss = nn.functional.mse_loss(model(features), target) * weight * scale
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        ema.update_parameters(model)
        time.sleep(args.step_s)
values = [*model.state_dict().values(), *ema.state_dict().values()]
values.append(torch.tensor([schedule.last_epoch, optimizer.param_groups[0]["lr"]]))
line = " ".join(value.double().sum().item().hex() for value in values)
(args.out / f"{job.rank}-{os.getpid()}.end").write_text(line)
