"""Short steps that compute on a processor, by plain torch, DDP or paceline, as many as are wanted.

The first rank connects to the socket ``--turns``. For each line ``MILLISECONDS STEPS`` that comes
from there, the script makes so many steps, each of which computes so long, and answers with the
seconds of all, and the processor seconds of its training thread. Other ranks follow: they share the
steps.
"""

import argparse
import json
import socket
import time
from collections.abc import Iterator

import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

SAMPLES, FEATURES, BATCH = 65536, 256, 64
WARM = 3
"""Steps before those that are timed."""


class Scaled(nn.Module):
    """A layer of two small parameters, which costs little but what every parameter costs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(FEATURES))
        self.bias = nn.Parameter(torch.zeros(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, x, self.weight)


def compute(milliseconds: float) -> None:
    """Compute for so long, by the clock of this thread's processor time."""
    end_s = time.thread_time() + milliseconds / 1000
    matrix = torch.ones(64, 64)
    while time.thread_time() < end_s:
        matrix @ matrix


def rows() -> tuple[Tensor, Tensor]:
    """Data: the same in all arms."""
    chance = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, FEATURES, generator=chance), torch.rand(
        SAMPLES, 1, generator=chance
    )


def plain(rank: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches as a user would write them by hand, for ever."""
    x, y = rows()
    share = BATCH // size
    for epoch in range(1 << 30):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        for begin in range(rank * share, SAMPLES - BATCH + 1, BATCH):
            taken = order[begin : begin + share]
            yield x[taken], y[taken]


def by_paceline(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Iterator, int]:
    """Batches of paceline, and our rank."""
    import paceline as pl
    from paceline.runtime.data.sources.tensor_rows import TensorRows

    job = pl.init()
    job.prepare(model, optimizer)
    x, y = rows()
    batches = iter(job.batches(TensorRows(x=x, y=y), BATCH, epochs=1_000_000))
    return ((batch.x, batch.y) for batch in batches), 0 if job.is_chief else 1


def main() -> None:
    """Train for as long as there are turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", required=True)
    parser.add_argument("--arm", required=True)
    parser.add_argument("--by", choices=("torch", "ddp", "paceline"), required=True)
    parser.add_argument("--layers", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    more = [Scaled() for _ in range(options.layers)]
    model: nn.Module = nn.Sequential(
        nn.Linear(FEATURES, FEATURES), nn.ReLU(), *more, nn.Linear(FEATURES, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if options.by == "paceline":
        batches, rank = by_paceline(model, optimizer)
    else:
        rank, size = 0, 1
        if options.by == "ddp":
            distributed.init_process_group("gloo")
            rank, size = distributed.get_rank(), distributed.get_world_size()
            model = DistributedDataParallel(model)
        batches = plain(rank, size)
    # Of what all compute in a step the first rank tells the others, in a cell of shared memory.
    length = torch.from_file(options.turns + "." + options.arm, shared=True, size=1)

    def step() -> None:
        x, y = next(batches)
        mse_loss(model(x), y).backward()
        compute(length.item())
        optimizer.step()
        optimizer.zero_grad()

    while rank:
        step()
    with socket.socket(socket.AF_UNIX) as turns:
        turns.connect(options.turns)
        lines = turns.makefile("rw")
        step()
        print(options.arm, file=lines, flush=True)
        for line in lines:
            milliseconds, steps = line.split()
            length[0] = float(milliseconds)
            for _ in range(WARM):
                step()
            before_s, before_cpu_s = time.perf_counter(), time.thread_time()
            for _ in range(int(steps)):
                step()
            took = [time.perf_counter() - before_s, time.thread_time() - before_cpu_s]
            print(json.dumps(took), file=lines, flush=True)


if __name__ == "__main__":
    main()
