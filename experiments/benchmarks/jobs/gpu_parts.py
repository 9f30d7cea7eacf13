"""What sharing costs one process of a GPU: its memory under a limit, and its gate.

gpu_parts.py memory|gate FIGURES QUICK

Writes figures as JSON.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from shared_gpu import LENGTH, ROWS, WIDTH, model_of
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from paceline.features.sharing.compiled import CUDA_HOST, compiled
from paceline.features.sharing.gate_page import GatePage
from paceline.features.sharing.process.cuda import CudaDevice
from paceline.features.sharing.process.cuda_memory import CudaMemory
from paceline.features.sharing.process.gate import Gate
from paceline.features.sharing.process.hooks import GatePoints
from paceline.features.sharing.wire import GateMode

GIB, MIB = 1 << 30, 1 << 20
PARTS = (1.0, 0.9, 0.75, 0.5, 0.25)
"""Limits, as parts of what the model needs without one."""


def timed(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start_s = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start_s


class Training:
    """A model whose activations are most of its memory; with Adam."""

    def __init__(self, rows: int) -> None:
        torch.manual_seed(0)
        layers = [layer for _ in range(4) for layer in (nn.Linear(2048, 2048), nn.GELU())]
        self.model = nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.rows = rows
        self.losses: list[float] = []

    def step(self) -> None:
        generator = torch.Generator("cuda").manual_seed(len(self.losses))
        batch = torch.randn(self.rows, 2048, device="cuda", generator=generator)
        loss = (self.model(batch) - batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.optimizer.zero_grad()

    def tensors(self) -> Iterator[torch.Tensor]:
        yield from self.model.parameters()
        for state in self.optimizer.state.values():
            yield from (one for one in state.values() if torch.is_tensor(one))


def speed_by_limit(memory: CudaMemory, rows: int, steps: int) -> dict[str, Any]:
    """Measure what a step takes under limits, and whether all losses stay the same."""
    found, same = {}, []
    for part in PARTS:
        torch.cuda.empty_cache()
        job = Training(rows)
        for _ in range(3):
            job.step()
        memory.look()
        job.step()
        peak = memory.look().peak_bytes
        limit = memory.set_limit(int(part * peak) if part < 1 else None)
        memory.look()  # what lay there before the limit does not count
        took_s = [timed(job.step) for _ in range(steps)]
        use = memory.look()
        found[f"{part:.0%}"] = {
            "limit_mib": int(part * peak) >> 20,
            "in_effect_mib": min(limit, peak) >> 20,
            "step_ms": 1e3 * median(took_s),
            "peak_mib": use.peak_bytes >> 20,
            "spilled_mib": use.spilled_bytes >> 20,
        }
        same.append(job.losses)
        memory.set_limit(None)
        del job
    return {"by_limit": found, "equal_losses": all(losses == same[0] for losses in same)}


def back_home(memory: CudaMemory, rows: int) -> dict[str, Any]:
    """Mini-batches after a raise until nothing lies in the host's memory, parameters included."""
    torch.cuda.empty_cache()
    memory.set_limit(64 * MIB)
    job = Training(rows)
    under_s = [timed(job.step) for _ in range(3)]
    before = memory.look().host_bytes
    memory.set_limit(None)
    start_s, moved = time.perf_counter(), memory.take_home(job.tensors())
    took_s = time.perf_counter() - start_s
    mini_batches, after_s = 0, []
    while mini_batches < 10:
        mini_batches += 1
        after_s.append(timed(job.step))
        if memory.look().host_bytes == 0:
            break
    after_s += [timed(job.step) for _ in range(5)]
    return {
        "host_mib": before >> 20,
        "moved_mib": moved >> 20,
        "move_ms": 1e3 * took_s,
        "mini_batches": mini_batches,
        "step_ms_under": 1e3 * median(under_s),
        "step_ms_after": 1e3 * median(after_s[-5:]),
    }


def changes(memory: CudaMemory, num_bytes: int, part: int) -> dict[str, float]:
    """Measure what it takes to give memory back, and to have it again."""
    shrink_s, grow_s = [], []

    def fill() -> None:
        memory.set_limit(None)
        held = [torch.empty(part, dtype=torch.uint8, device="cuda") for _ in range(count)]
        del held
        memory.look()
        memory.look()  # else the next limit has memory of the host ready for the peak

    count = num_bytes // part
    fill()
    for _ in range(5):
        shrink_s.append(timed(lambda: memory.set_limit(256 * MIB)))
        grow_s.append(timed(fill))
    torch.cuda.empty_cache()
    return {"shrink_ms": 1e3 * median(shrink_s), "grow_ms": 1e3 * median(grow_s)}


def many_changes(memory: CudaMemory, times: int) -> dict[str, Any]:
    """Limits that change at random between steps: no step fails, and losses stay the same."""
    draw = random.Random(0)
    runs = []
    for is_limited in (False, True):
        torch.cuda.empty_cache()
        job = Training(256)
        for _ in range(times):
            job.step()
            if is_limited:
                memory.look()
                memory.set_limit(draw.choice((None, draw.randrange(200, 600) * MIB)))
                memory.take_home(job.tensors())
        memory.set_limit(None)
        runs.append(job.losses)
    return {"changes": times, "equal_losses": runs[0] == runs[1]}


def measure_memory(quick: bool) -> dict[str, Any]:
    rows, steps = (1024, 2) if quick else (4096, 4)
    torch.zeros(1, device="cuda")
    memory = CudaMemory("cuda:0", compiled(CUDA_HOST))
    first_s = timed(lambda: memory.set_limit(256 * MIB))
    memory.set_limit(None)
    found: dict[str, Any] = {"first_limit_s": first_s}
    found |= speed_by_limit(memory, rows, steps)
    found["return"] = back_home(memory, rows)
    found["1_gib"] = changes(memory, GIB, 64 * MIB)
    if not quick:
        found["16_gib"] = changes(memory, 16 * GIB, 64 * MIB)
    found["many"] = many_changes(memory, 20 if quick else 300)
    job = Training(256)
    job.step()
    found["look_us"] = 1e6 * median(timed(memory.look) for _ in range(50))
    return found


class Arm:
    """A model that trains, whose gate is there or not."""

    def __init__(self) -> None:
        self.model = model_of()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-5)
        self.batch = torch.rand(ROWS, LENGTH, WIDTH, device="cuda")
        self.took_s: list[float] = []

    def run(self, steps: int) -> None:
        self.took_s += [timed(self._step) for _ in range(steps)]

    def _step(self) -> None:
        self.optimizer.zero_grad()
        (self.model(self.batch) - self.batch).square().mean().backward()
        self.optimizer.step()


def measure_gate(quick: bool, folder: Path) -> dict[str, Any]:
    """A step without a gate, with one that is off, and with one that is on and lets all pass."""
    page = GatePage.create(folder / "worker-0.share", "cuda:0", "opportunistic")
    GatePoints(Gate(page, CudaDevice("cuda:0"), lambda _held_s: None)).install()
    hooks: tuple[Any, ...] = (
        modules._global_forward_pre_hooks,
        optimizers._global_optimizer_pre_hooks,
        optimizers._global_optimizer_post_hooks,
    )
    with_gate = [dict(each) for each in hooks]
    arms = {"none": Arm(), "off": Arm(), "on": Arm()}
    for number in range(3 if quick else 15):
        for name, arm in arms.items():
            for each, kept in zip(hooks, with_gate):
                each.clear()
                each.update(kept if name != "none" else {})
            page.order(GateMode.DUTY if name == "on" else GateMode.OFF, 1.0, "")
            arm.run(3)
            if number == 0:
                arm.took_s.clear()
            arm.run(10)
    medians = {name: median(arm.took_s) for name, arm in arms.items()}
    found: dict[str, Any] = {f"{name}_ms": 1e3 * took_s for name, took_s in medians.items()}
    for name in ("off", "on"):
        found[f"{name}_longer"] = medians[name] / medians["none"] - 1
    return found


def main(what: str, figures: str, quick: str) -> None:
    path, is_quick = Path(figures), quick == "1"
    if what == "memory":
        found = measure_memory(is_quick)
    else:
        found = measure_gate(is_quick, path.parent)
    path.write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
