"""A script whose loop is a library's, and that keeps what it counts in the library's objects.

Each life writes what it held at its end.
"""

import argparse
import copy
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl

sys.path.insert(0, str(Path(__file__).parent / "site-packages"))
from engines import Engine, Mean, Stopper

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--die-at", type=int, default=0, help="rank 1, before the end of this step")
args = parser.parse_args()


def main() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(160, 4, generator=generator, dtype=torch.float64)
    target = features.sum(1, keepdim=True)
    job = pl.init()
    model = nn.Linear(4, 1).double()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    plain = DataLoader(TensorDataset(features, target), batch_size=16, shuffle=True)
    model, optimizer, loader = job.prepare(model, optimizer, plain)
    rates, history = Mean(), list[tuple[int, int, float, float]]()

    def compute(engine: Engine, batch: Any) -> float:
        model.train()
        is_due = job.rank == 1 and engine.state.iteration == args.die_at
        if is_due and not (args.out / "died").exists():
            (args.out / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(args.step_s)
        x, y = batch
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * 0.99**rates.count
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rates.update(optimizer.param_groups[0]["lr"])
        with torch.no_grad():
            for mean, param in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(param, 0.1)
        return loss.item()

    def measure(engine: Engine) -> None:
        model.eval()
        with torch.no_grad():
            losses = [nn.functional.mse_loss(one(features), target) for one in (model, average)]
        engine.state.metrics["loss"] = losses[0].item()
        state = engine.state
        history.append((state.epoch, state.iteration, *(one.item() for one in losses)))

    engine, stopper = Engine(compute), Stopper(2)
    engine.on_epoch(measure)
    engine.on_epoch(stopper)
    del stopper  # as of a handler that a script makes where it adds it
    engine.run(loader, 6)
    return {
        "weight": model.weight.detach().flatten().tolist(),
        "average": average.weight.flatten().tolist(),
        "history": [number for row in history for number in row],
        "counts": [engine.state.epoch, engine.state.iteration, rates.count, rates.total],
        "rank": [job.rank],
    }


args.out.mkdir(exist_ok=True)
end = main()
(args.out / f"{end.pop('rank')[0]}-{os.getpid()}.end").write_text(json.dumps(end))
