"""Planted counts and a net beside them that learns, of whose end every bit matters.

With ``--with`` the net is trained with what a life of a worker may lose: a schedule, momentum,
dropout, augmentation (random numbers that the data set draws). ``seen`` counts, as a check of its
own, how often each sample is in the model. Every process writes ``--out/<node>.<inc>.final``.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import paceline as pl

INGREDIENTS = ("schedule", "momentum", "dropout", "augmentation")
WIDTH, HIDDEN = 4, 32


class Learned(nn.Module):
    """``seen``: how often each sample is in the model; ``net`` learns."""

    def __init__(self, num_samples: int, dtype: torch.dtype, dropout: float) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(num_samples, dtype=torch.float64))
        self.net = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Dropout(dropout), nn.Linear(HIDDEN, 1)
        ).to(dtype)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """Return a loss, a mean over the samples."""
        error = self.net(x).squeeze(1) - torch.cos(ids * 0.1).to(x.dtype)
        return (error**2).mean().double() - self.seen[ids].mean()


class Samples(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Numbered samples, to which noise is added as transforms of torchvision do: torch's own."""

    def __init__(self, num_samples: int, dtype: torch.dtype, noise: float) -> None:
        self._num, self._dtype, self._noise = num_samples, dtype, noise

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.sin(index * torch.arange(1.0, WIDTH + 1, dtype=torch.float64))
        if self._noise:
            x += self._noise * torch.randn(WIDTH, dtype=torch.float64)
        return x.to(self._dtype), torch.tensor(index)


def main() -> None:
    """Train as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--with", dest="ingredients", nargs="*", default=[], choices=INGREDIENTS)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--num-samples", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--step-s", type=float, default=0.0, help="of a batch")
    parser.add_argument("--loaders", type=int, default=0, help="processes that read")
    options = parser.parse_args()
    has = {name: name in options.ingredients for name in INGREDIENTS}
    dtype = getattr(torch, options.dtype)
    name = f"{os.environ.get('PACELINE_NODE', 'alone')}.{os.environ.get('PACELINE_INC', '0')}"

    job = pl.init()
    model = Learned(options.num_samples, dtype, 0.3 if has["dropout"] else 0.0)
    optimizers = [
        # Of a mean over a step each sample has its part: times their number it counts as one.
        torch.optim.SGD([model.seen], lr=float(options.batch_size)),
        torch.optim.SGD(model.net.parameters(), lr=0.05, momentum=0.9 if has["momentum"] else 0.0),
    ]
    steps = options.num_samples * options.epochs // options.batch_size
    # Its rate follows from the one before and from the number of the step.
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizers[1], steps)]
    schedulers = schedulers if has["schedule"] else []
    job.prepare(model, optimizers, schedulers)
    data = Samples(options.num_samples, dtype, 0.1 if has["augmentation"] else 0.0)
    for x, ids in job.batches(
        data, options.batch_size, options.epochs, num_workers=options.loaders
    ):
        model(x, ids).backward()
        time.sleep(options.step_s)  # stands for compute, so that faults fall into a step
        for part in (*optimizers, *schedulers):
            part.step()
        model.zero_grad()
    save_file(dict(job.state_dict()), options.out / f"{name}.final")


if __name__ == "__main__":
    main()
