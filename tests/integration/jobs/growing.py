"""A job whose table grows with each sample: each key is new.

python growing.py --samples N [--balloon MIB]: the worker takes so much memory after some steps.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import Dataset

import paceline as pl


class Keys(Dataset):
    """Keys that occur once."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index * 0x9E3779B1)

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return list(torch.tensor(indices) * 0x9E3779B1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--balloon", type=int, default=0)
    options = parser.parse_args()
    job = pl.init()
    model = nn.Sequential(pl.Embedding("keys", dim=64), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = job.prepare(model, optimizer)
    balloon = []
    for number, keys in enumerate(job.batches(Keys(options.samples), batch_size=512)):
        if number == 10 and options.balloon:
            balloon.append(torch.ones(options.balloon << 20, dtype=torch.uint8))
        model(keys).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
