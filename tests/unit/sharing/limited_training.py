"""Trains a model several times while the limit of its memory changes; tells each use as JSON.

limited_training.py LIBRARY STEPS free|raised|random...
"""

import json
import random
import sys
from pathlib import Path

import torch
from torch import nn

from paceline.features.sharing.process.cpu_memory import CpuMemory
from paceline.features.sharing.process.memory import MemoryUse

WIDTH, ROWS = 64, 256
LIMIT = 800_000
"""Below the peak without a limit, above what lives across steps."""
LEAST = 300_000


def main(library: str, steps: str, *arms: str) -> None:
    """Train once for each arm."""
    old = torch.ones(1000)  # of torch's own allocator, which frees it
    memory = CpuMemory(Path(library))
    before = memory.look().device_bytes
    told = {}
    for arm in arms:
        losses, looks = train(memory, arm, int(steps))
        told[arm] = {"limit": LIMIT, "losses": losses, "looks": looks}
    del old
    left = memory.look()
    told["left"] = {"device": left.device_bytes - before, "host": left.host_bytes}
    print(json.dumps(told))


def train(memory: CpuMemory, arm: str, steps: int) -> tuple[list[str], list[dict[str, float]]]:
    """Train; losses, and the use of each step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [layer for _ in range(8) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())
    drawn, losses, looks = random.Random(0), [], []
    for step in range(steps):
        optimizer.zero_grad()
        in_effect = _set_limit(memory, arm, step, drawn)
        if arm != "free" and memory.look().host_bytes:
            states = optimizer.state.values()
            memory.take_home([*model.parameters(), *(t for one in states for t in one.values())])
        loss = (model(torch.randn(ROWS, WIDTH)) - 1.0).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        looks.append(_told(memory.look(), in_effect))
    return losses, looks


def _set_limit(memory: CpuMemory, arm: str, step: int, drawn: random.Random) -> int:
    match arm:
        case "raised":
            return memory.set_limit(LIMIT if 3 <= step < 6 else None)
        case "random":
            return memory.set_limit(drawn.choice((None, drawn.randrange(LEAST, 2 * LIMIT))))
        case _:
            return memory.set_limit(None)


def _told(use: MemoryUse, limit: int) -> dict[str, float]:
    return {
        "limit": limit,
        "peak": use.peak_bytes,
        "host": use.host_bytes,
        "spilled": use.spilled_bytes,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
