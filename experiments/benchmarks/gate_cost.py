"""What the gates of a job that shares a device cost it, as a part of its steps.

    python benchmarks/gate_cost.py [--quick] [--steps 300] [--step 0.0044] [--gates 42]

One process computes for ``--step`` seconds and passes ``--gates`` gates meanwhile, as the hooks of
a small model do, in turn with each of these orders (no order holds it back):

    off     there is none, as while nobody else shares the device
    duty    it may use all of the device's time
    gap     the same, only while the guaranteed job is idle, which it is

Printed for each: a passage (ns, the median over steps of their means) and all passages of a step as
a part of it. Goals: 0.1 % off, 0.5 % with an order.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from paceline_experiments import harness

from paceline.features.sharing.gate_page import GatePage
from paceline.features.sharing.process.device import CpuDevice
from paceline.features.sharing.process.gate import Gate
from paceline.features.sharing.wire import GateMode

GOALS = {"off": 0.001, "duty": 0.005, "gap": 0.005}
ROUNDS = 10


def spin(seconds: float) -> None:
    """Use a core."""
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


def took_ns(call: Any, step_s: float, gates: int) -> float:
    """Return what a call takes in the mean, made so often in a step of so long."""
    total_ns, clock = 0, time.perf_counter_ns
    for _ in range(gates):
        spin(step_s / gates)
        start_ns = clock()
        call()
        total_ns += clock() - start_ns
    return total_ns / gates


def measure(options: Any, folder: Path) -> dict[str, Any]:
    page = GatePage.create(folder / "worker-0.share", "cpu:0", "opportunistic")
    beside = GatePage.create(folder / "worker-1.share", "cpu:0", "guaranteed")
    beside.say_idle()
    device = CpuDevice(f"cpu:{min(os.sched_getaffinity(0))}")
    gate = Gate(page, device, lambda _waited_s: None)
    orders = {
        "off": (GateMode.OFF, 1.0, ""),
        "duty": (GateMode.DUTY, 1.0, ""),
        "gap": (GateMode.GAP, 1.0, str(beside.path)),
    }
    took: dict[str, list[float]] = {arm: [] for arm in ("none", *orders)}
    for _ in range(ROUNDS):
        for arm, call in (("none", lambda: None), *((arm, gate.tick) for arm in orders)):
            if arm in orders:
                page.order(*orders[arm])
            for _ in range(max(1, options.steps // ROUNDS)):
                took[arm].append(took_ns(call, options.step, options.gates))
    nothing_ns = median(took["none"])
    found: dict[str, Any] = {}
    for arm, goal in GOALS.items():
        passage_ns = median(took[arm]) - nothing_ns
        part = passage_ns * options.gates / (options.step * 1e9)
        found[arm] = {"passage_ns": passage_ns, "of_step": part, "goal": goal}
    return found


def main() -> None:
    parser = harness.parser(__doc__, "few steps, no figures")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--step", type=float, default=0.0044)
    parser.add_argument("--gates", type=int, default=42)
    options = parser.parse_args()
    if options.quick:
        options.steps = 20
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    for arm, row in found.items():
        missed = "" if row["of_step"] <= row["goal"] else ", missed"
        told = f"{row['passage_ns']:.0f} ns, {row['of_step']:.3%} of a step (goal {row['goal']:.1%}"
        sys.stdout.write(f"{arm}: {told}{missed})\n")
    harness.report("gate_cost", found, file=options.json)


if __name__ == "__main__":
    harness.run(main)
