"""A model in two pipeline stages, each of two replicas of two tensor-parallel shards: 8 ranks.

It knows nothing of paceline. ``torchrun --nproc-per-node 8 mesh.py`` runs it, too. A rank that is
named in the file ``--slow`` (``RANK SECONDS`` in each line) sleeps so long in each of its forward
passes. Rank 0 notes its begin (0), and the end of each step (Unix time), in the file ``--log``.

A forward pass takes ``--pause-s`` and the time of its products: as if a device computed, while the
processor has little to do. So eight ranks fit on two cores.

In a step each rank sends 64 KiB to its peer of the tensor-parallel group (those of the second stage
128 KiB), 129 KiB to that of its replicas, and 64 KiB to that of the pipeline.
"""

import argparse
import os
import time
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

WIDTH, HIDDEN, BATCH, MICRO_BATCHES = 128, 256, 128, 2


class MeshBlock(nn.Module):
    """Two layers that are divided among the ranks of a tensor-parallel group."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, x + self.down(torch.relu(self.up(x))))


class Slowed(nn.Module):
    """A stage whose rank may be slow."""

    def __init__(self, stage: nn.Module, pause_s: float, trouble: Path | None) -> None:
        super().__init__()
        self.stage, self._trouble = stage, trouble
        self._pause_s = self._sleep_s = pause_s

    def look(self) -> None:
        self._sleep_s = self._pause_s
        if self._trouble is not None and self._trouble.exists():
            for line in self._trouble.read_text().splitlines():
                rank, seconds = line.split()
                if int(rank) == dist.get_rank():
                    self._sleep_s = self._pause_s + float(seconds)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self._sleep_s)
        return cast(Tensor, self.stage(x))


def average(gradient: Tensor | None, replicas: dist.ProcessGroup) -> None:
    """Take the mean of a gradient, or of this rank's shard of it, over the replicas."""
    shard = gradient.to_local() if isinstance(gradient, DTensor) else gradient
    assert shard is not None
    dist.all_reduce(shard, group=replicas)
    shard.div_(replicas.size())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--slow", type=Path)
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    parser.add_argument("--pause-s", type=float, default=0.02)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    place, last = mesh["pp"].get_local_rank(), mesh["pp"].size() - 1
    torch.manual_seed(place)
    block = MeshBlock()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(block, mesh["tp"], plan)
    slowed = Slowed(block, options.pause_s, options.slow)
    stage = PipelineStage(
        slowed, place, last + 1, torch.device("cpu"), group=mesh["pp"].get_group()
    )
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(slowed.parameters(), lr=0.01)
    with options.log.open("a") as log:
        if dist.get_rank() == 0:
            print(0, file=log, flush=True)
        for step in range(options.steps):
            slowed.look()
            torch.manual_seed(1000 * step + mesh["dp"].get_local_rank())
            data, target = torch.randn(BATCH, WIDTH), torch.zeros(BATCH, WIDTH)
            schedule.step(data) if place == 0 else schedule.step(target=target, losses=[])
            for parameter in slowed.parameters():
                average(parameter.grad, mesh["dp"].get_group())
            optimizer.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0:
                print(f"{time.time():.6f}", file=log, flush=True)
    print(f"rank {dist.get_rank()} of {os.environ['WORLD_SIZE']} is done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
