"""Two models that train each other; a worker dies between the steps of the two.

The second one trains on every batch, or on every n-th.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--die", default="")
parser.add_argument("--every", type=int, default=1)
parser.add_argument("--sharded", action="store_true")
parser.add_argument("--maker-first", action="store_true", help="its loss leaves gradients in judge")
args = parser.parse_args()


def whole(value: Tensor) -> Tensor:
    return getattr(value, "full_tensor", lambda: value)()


generator = torch.Generator().manual_seed(5)
real = torch.randn(256, 8, generator=generator, dtype=torch.float64) + 1
noise = torch.randn(256, 4, generator=generator, dtype=torch.float64)
job = pl.init()
maker = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8)).double()
judge = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()
if args.sharded:
    fully_shard(maker)
    fully_shard(judge)
of_maker = torch.optim.Adam(maker.parameters(), lr=0.01)
of_judge = torch.optim.Adam(judge.parameters(), lr=0.02)
rate = torch.optim.lr_scheduler.ExponentialLR(of_judge, 0.98)
job.prepare([maker, judge], [of_maker, of_judge], rate)
loss_of = nn.functional.binary_cross_entropy_with_logits


def die() -> None:
    if f"{job.rank}:{job.step}" == args.die and not (args.out / "died").exists():
        (args.out / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


for x, z in job.batches(TensorDataset(real, noise), batch_size=32, epochs=3):
    ones, zeros = x.new_ones(len(x), 1), x.new_zeros(len(x), 1)
    if args.maker_first:
        of_maker.zero_grad()
        fake = maker(z)
        loss_of(judge(fake), ones).backward()
        of_maker.step()
        time.sleep(args.step_s)
        die()
        of_judge.zero_grad()
        (loss_of(judge(x), ones) + loss_of(judge(fake.detach()), zeros)).backward()
        of_judge.step()
        rate.step()
        continue
    of_judge.zero_grad()
    loss_of(judge(x), ones).backward()
    fake = maker(z)
    loss_of(judge(fake.detach()), zeros).backward()
    job.clip_grad_norm_(0.2, of_judge)
    of_judge.step()
    rate.step()
    time.sleep(args.step_s)
    die()
    if job.step % args.every == 0:
        of_maker.zero_grad()
        loss_of(judge(fake), ones).backward()
        job.clip_grad_norm_(0.1, of_maker)
        of_maker.step()
moments = [one["exp_avg_sq"] for opt in (of_maker, of_judge) for one in opt.state.values()]
values = [*maker.state_dict().values(), *judge.state_dict().values(), *moments]
values.append(torch.tensor(of_judge.param_groups[0]["lr"]))
line = " ".join(whole(value).double().sum().item().hex() for value in values)
(args.out / f"{job.rank}-{os.getpid()}.end").write_text(f"{job.step} {line}")
