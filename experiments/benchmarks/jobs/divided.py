"""Trains a small residual net on images, by ``job.batches`` or (``--ddp``) by torch's DDP.

Each worker writes to ``--out`` when it began and when it had its last update, ``<rank>.f64``
(monotonic clock); all there is to a step is computed.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from beside_ddp import Block
from torch import Tensor, distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import paceline as pl
from paceline.runtime.data.sources.tensor_rows import TensorRows


def net() -> nn.Module:
    """Three residual blocks for images of 32 x 32: 0.08 M parameters, 24 MFLOP forward."""
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def images(number: int) -> tuple[Tensor, Tensor]:
    """Make images, the same for all."""
    torch.manual_seed(0)
    return torch.randn(number, 3, 32, 32), torch.randint(0, 10, (number,))


def train(out: Path, number: int, batch_size: int, epochs: int) -> None:
    """Train as one worker of a job of paceline."""
    job = pl.init()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    job.prepare(model, optimizer)
    x, y = images(number)
    begun_s = 0.0
    for batch in job.batches(TensorRows(x=x, y=y), batch_size, epochs):
        begun_s = begun_s or time.monotonic()
        cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()
        optimizer.zero_grad()
        ended_s = time.monotonic()
    note(out, os.environ["PACELINE_RANK"], begun_s, ended_s)


def train_ddp(out: Path, number: int, batch_size: int, epochs: int) -> None:
    """Train as one worker of torch's own."""
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = TensorDataset(*images(number))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size // distributed.get_world_size(), sampler=sampler)
    distributed.barrier()
    begun_s = time.monotonic()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    note(out, os.environ["RANK"], begun_s, time.monotonic())
    distributed.barrier()
    distributed.destroy_process_group()


def note(out: Path, rank: str, begun_s: float, ended_s: float) -> None:
    """Write when a worker trained."""
    times = torch.tensor([begun_s, ended_s], dtype=torch.float64)
    fresh = out / f"{rank}.fresh"
    fresh.write_bytes(times.numpy().tobytes())
    fresh.rename(out / f"{rank}.f64")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, required=True, help="of an epoch")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--ddp", action="store_true")
    options = parser.parse_args()
    work = train_ddp if options.ddp else train
    work(options.out, options.images, options.batch_size, options.epochs)


if __name__ == "__main__":
    main()
