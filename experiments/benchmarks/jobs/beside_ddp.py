"""Trains one model by ``job.batches`` and another, its equal, by torch's DDP, in turns.

Both in the same processes, on the same data. The chief writes the seconds of each run to ``--out``:
a JSON list of [paceline, DDP], one for each pair.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import paceline as pl
from paceline.runtime.data.sources.tensor_rows import TensorRows

SAMPLES = 8192


class Block(nn.Module):
    """A residual block of two 3x3 convolutions."""

    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(ins, outs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outs),
            nn.ReLU(),
            nn.Conv2d(outs, outs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outs),
        )
        self.short = nn.Sequential()
        if stride > 1 or ins != outs:
            self.short = nn.Sequential(
                nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return as many channels as the block makes."""
        return torch.relu(self.body(x) + self.short(x))


def resnet() -> nn.Module:
    """ResNet-18 for images of 32 x 32: 11.2 M parameters."""
    blocks: list[nn.Module] = []
    for ins, outs, stride in [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]:
        blocks += [Block(ins, outs, stride), Block(outs, outs, 1)]
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*stem, *blocks, *head)


class Transformer(nn.Module):
    """Four layers of width 256 over 64 tokens: 5.3 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8192, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return ten logits."""
        return self.head(self.layers(self.embed(x)).mean(dim=1))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "resnet": (resnet, lambda: torch.randn(SAMPLES // 16, 3, 32, 32)),
    "transformer": (Transformer, lambda: torch.randint(0, 8192, (SAMPLES, 64))),
}


def repeated(x: Tensor, y: Tensor, batch_size: int, rank: int, size: int) -> Iterator[Tensor]:
    """Batches of torch's own loader and sampler, for ever."""
    data = torch.utils.data.TensorDataset(x, y)
    sampler = torch.utils.data.DistributedSampler(data, size, rank)
    while True:
        yield from torch.utils.data.DataLoader(data, batch_size, sampler=sampler, drop_last=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--theirs-first", action="store_true", help="built, and run")
    options = parser.parse_args()

    job = pl.init()
    make, data = MODELS[options.model]
    ours, theirs = make(), make()
    if options.theirs_first:
        ours, theirs = theirs, ours
    theirs.load_state_dict(ours.state_dict())
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.01, momentum=0.9)
    job.prepare(ours, optimizer)
    torch.manual_seed(0)
    x = data()
    y = torch.randint(0, 10, (len(x),))

    size, rank = int(os.environ["PACELINE_NUM_WORKERS"]), int(os.environ["PACELINE_RANK"])
    store = distributed.FileStore(str(options.out.with_suffix(".store")), size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    ddp = DistributedDataParallel(theirs, gradient_as_bucket_view=False)
    other = torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=0.9)
    plain = repeated(x, y, options.batch_size // size, rank, size)
    batches = iter(job.batches(TensorRows(x=x, y=y), options.batch_size, epochs=1_000_000))

    def run_ours() -> float:
        begun_s = time.perf_counter()
        for _ in range(options.steps):
            batch = next(batches)
            cross_entropy(ours(batch.x), batch.y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - begun_s

    def run_theirs() -> float:
        begun_s = time.perf_counter()
        for _ in range(options.steps):
            rows, labels = next(plain)
            cross_entropy(ddp(rows), labels).backward()
            other.step()
            other.zero_grad()
        return time.perf_counter() - begun_s

    found: list[list[float]] = []
    for number in range(options.pairs + 1):
        ours_first = number % 2 == options.theirs_first
        took = []
        for run in [run_ours, run_theirs] if ours_first else [run_theirs, run_ours]:
            distributed.barrier()
            took.append(run())
        if number:  # the first one warms up
            found.append(took if ours_first else took[::-1])
    if job.is_chief:
        fresh = options.out.with_suffix(".fresh")
        fresh.write_text(json.dumps(found))
        fresh.rename(options.out)
    distributed.barrier()
    distributed.destroy_process_group()
    batches.close()


if __name__ == "__main__":
    main()
