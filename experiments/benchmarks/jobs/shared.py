"""A script that waits for its input and computes, and notes its losses; it knows no paceline.

shared.py NOTES STEPS WAIT_S [ROWS WIDTH [BACKEND]]

``BACKEND``: has torch compile the model.
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waiting(Dataset):  # type: ignore[type-arg]
    """Samples that come after a while."""

    def __init__(self, wait_s: float, rows: int, width: int) -> None:
        self.wait_s, self.rows, self.width = wait_s, rows, width

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.wait_s)
        return torch.full((self.rows, self.width), float(index % 7) / 7)


def main(
    notes: str, steps: str, wait_s: str, rows: str = "128", width: str = "256", backend: str = ""
) -> None:
    """Train; with the sizes that are the defaults, a batch takes some 10 ms of a core."""
    torch.manual_seed(0)
    wide = int(width)
    layers = [layer for _ in range(6) for layer in (nn.Linear(wide, wide), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(wide, 1))
    optimizer = torch.optim.Adam(model.parameters())
    if backend:
        model = torch.compile(model, backend=backend)
    loader = DataLoader(Waiting(float(wait_s), int(rows), wide), batch_size=None)
    with Path(notes).open("a", buffering=1) as file:
        for number, batch in enumerate(loader):
            if number == int(steps):
                break
            optimizer.zero_grad()
            loss = (model(batch) - batch.mean()).square().mean()
            loss.backward()
            optimizer.step()
            file.write(f"{loss.item():.17g}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
