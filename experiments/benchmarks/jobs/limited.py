"""Trains a model as it is asked to on its standard input, with or without a limit of its memory.

limited.py LIBRARY PAGE WIDTH ROWS CORES

    train SECONDS   makes mini-batches for so long, one at least; their times, and the use
    limit BYTES     limits the memory, 0: no limit, and takes tensors home; how long it took
    renew 0         begins with parameters and an optimizer that are new
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.features.sharing.gate_page import GatePage
from paceline.features.sharing.process.boundary import MemoryBoundary
from paceline.features.sharing.process.cpu_memory import CpuMemory
from paceline.features.sharing.process.memory import MemoryUse


class Limited:
    """The training, and its memory if it has an allocator of ours."""

    def __init__(self, library: str, page: str, width: int, rows: int) -> None:
        self.memory = CpuMemory(Path(library)) if library else None
        if self.memory is not None:
            MemoryBoundary(GatePage.create(Path(page), "cpu:0", "auto"), self.memory).install()
        self.width, self.rows = width, rows
        self.renew(0.0)

    def renew(self, _amount: float) -> dict[str, Any]:
        layers = [
            layer for _ in range(8) for layer in (nn.Linear(self.width, self.width), nn.ReLU())
        ]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        return {}

    def train(self, seconds: float) -> dict[str, Any]:
        begin_s, steps_s = time.perf_counter(), list[float]()
        peak = spilled = 0
        while not steps_s or time.perf_counter() - begin_s < seconds:
            start_s = time.perf_counter()
            loss = self.model(torch.ones(self.rows, self.width)).square().mean()
            loss.backward()
            self.optimizer.step()
            if self.memory is not None and not seconds:
                use = self.memory.look()
                peak, spilled = max(peak, use.peak_bytes), spilled + use.spilled_bytes
            self.optimizer.zero_grad()
            steps_s.append(time.perf_counter() - start_s)
        return {"steps_s": steps_s, "peak_bytes": peak, "spilled_bytes": spilled}

    def limit(self, num_bytes: float) -> dict[str, Any]:
        assert self.memory is not None
        states = self.optimizer.state.values()
        tensors = [*self.model.parameters(), *(one for state in states for one in state.values())]
        start_s = time.perf_counter()
        self.memory.set_limit(int(num_bytes) or None)
        moved = self.memory.take_home(tensors)
        took_s = time.perf_counter() - start_s
        self.use: MemoryUse = self.memory.look()
        return {"took_s": took_s, "moved_bytes": moved}


def main(library: str, page: str, width: str, rows: str, cores: str) -> None:
    """Do what is asked, until nothing is."""
    os.sched_setaffinity(0, map(int, cores.split(",")))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    limited = Limited(library, page, int(width), int(rows))
    for line in sys.stdin:
        what, amount = line.split()
        asked = {"train": limited.train, "limit": limited.limit, "renew": limited.renew}[what]
        print(json.dumps(asked(float(amount))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
