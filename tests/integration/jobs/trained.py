"""What the scripts of other libraries' training loops have in common."""

import argparse
from pathlib import Path

import torch
from grouped import Planted

Rates = torch.optim.lr_scheduler.LRScheduler


def flags() -> argparse.Namespace:
    """What the test asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--num-samples", type=int, default=1000)
    parser.add_argument("--per-device", type=int, default=16)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--die", default="")
    return parser.parse_args()


def learners(model: Planted) -> tuple[torch.optim.Optimizer, Rates]:
    """An optimizer by which each sample counts as one, and its schedule."""
    learning = {"params": list(model.net.parameters()), "lr": 0.05}
    optimizer = torch.optim.SGD(
        [{"params": [model.seen], "lr": 64.0, "momentum": 0.0}, learning], momentum=0.9
    )
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, [lambda _: 1.0, lambda step: 0.9 ** (step // 10)]
    )
    return optimizer, rates
