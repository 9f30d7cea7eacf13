"""A script whose phases need memory differently; it notes each step, and knows no paceline.

phases.py NOTES CYCLES PHASE...

Phases: ``train:STEPS:MIB`` trains, ``decode:STEPS:MIB`` evaluates without mini-batches, each step
with tensors of so many MiB; ``idle:SECONDS`` computes nothing. A script that begins again goes on
behind the steps that it has noted, with a model that is new.
"""

import os
import sys
import time
from pathlib import Path
from typing import TextIO

import torch
from torch import nn

WIDTH, ROWS = 64, 64
WAIT = float(os.environ.get("PHASES_WAIT", "1"))
"""A part of all waits."""
STEP_S = 0.01
"""A step waits so long, as if for its input."""
PIECE = 1 << 20


class Trainer:
    """The model and where its steps are noted."""

    def __init__(self, notes: TextIO, noted: int) -> None:
        self.notes, self.number = notes, noted
        layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def train(self, mebibytes: int) -> None:
        self.optimizer.zero_grad()
        loss = self._loss(mebibytes)
        loss.backward()
        self.optimizer.step()
        self._note(loss)

    @torch.no_grad()
    def decode(self, mebibytes: int) -> None:
        self._note(self._loss(mebibytes))

    def _loss(self, mebibytes: int) -> torch.Tensor:
        time.sleep(WAIT * STEP_S)
        held = [torch.empty(PIECE, dtype=torch.uint8) for _ in range(mebibytes)]
        held[0].fill_(self.number % 7)
        batch = torch.full((ROWS, WIDTH), float(held[0][0]) / 7)
        return (self.model(batch) - batch.mean()).square().mean()

    def _note(self, loss: torch.Tensor) -> None:
        self.number += 1
        self.notes.write(f"{loss.item():.17g}\n")


def main(notes: str, cycles: str, *phases: str) -> None:
    """Go through all phases, several times."""
    torch.manual_seed(0)
    with Path(notes).open("a", buffering=1) as file:
        noted = len(Path(notes).read_text().splitlines())
        trainer, number = Trainer(file, noted), 0
        for _ in range(int(cycles)):
            for phase in phases:
                kind, amount, *more = phase.split(":")
                if kind == "idle":
                    time.sleep(WAIT * float(amount) * (number >= noted))
                    continue
                step = trainer.train if kind == "train" else trainer.decode
                for _ in range(int(amount)):
                    if number >= noted:
                        step(int(more[0]))
                    number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
