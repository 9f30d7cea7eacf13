"""The memory of cores that jobs share: how long a change of the limit takes, and what a step pays.

    python benchmarks/sharing_memory.py [--quick] [--megabytes 1000] [--rounds 20] [--cores 0]

One process trains with ``--megabytes`` of tensors at its peak, most of them parameters and the
optimizer's state. Its limit falls to a tenth and is taken away again, ``--rounds`` times:

    shrink   the call that lowers the limit, between two mini-batches
    grow     the call that takes it away, with parameters that are taken home

Then two processes with a small model take turns, in windows of half a second: one with torch's
allocator, one with ours and boundaries at which a page is read and written. Printed: their steps'
ratio. Paper's figures: shrink 17 ms, grow 143 ms with the forward pass. Budget of a step: 0.5 %.
C's malloc gives memory back to the kernel in some processes at each step, and in others never, as
chance has it, which is 10 % of a step. Both arms have it keep the memory.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Literal

from paceline_experiments import harness

from paceline.features.sharing.compiled import CPU_ARENA, compiled

SCRIPT = Path(__file__).with_name("jobs") / "limited.py"
WINDOW_S = 0.5
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}
"""Settings of C's malloc."""
Arm = Literal["off", "on"]


class Trainer:
    """A process that trains when it is asked to."""

    def __init__(self, arm: Arm, width: int, rows: int, out: Path, cores: str) -> None:
        library = str(compiled(CPU_ARENA)) if arm == "on" else ""
        page = str(out / f"{arm}-{width}.share")
        command = [sys.executable, str(SCRIPT), library, page, str(width), str(rows), cores]
        self._process = subprocess.Popen(
            command,
            env=os.environ | KEEP_MEMORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, what: str, amount: float) -> Any:
        """Have it do something; return its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{what} {amount}\n")
        line = self._process.stdout.readline()
        if not line:
            raise harness.failure(what, f"the trainer ended: {self._process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def training(arm: Arm, width: int, rows: int, out: Path, cores: str) -> Iterator[Trainer]:
    trainer = Trainer(arm, width, rows, out, cores)
    try:
        yield trainer
    finally:
        trainer.end()


def limits(options: Any, out: Path) -> dict[str, Any]:
    """Measure changes of the limit."""
    # 8 layers: parameters, gradients and two averages of 32 width² bytes each.
    width = int((options.megabytes * 1e6 / (4 * 32)) ** 0.5)
    took: dict[str, list[float]] = {
        "shrink_ms": [],
        "grow_ms": [],
        "moved_mb": [],
        "spilled_mb": [],
    }
    with training("on", width, 64, out, options.cores) as trainer:
        peak = trainer.ask("train", 0.0)["peak_bytes"]
        for _ in range(options.rounds):
            took["shrink_ms"].append(1e3 * trainer.ask("limit", peak / 10)["took_s"])
            trainer.ask("renew", 0)
            use = trainer.ask("train", 0.0)
            took["spilled_mb"].append(use["spilled_bytes"] / 1e6)
            grown = trainer.ask("limit", 0)
            took["grow_ms"].append(1e3 * grown["took_s"])
            took["moved_mb"].append(grown["moved_bytes"] / 1e6)
            assert trainer.ask("train", 0.0)["spilled_bytes"] == 0
    found = {name: harness.summary(values) for name, values in took.items()}
    return {"peak_mb": peak / 1e6, **found}


def overhead(options: Any, out: Path) -> dict[str, Any]:
    """Compare steps with and without the allocator."""
    pairs = []
    with (
        training("off", 256, 128, out, options.cores) as off,
        training("on", 256, 128, out, options.cores) as on,
    ):
        for trainer in (off, on):
            trainer.ask("train", 1.0)
        for number in range(options.rounds * 2):
            order = (off, on) if number % 2 else (on, off)
            found = {one: median(one.ask("train", WINDOW_S)["steps_s"]) for one in order}
            pairs.append((found[on], found[off]))
    return {"step_ms": 1e3 * median(one for _, one in pairs), "on_to_off": harness.ratio(pairs)}


def main() -> None:
    parser = harness.parser(__doc__, "few short rounds, no figures")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cores", default="0")
    options = parser.parse_args()
    if options.quick:
        options.megabytes, options.rounds = 50, 2
    with harness.scratch() as out:
        start_s = time.monotonic()
        compiled(CPU_ARENA)
        built_s = time.monotonic() - start_s
        found = {"compiled_s": built_s, "limit": limits(options, out)}
        found["step"] = overhead(options, out)
    harness.report("sharing_memory", found, file=options.json)


if __name__ == "__main__":
    harness.run(main)
