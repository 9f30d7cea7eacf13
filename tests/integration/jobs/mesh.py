"""A model in two pipeline stages, each of two replicas of two tensor-parallel shards: 8 ranks.

It knows nothing of paceline. ``torchrun --nproc-per-node 8 mesh.py`` runs it, too. A rank that is
named in the file ``--slow`` (``RANK SECONDS`` in each line) sleeps so long in each of its forward
passes. A test makes ranks slow by writing the file.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

WIDTH, HIDDEN, BATCH, MICRO_BATCHES = 64, 256, 32, 4


class Block(nn.Module):
    """Two layers that are divided among the ranks of a tensor-parallel group."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Slowed(nn.Module):
    """A stage whose rank may be slow."""

    def __init__(self, stage: nn.Module, trouble: Path | None) -> None:
        super().__init__()
        self.stage, self._trouble, self.sleep_s = stage, trouble, 0.0

    def look(self) -> None:
        self.sleep_s = 0.0
        if self._trouble is not None and self._trouble.exists():
            for line in self._trouble.read_text().splitlines():
                rank, seconds = line.split()
                if int(rank) == dist.get_rank():
                    self.sleep_s = float(seconds)

    def forward(self, x: Tensor) -> Tensor:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return self.stage(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--slow", type=Path)
    parser.add_argument("--pause-s", type=float, default=0.005)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    place, last = mesh["pp"].get_local_rank(), mesh["pp"].size() - 1
    torch.manual_seed(place)
    block = Block()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(block, mesh["tp"], plan)
    slowed = Slowed(block, options.slow)
    stage = PipelineStage(
        slowed, place, last + 1, torch.device("cpu"), group=mesh["pp"].get_group()
    )
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(slowed.parameters(), lr=0.01)
    replicas = mesh["dp"].get_group()
    for step in range(options.steps):
        slowed.look()
        time.sleep(options.pause_s)
        torch.manual_seed(1000 * step + mesh["dp"].get_local_rank())
        data, target = torch.randn(BATCH, WIDTH), torch.zeros(BATCH, WIDTH)
        if place == 0:
            schedule.step(data)
        else:
            losses: list[Tensor] = []
            schedule.step(target=target, losses=losses)
        for parameter in slowed.parameters():
            grad = (
                parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
            )
            dist.all_reduce(grad, group=replicas)
            grad.div_(2)
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {dist.get_rank()} of {os.environ['WORLD_SIZE']} is done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
