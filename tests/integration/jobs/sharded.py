"""Planted counts under FSDP2, and beside them a small net whose end can be compared.

Writes what jobs/grouped.py writes; in ``.final`` the model's full tensors.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from grouped import SLOW_S, Planted, die_once, freeze_once
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import paceline as pl


def flags() -> argparse.Namespace:
    """What the test asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--num-samples", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--per-worker", type=int, help="what makes up --batch-size")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--slow-until-told", action="store_true", help="by a file named hurry")
    parser.add_argument("--ballast", type=int, default=0, help="numbers that count the steps")
    parser.add_argument("--die", default="", help="node:batch at which its first life ends")
    parser.add_argument("--freeze", default="", help="node:batch at which it is stopped, once")
    parser.add_argument("--sleep", default="", help="node:batch at which its first life hangs")
    parser.add_argument("--lopsided", default="", help="node that builds another model")
    return parser.parse_args()


def build(options: argparse.Namespace, node: str) -> tuple[Planted, torch.optim.Optimizer]:
    """What is trained."""
    model = Planted(options.num_samples, options.batch_size, options.ballast)
    if node == options.lopsided:
        model.net.append(nn.Linear(1, 1).double())
    for layer in model.net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    # Of a mean over a step each sample has its part: times their number it counts as one.
    ballast = [] if model.ballast is None else [model.ballast]
    planted = {"params": [model.seen, *ballast], "lr": float(options.batch_size), "momentum": 0.0}
    learning = {"params": list(model.net.parameters()), "lr": 0.05}
    return model, torch.optim.SGD([planted, learning], momentum=0.9)


def main() -> None:
    """Train, then evaluate."""
    options = flags()
    node, inc = os.environ["PACELINE_NODE"], os.environ["PACELINE_INC"]
    name = f"{node}.{inc}"
    job = pl.init()
    model, optimizer = build(options, node)
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, [lambda _: 1.0, lambda step: 0.9 ** (step // 10)]
    )
    model, optimizer, rates = job.prepare(model, optimizer, rates)
    dataset = torch.utils.data.TensorDataset(torch.arange(options.num_samples))
    batch_size = None if options.per_worker else options.batch_size
    batches = job.batches(dataset, batch_size, options.epochs, batch_per_worker=options.per_worker)
    with (options.out / f"{name}.ids").open("wb", buffering=0) as ids_file:
        for number, (ids,) in enumerate(batches, 1):
            ids_file.write(ids.numpy().tobytes())
            if options.die == f"{node}:{number}":
                die_once(options.out)
            if options.freeze == f"{node}:{number}":
                freeze_once(options.out)
            if options.sleep == f"{node}:{number}" and not (options.out / "slept").exists():
                (options.out / "slept").touch()
                time.sleep(1000)
            slow = options.slow_until_told and not (options.out / "hurry").exists()
            time.sleep(SLOW_S if slow else options.step_s)
            model(ids).backward()
            job.clip_grad_norm_(1e6)
            optimizer.step()
            rates.step()
            optimizer.zero_grad()

    def look(batch: list[Tensor]) -> dict[str, Tensor]:
        (ids,) = batch
        return {"ids": ids, "even": ids % 2 == 0, "loss": model(ids).expand(len(ids))}

    save_file(job.evaluate(look, dataset, 100), options.out / f"{name}.evaluated")
    held = {key: value.full_tensor() for key, value in job.state_dict().items()}
    save_file(held, options.out / f"{name}.final")


if __name__ == "__main__":
    main()
