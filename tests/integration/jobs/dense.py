"""Trains a small dense model; the chief writes it, and what it computes of all samples, to ``--out``."""

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import paceline as pl

NUM_SAMPLES = 700
BATCH_SIZE = 64
"""The last step of an epoch is smaller."""


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--half", action="store_true", help="forward in bfloat16")
    options = parser.parse_args()

    generator = torch.Generator().manual_seed(3)
    x = torch.randn(NUM_SAMPLES, 16, generator=generator)
    dataset = pl.TensorRows(x=x, y=torch.sin(x.sum(1)))
    job = pl.init()
    layers = nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.8)
    model, optimizer, rates = job.prepare(model, optimizer, rates)
    for batch in job.batches(dataset, BATCH_SIZE, epochs=3):
        with torch.autocast("cpu", torch.bfloat16, enabled=options.half):
            predicted = model(batch.x).squeeze(1)
            loss = mse_loss(predicted, batch.y)
        assert predicted.dtype == (torch.bfloat16 if options.half else torch.float32)
        loss.backward()
        job.clip_grad_norm_(1.0)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
    model.eval()

    def predict(batch: Any) -> dict[str, Tensor]:
        return {"predicted": model(batch.x)}

    held = job.state_dict() | job.evaluate(predict, dataset, 100)
    if job.is_chief:
        save_file(held, options.out)


if __name__ == "__main__":
    main()
