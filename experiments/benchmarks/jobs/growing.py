"""A job whose table grows: each new key has a row of 256 bytes.

python growing.py --samples N [--keys all|half|burst] [--pause-s X] [--balloon MIB]

``half`` of the keys are new, or a tenth of them but for a ``burst`` in which all are, in the third
quarter of the data. The worker pauses after each step. With a balloon it takes so much memory
after some steps.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import Dataset

import paceline as pl

MULTIPLIER = 0x9E3779B1
OLD = 1000
"""Keys that are not new are among so many."""


class Keys(Dataset):
    """Keys, by index."""

    def __init__(self, count: int, kind: str) -> None:
        self._count, self._kind = count, kind

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        at = torch.tensor(indices)
        keys = at * MULTIPLIER
        in_burst = (at > 0.5 * self._count) & (at < 0.75 * self._count)
        new = {"all": 1.0, "half": 0.5, "burst": torch.where(in_burst, 1.0, 0.1)}[self._kind]
        is_new = (keys >> 12) % 1000 < 1000 * torch.as_tensor(new)
        return list(torch.where(is_new, keys, keys % OLD))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--keys", default="all")
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--balloon", type=int, default=0)
    options = parser.parse_args()
    job = pl.init()
    model = nn.Sequential(pl.Embedding("keys", dim=64), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = job.prepare(model, optimizer)
    balloon = []
    data = Keys(options.samples, options.keys)
    for number, keys in enumerate(job.batches(data, batch_size=512)):
        if number == 10 and options.balloon:
            balloon.append(torch.ones(options.balloon << 20, dtype=torch.uint8))
        model(keys).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(options.pause_s)


if __name__ == "__main__":
    main()
