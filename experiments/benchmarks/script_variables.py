"""What it costs to look at a script's own variables: a mark for each batch, a look for each loop.

    python benchmarks/script_variables.py [--quick] [--rounds 200]

A script of a hundred variables: locals, arguments, a trainer with meters and early stopping, three
generators, a list of a thousand losses, a dictionary of a hundred numbers. Printed: medians, in
microseconds, of a mark (before each batch of a group), of what taking it back costs, and of a look
with the digests of all variables (twice in a loop, and once when a worker joins).
"""

import argparse
import random
import statistics
import sys
import time
from collections import defaultdict
from types import FrameType
from typing import Any

import numpy as np
import torch
from paceline_experiments import harness

from paceline.runtime.variables import frames
from paceline.runtime.variables.kinds import digest_of
from paceline.runtime.variables.look import ScriptLook
from paceline.runtime.variables.mark import BodyMark


class Stopper:
    def __init__(self) -> None:
        self.best, self.bad, self.history = float("inf"), 0, list[float]()


class Meter:
    def __init__(self) -> None:
        self.total, self.count = 0.0, 0


class Trainer:
    def __init__(self) -> None:
        self.step, self.best, self.average = 0, -1.0, {"w": torch.zeros(64)}
        self.noise, self.parts = np.random.default_rng(1), [Stopper(), Meter(), Meter()]


def timed(rounds: int, act: Any) -> float:
    """The median time of a call, in microseconds."""
    times = []
    for _ in range(rounds):
        start_s = time.perf_counter()
        act()
        times.append(1e6 * (time.perf_counter() - start_s))
    return statistics.median(times)


def measure(frame: FrameType, rounds: int) -> dict[str, float]:
    chain = frames.frames_of(frame)
    marks = [BodyMark(chain)]

    def mark() -> None:
        marks[0] = BodyMark(chain, None, marks[0])

    def look() -> None:
        for leaf in ScriptLook(chain).leaves.values():
            digest_of(leaf.kind.seen(leaf.value))

    return {
        "mark": timed(rounds, mark),
        "taken back": timed(rounds, lambda: marks[0].undo(chain)),
        "look": timed(max(3, rounds // 10), look),
    }


def script(rounds: int) -> dict[str, float]:
    """Stands for a user's function, which asks for a batch."""
    args = argparse.Namespace(**{f"argument_{number}": number for number in range(40)})
    one, two, three, four, five, six = range(6)
    trainer, losses, log = Trainer(), [0.5] * 1000, {number: 0.5 * number for number in range(100)}
    generator, dice, history = torch.Generator(), random.Random(1), defaultdict(list, {"a": [1]})
    found = measure(sys._getframe(), rounds)
    held = [args, one, two, three, four, five, six, trainer, losses, log, generator, dice, history]
    assert held  # all of them live until here, as in a loop
    return found


def main() -> None:
    parser = harness.parser(__doc__, "three rounds, no figures")
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    for name, microseconds in script(3 if args.quick else args.rounds).items():
        print(f"{name}: {microseconds:.0f} µs")


if __name__ == "__main__":
    main()
