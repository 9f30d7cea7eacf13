"""What is trained in a storm: planted counts, a small net, and steps that wait.

A sample costs a wait instead of the processor: 32 members on a few cores then train as on as many
accelerators. Each life writes ``NODE.INC.stamps`` in ``--out``: a line when it is ready, and one
for each batch, with the time of the kernel's monotonic clock, which no fault sets, the steps and
the samples in the model.
"""

import argparse
import os
import socket
import time
from pathlib import Path

import psutil
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import paceline as pl
from paceline_experiments import machines


class Planted(nn.Module):
    """``seen``: how often each sample is in the model; ``net`` learns a function of its number."""

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(num_samples, dtype=torch.float64))
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).double()

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, a mean over the samples, and the net's part of it."""
        x = torch.stack([torch.sin(ids * (k + 1.0)) for k in range(4)], dim=1).double()
        error = self.net(x).squeeze(1) - torch.cos(ids * 0.1)
        learned = (error**2).mean()
        return learned - self.seen[ids].mean(), learned


def slowness(path: Path) -> float:
    """Return how many times as long as usual a sample takes here, now."""
    try:
        return float(path.read_text())
    except (FileNotFoundError, ValueError):  # it is not, or that is being written
        return 1.0


def stop_yielding() -> None:
    """From now on this worker, and those that run it, take part in the share of the processors."""
    if group := os.environ.get("STORM_YIELDING"):
        chain = psutil.Process().parents()
        machines.stop_yielding(Path(group), [os.getpid(), *(one.pid for one in chain)])


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--num-samples", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--sample-s", type=float, required=True)
    options = parser.parse_args()
    node, inc = os.environ["PACELINE_NODE"], os.environ["PACELINE_INC"]
    job = pl.init()
    model = Planted(options.num_samples)
    # Of a mean over a step each sample has its part: times their number it counts as one.
    planted = {"params": [model.seen], "lr": float(options.batch_size), "momentum": 0.0}
    learning = {"params": list(model.net.parameters()), "lr": 0.05}
    optimizer = torch.optim.SGD([planted, learning], momentum=0.9)
    job.prepare(model, optimizer)
    data = torch.utils.data.TensorDataset(torch.arange(options.num_samples))
    with (options.out / f"{node}.{inc}.stamps").open("w", buffering=1) as stamps:
        stop_yielding()
        print("ready", time.monotonic(), socket.gethostname(), os.getpid(), file=stamps)
        for (ids,) in job.batches(data, options.batch_size, options.epochs):
            samples = round(model.seen.sum().item())
            print("batch", time.monotonic(), job.step, samples, file=stamps)
            factor = slowness(options.out / f"{node}.slow")
            time.sleep(len(ids) * options.sample_s * factor)
            loss, learned = model(ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            job.log({"loss": learned.detach()})
        samples = round(model.seen.sum().item())
        print("end", time.monotonic(), job.step, samples, file=stamps)
    if job.is_chief:
        save_file(dict(job.state_dict()), options.out / "final.safetensors")


if __name__ == "__main__":
    main()
