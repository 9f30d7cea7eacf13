"""The job of ``bookkeeping.py``: its own loop, with clocks around every entry into paceline.

Writes ``--out/metered.json``. Entries on the training thread: ``next`` of the batches and
``optimizer.step`` (the model has no table, so its forward and backward are torch's own).
"""

import argparse
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tiny import Ids, Tiny, _as_it_is

import paceline as pl
from paceline.runtime.data.loader import Loader
from paceline.runtime.holding.servers.model import Model
from paceline.runtime.process.exchange import Exchange

WARM_UP_STEPS = 200


Spent = tuple[float, ...]
"""Seconds: wall, cpu of this thread, and of the wall time: blocked, tensors."""


class Meter:
    """Time of each entry, and what of it went where."""

    def __init__(self) -> None:
        self.parts = {"blocked": 0.0, "tensors": 0.0}
        self.entries: dict[str, list[Spent]] = {}
        self._inside = False

    def around(self, name: str, call: Callable[[], Any]) -> Any:
        """Call, and note what was spent."""
        before = tuple(self.parts.values())
        cpu_s, wall_s = time.thread_time(), time.perf_counter()
        try:
            return call()
        finally:
            wall_s = time.perf_counter() - wall_s
            cpu_s = time.thread_time() - cpu_s
            parts = (now - then for now, then in zip(self.parts.values(), before, strict=True))
            self.entries.setdefault(name, []).append((wall_s, cpu_s, *parts))

    def watch(self) -> None:
        """Tell apart waiting (for a pull, for data) and tensors, in this thread."""
        self._watch(Exchange, "wait", lambda args: "blocked")
        self._watch(Loader, "get", lambda args: "" if args else "blocked")
        for name in ("load", "gradient_of", "whole_gradient"):
            self._watch(Model, name, lambda args: "tensors")

    def _watch(self, kind: type, name: str, part_of: Callable[[tuple[Any, ...]], str]) -> None:
        inner = getattr(kind, name)

        def outer(this: Any, *args: Any, **kwargs: Any) -> Any:
            mine = threading.current_thread() is threading.main_thread()
            part = "" if self._inside or not mine or kwargs.get("timeout_s") == 0 else part_of(args)
            if not part:
                return inner(this, *args, **kwargs)
            self._inside, start_s = True, time.perf_counter()
            try:
                return inner(this, *args, **kwargs)
            finally:
                self.parts[part] += time.perf_counter() - start_s
                self._inside = False

        setattr(kind, name, outer)


def train(
    batches: Iterator[torch.Tensor],
    model: torch.nn.Module,
    optimizer: Any,
    steps: int,
    compute: Callable[[], None],
) -> float:
    """Run so many steps; their wall time."""
    start_s = time.perf_counter()
    for _ in range(steps):
        ids = next(batches)
        model(ids).backward()
        compute()
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - start_s


def measure(
    batches: Iterator[torch.Tensor],
    model: torch.nn.Module,
    optimizer: Any,
    steps: int,
    compute: Callable[[], None],
) -> dict[str, list[Spent]]:
    """Run the same loop with clocks around the entries."""
    meter = Meter()
    meter.watch()
    for _ in range(steps):
        ids = meter.around("next", lambda: next(batches))
        model(ids).backward()
        compute()
        meter.around("step", optimizer.step)
        optimizer.zero_grad()
    return meter.entries


def computing(kind: str, step_s: float) -> Callable[[], None]:
    """Stands for compute: a sleep, or matrix products of a tenth of a millisecond or so each."""
    if kind == "sleep":
        return lambda: time.sleep(step_s)
    matrix = torch.rand(160, 160)

    def busy() -> None:
        until_s = time.perf_counter() + step_s
        while time.perf_counter() < until_s:
            matrix @ matrix

    return busy


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--pair-steps", type=int, required=True)
    parser.add_argument("--compute", choices=("sleep", "busy"), required=True)
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    compute = computing(options.compute, options.step_s)
    plain = Tiny(table=False)
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=1e-3)

    job = pl.init()
    model = Tiny(table=False)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    batches = iter(job.batches(_Floats(10**9), batch_size=64, collate_fn=_as_it_is))
    # Made before: the plain loop pays nothing for its data, so paceline's share is not flattered.
    ready = iter([torch.rand(64)] * (options.pairs + 1) * options.pair_steps)

    train(batches, model, optimizer, WARM_UP_STEPS, compute)
    pairs = []
    train(ready, plain, plain_optimizer, options.pair_steps, compute)
    for number in range(options.pairs):
        ours = (batches, model, optimizer, options.pair_steps, compute)
        theirs = (ready, plain, plain_optimizer, options.pair_steps, compute)
        first, second = (ours, theirs) if number % 2 else (theirs, ours)
        took = train(*first), train(*second)
        pairs.append(took if number % 2 else took[::-1])
    if options.profile:
        profile(lambda: measure(batches, model, optimizer, options.steps, compute))
    before = thread_cpu_s()
    entries = measure(batches, model, optimizer, options.steps, compute)
    threads = {n: (s - before.get(n, 0.0)) / options.steps for n, s in thread_cpu_s().items()}
    bare = measure(itertools.repeat(torch.rand(64)), plain, plain_optimizer, 500, compute)
    entries["torch's own step"] = bare["step"]
    result = {"entries": entries, "pairs": pairs, "thread_cpu_s": threads}
    (options.out / "metered.json").write_text(json.dumps(result))


def thread_cpu_s() -> dict[str, float]:
    """Cpu seconds of paceline's own threads in this process, so far."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("paceline")]
    return {
        thread.name: time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in ours
        if thread.ident is not None
    }


def profile(run: Callable[[], Any]) -> None:
    """Print where the training thread's cpu time goes (into the node's log)."""
    import cProfile
    import pstats

    profiler = cProfile.Profile(time.thread_time)
    profiler.runcall(run)
    stats = pstats.Stats(profiler)
    stats.sort_stats("tottime").print_stats(40)
    stats.sort_stats("cumtime").print_stats("paceline|data", 60)


class _Floats(Ids):
    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return super().__getitems__(indices).float()


if __name__ == "__main__":
    main()
