"""A model given to ``torch.compile`` before ``job.prepare`` or after it.

It has a table of ids, and two layers with one weight. Each life notes what it held at its end, and how many graphs the compiler made.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--backend", default="", help="of torch.compile; none: as in plain torch")
parser.add_argument("--after", action="store_true", help="compile what is prepared")
parser.add_argument("--sharded", action="store_true")
parser.add_argument("--sparse", action="store_true", help="servers hold the table's rows")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--step-s", type=float, default=0.0)
args = parser.parse_args()

NUM_IDS = 50


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(NUM_IDS, 4, sparse=args.sparse)
        self.first, self.last = nn.Linear(8 + 3 * 4, 16), nn.Linear(16, 1)
        self.middle, self.tied = nn.Linear(16, 16), nn.Linear(16, 16)
        self.tied.weight = self.middle.weight

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        hidden = self.first(torch.cat([x, self.table(ids).flatten(1)], 1)).tanh()
        return self.last(self.tied(self.middle(hidden).tanh()).tanh()).squeeze(1)


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend=args.backend) if args.backend else model


def whole(value: Tensor) -> Tensor:
    return getattr(value, "full_tensor", lambda: value)()


generator = torch.Generator().manual_seed(5)
x = torch.randn(512, 8, generator=generator, dtype=torch.float64)
ids = torch.randint(NUM_IDS, (512, 3), generator=generator)
data = TensorDataset(x, ids, x.sum(1) + (ids % 3).sum(1))
job = pl.init()
model: nn.Module = Net().double()
if args.sharded:
    fully_shard(model)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
if not args.after:
    model = compiled(model)
job.prepare(model, optimizer)
if args.after:
    model = compiled(model)
begun_s = time.monotonic()
for features, keys, target in job.batches(data, batch_size=32, epochs=args.epochs):
    nn.functional.mse_loss(model(features, keys), target).backward()
    optimizer.step()
    optimizer.zero_grad()
    if begun_s:
        print(f"compiled in {time.monotonic() - begun_s:.1f} s")
        begun_s = 0.0
    time.sleep(args.step_s)
found = job.evaluate(lambda batch: {"y": model(batch[0], batch[1])}, data, batch_size=64)["y"]
held = [whole(value) for _, value in sorted(job.state_dict().items())]
values = " ".join(value.double().sum().item().hex() for value in [*held, found])
graphs = counters["stats"]["unique_graphs"]
(args.out / f"{job.rank}-{os.getpid()}.end").write_text(f"{graphs} {values}")
