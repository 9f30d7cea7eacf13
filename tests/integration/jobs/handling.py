"""A script with a SIGTERM handler of its own, which leaves the loop after the step in hand.

Each life of each rank writes its last step to ``--out/RANK.left``. ``--shard`` for strategy fsdp.
"""

import argparse
import signal
import time
from pathlib import Path
from types import FrameType

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--samples", type=int, default=6400)
parser.add_argument("--shard", action="store_true")
parser.add_argument("--break-at", type=int, default=0, help="Step after which the loop is left.")
parser.add_argument("--no-backward", action="store_true")
parser.add_argument("--zeros", action="store_true", help="Gradients are zeroed, not removed.")
parser.add_argument("--slow-s", type=float, default=0.0, help="Of rank 0, in its 20th step.")
options = parser.parse_args()
told: list[int] = []


def leave(number: int, _frame: FrameType | None) -> None:
    """Have the loop end after the step in hand."""
    told.append(number)


signal.signal(signal.SIGTERM, leave)
x = torch.randn(options.samples, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
job = pl.init()
model: nn.Module = nn.Linear(4, 4)
if options.shard:
    fully_shard(model)
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
for features, target in job.batches(data, batch_size=16):
    if options.slow_s and job.rank == 0 and job.step == 19:
        time.sleep(options.slow_s)
    loss = nn.functional.mse_loss(model(features).mean(1, keepdim=True), target)
    if not options.no_backward:
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=not options.zeros)
    time.sleep(0.03)
    if told or job.step == options.break_at:
        break
(options.out / f"{job.rank}.left").write_text(str(job.step))
