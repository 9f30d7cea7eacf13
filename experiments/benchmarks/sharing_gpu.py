"""Two jobs on one GPU, and what limits and gates cost: all figures of sharing a GPU, in 5 minutes.

    python benchmarks/sharing_gpu.py [--quick] [--windows 10] [--seconds 1.5] [--device cuda:0]
                                     [--wait 0.012] [--duty 0.4]

Where torch sees no GPU it says so, and measures nothing. Three parts:

    memory    a step under a limit of 100 to 25 % of what it needs; how long a change takes; the
              mini-batches until all is back on the GPU; limits that change at random
    gate      a step without a gate, with one that is off, with one that is on
    arms      as `sharing.py`: a guaranteed job that waits for its input, beside another job

Each part is a process of its own, so the figures of one survive another.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from paceline_experiments import harness
from sharing import Pair, add_arguments, measure

from paceline.base.devices import shared_name

JOBS = Path(__file__).with_name("jobs")
PARTS = ("memory", "gate", "arms")


def part_of(what: str, options: argparse.Namespace, out: Path) -> dict[str, Any]:
    figures = out / f"{what}.json"
    command = [sys.executable, str(JOBS / "gpu_parts.py"), what, str(figures)]
    harness.output_of(what, [*command, "1" if options.quick else "0"])
    found: dict[str, Any] = json.loads(figures.read_text())
    return found


def arms_of(options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """The GPU is idle while the guaranteed job waits for its input, which it does each step."""
    pair = Pair(
        script=JOBS / "shared_gpu.py",
        name=shared_name(options.device, os.environ),
        idle=lambda _cpu_s, took_s, steps_s: options.wait * len(steps_s) / took_s,
        same_steps=400,
        learn_s=20.0,
    )
    return measure(options, out, pair)


def main() -> int:
    parser = harness.parser(__doc__, "two short windows, small models")
    add_arguments(parser, device="cuda:0", seconds=1.5)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        harness.skipped("sharing_gpu", "not measured: no GPU")
        return 0
    if options.quick:
        options.windows, options.seconds = 2, 1.0
    found: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(options.device),
        "torch": torch.__version__,
    }
    failed = {}
    for what in options.parts:
        with harness.scratch() as out:
            try:
                made = arms_of(options, out) if what == "arms" else part_of(what, options, out)
            except harness.ArmError as error:
                failed[what] = str(error)
                continue
        found[what] = made
        print(json.dumps({what: made}), flush=True)
    harness.report("sharing_gpu", found, file=options.json, failed=failed)
    return 0


if __name__ == "__main__":
    harness.run(main)
