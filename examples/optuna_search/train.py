"""A small classifier with two settings to be searched; it logs its loss on held-out data."""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import paceline as pl


def spirals(num_samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of three arms that wind around each other, and the arm of each."""
    generator = torch.Generator().manual_seed(seed)
    arm = torch.randint(3, (num_samples,), generator=generator)
    radius = torch.rand(num_samples, generator=generator)
    angle = 4 * radius + arm * (2 * torch.pi / 3)
    noise = 0.1 * torch.randn(num_samples, 2, generator=generator)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return points + noise, arm


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=150)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, options.width),
        nn.ReLU(),
        nn.Linear(options.width, options.width),
        nn.ReLU(),
        nn.Linear(options.width, 3),
    )
    job = pl.init()
    model, optimizer = job.prepare(model, torch.optim.Adam(model.parameters(), lr=options.rate))
    dataset = TensorDataset(*spirals(4096, seed=1))
    held_out, arms = spirals(1024, seed=2)
    for _ in job.epochs(options.epochs):
        for points, arm in job.batches(dataset, batch_size=128):
            cross_entropy(model(points), arm).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            job.log({"held_out/loss": cross_entropy(model(held_out), arms)})


if __name__ == "__main__":
    main()
