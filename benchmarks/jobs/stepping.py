"""Steps of emulated compute by all-reduce: under paceline, or under torchrun by DDP.

Each process appends the monotonic time of every step that is in its model to ``<out>/<pid>.f64``.
"""

import argparse
import os
import struct
import time
from pathlib import Path

import torch
from torch import nn

PARAMETERS = 1 << 18
"""1 MB of float32."""


class Still(nn.Module):
    """A vector whose gradient is known, and as much more as is asked for that is not trained."""

    def __init__(self, megabytes: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(PARAMETERS))
        self.register_buffer("rest", torch.ones(megabytes << 18))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a loss."""
        return self.weight.mean() + x.mean() * 0


def by_paceline(out: Path, step_s: float, megabytes: int) -> None:
    import paceline as pl
    from paceline.runtime.data.batch import TensorRows

    job = pl.init()
    model = Still(megabytes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    job.prepare(model, optimizer)
    data = TensorRows(x=torch.ones(4096))
    with (out / f"{os.getpid()}.f64").open("wb", buffering=0) as stamps:
        for batch in job.batches(data, 64, epochs=1_000_000):
            before = model.weight[0].item()
            model(batch.x).backward()
            time.sleep(step_s)  # stands for compute
            optimizer.step()
            optimizer.zero_grad()
            if model.weight[0].item() != before:  # a step that broke is done again
                stamps.write(
                    torch.tensor([time.monotonic()], dtype=torch.float64).numpy().tobytes()
                )


def by_torchrun(out: Path, step_s: float) -> None:
    from torch import distributed

    distributed.init_process_group("gloo")
    ddp = nn.parallel.DistributedDataParallel(Still())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    with (out / f"{os.getpid()}.f64").open("wb", buffering=0) as stamps:
        while True:
            ddp(torch.ones(32)).backward()
            time.sleep(step_s)  # stands for compute
            optimizer.step()
            optimizer.zero_grad()
            stamps.write(struct.pack("d", time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--megabytes", type=int, default=0)
    options = parser.parse_args()
    if "PACELINE_NODE" in os.environ:
        by_paceline(options.out, options.step_s, options.megabytes)
    else:
        by_torchrun(options.out, options.step_s)


if __name__ == "__main__":
    main()
