"""Trains by torch's DDP, in turns with fail-slow's watch and without it.

Run by torchrun: it needs no job. Rank 0 writes the seconds of each pair of runs to ``--out``: a
JSON list of [watched, not watched].
"""

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.optim.optimizer as optimizers
from beside_ddp import MODELS
from torch.distributed import Work
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from paceline.base.numbering import Inc
from paceline.features.failslow.call_ring import CallRingWriter
from paceline.features.failslow.process.calls import CallProbe
from paceline.features.failslow.process.periods import CallPeriods
from paceline.runtime.probe.steps import StepProbe
from paceline.wire.step_ledger import StepLedgerWriter


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Do what a script's process does for each step and call, until the end of the block."""
    ledger = StepLedgerWriter(folder / "ledger", Inc(1))
    ring = CallRingWriter(folder / "calls", Inc(1))
    step, wait = 1, Work.wait
    periods = CallPeriods(lambda _took_s: None)
    calls = CallProbe(ring, lambda: step, periods.called)

    def over(start_s: float, took_s: float, ran_s: float, marks: int) -> None:
        nonlocal step
        periods.end()
        spent = {"server_s": 0.0, "message_s": 0.0}
        ledger.begin(step)
        own = {"bpt_s": took_s, "compute_s": ran_s, "wait_s": took_s - ran_s}
        ledger.write(step=step, t_start_s=start_s, samples=0, marks=marks, **own, **spent)
        ring.add_step(step, start_s, took_s)
        calls.step_over()
        step += 1

    hooks = dict(optimizers._global_optimizer_post_hooks)
    calls.install()
    StepProbe(over).install()
    try:
        yield
    finally:
        for library in calls._libraries:
            library._destroy()
        Work.wait = wait
        optimizers._global_optimizer_post_hooks.clear()
        optimizers._global_optimizer_post_hooks.update(hooks)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    make, data = MODELS[options.model]
    model = DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = data()[: options.batch_size]
    y = torch.zeros(len(x), dtype=torch.long)

    def train() -> float:
        dist.barrier()
        start_s = time.monotonic()
        for _ in range(options.steps):
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.monotonic() - start_s

    def train_watched() -> float:
        folder = options.out.parent / str(rank)
        folder.mkdir(exist_ok=True)
        with watched(folder):
            return train()

    train_watched(), train()
    pairs = []
    for number in range(options.pairs):
        runs: list[Callable[[], float]] = [train_watched, train]
        took = [run() for run in (runs if number % 2 else reversed(runs))]
        pairs.append(took if number % 2 else took[::-1])
    if rank == 0:
        options.out.write_text(json.dumps(pairs))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
