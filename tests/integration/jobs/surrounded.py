"""Writes down in what surroundings each life runs; what it trains on depends on the hash seed.

Appends a line of JSON for each life to ``--out/lives``.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch

import paceline as pl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-s", type=float, default=0.05)
options = parser.parse_args()

words = [f"w{number}" for number in range(50)]
order = list(set(words))
numbers = {word: number for number, word in enumerate(order)}
ids = torch.tensor([numbers[words[i % 50]] for i in range(640)])
wanted = torch.tensor([float(i % 50) for i in range(640)])
job = pl.init()
found = {
    "order": order,
    "zone": time.tzname,
    "language": os.environ.get("LANG"),
    "threads": torch.get_num_threads(),
    "foreign": sorted({"RANK", "WORLD_SIZE", "MASTER_ADDR"} & os.environ.keys()),
}
with (options.out / "lives").open("a") as file:
    file.write(json.dumps(found) + "\n")
model = torch.nn.Embedding(50, 1)
torch.nn.init.zeros_(model.weight)
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), 0.5))
for _ in job.epochs(4):
    for some, value in job.batches(torch.utils.data.TensorDataset(ids, wanted), batch_size=32):
        ((model(some)[:, 0] - value) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(options.step_s)
loss = float(((model(ids)[:, 0] - wanted) ** 2).mean())
(options.out / f"loss.{job.rank}").write_text(loss.hex())
