"""Overhead of a step, which computes for 1 ms or more: paceline beside plain torch and DDP.

    python benchmarks/short_steps.py [--quick] [--rounds 20] [--milliseconds 1 3 10 30]
                                     [--seconds 0.5] [--arms ARM ...] [--layers 0]

One script (`jobs/short.py`: a small perceptron, 64 samples a step, one thread, and so many
milliseconds of the processor) in all arms. ``--layers``: so many more, of two small parameters
each. The arms live at once and take turns, in an order that alternates, so whatever else the
machine does hits them alike; whose turn it is not waits.

======== ===================================== =========
arm      by                                    beside
======== ===================================== =========
torch    plain torch, one process
alone    paceline without a service            torch
one      ``paceline run``, one worker          torch
asp, bsp the same on a server                  torch
ddp      torchrun, two ranks
two      ``paceline run``, two workers         ddp
======== ===================================== =========

*ratio*: the wall time of the other arm over this one's, above 1 if paceline is faster; geometric
mean with its 95 % interval over rounds. Beside it stands the processor time of a step, in
microseconds, which also a busy machine shows: of the *training* thread, over that of the other arm;
of the *scripts* in all their threads; and of all other processes of the job: *servers*, *agents*,
*master*. The steps' own computing is taken off of none of them.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from paceline_experiments import harness
from paceline_experiments.machines import paceline

from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes

SCRIPT = Path(__file__).with_name("jobs") / "short.py"
START_S, TURN_S = 120.0, 60.0
PLAIN = ("--set", "preflight=false", "--torch-threads", 1, "--solution", "none")
NEVER = ("--set", f"checkpoint.every_s={harness.NEVER_S}")
RUNS = {
    "one": ("--strategy", "allreduce", "--workers", 1),
    "asp": ("--servers", 1, "--mode", "asp", "--workers", 1),
    "bsp": ("--servers", 1, "--mode", "bsp", "--workers", 1),
    "two": ("--strategy", "allreduce", "--workers", 2),
}
BESIDE = {"alone": "torch", "one": "torch", "asp": "torch", "bsp": "torch", "two": "ddp"}
ARMS = ("torch", "alone", "one", "asp", "bsp", "ddp", "two")
ROLES = {
    "paceline.agent": "agents",
    "paceline.master": "master",
    "paceline.supervisor": "master",
}


class Turn(NamedTuple):
    """What some steps of an arm took: seconds, of its processes by what they are."""

    steps: int
    wall_s: float
    cpu_s: dict[str, float]

    def per_step_us(self, role: str) -> float:
        """Microseconds of the processor in a step."""
        return 1e6 * self.cpu_s.get(role, 0.0) / self.steps


class Arm:
    """One of the things compared, which runs; it computes when it is its turn.

    Args:
        name: of `ARMS`.
        folder: for its log and its jobs.
        listener: at which the script's first rank connects.
        layers: of small parameters, beside two others.
    """

    def __init__(self, name: str, folder: Path, listener: socket.socket, layers: int) -> None:
        self.name, self._home = name, folder / name
        self._home.mkdir()
        turns = listener.getsockname()
        Path(f"{turns}.{name}").write_bytes(bytes(4))
        by = "paceline" if name == "alone" or name in RUNS else name
        words = ("--turns", turns, "--arm", name, "--by", by, "--layers", layers)
        commands = {
            "torch": [sys.executable, SCRIPT, *words],
            "alone": [sys.executable, SCRIPT, *words],
            "ddp": [*TORCHRUN, SCRIPT, *words],
        }
        run = paceline("run", SCRIPT, *PLAIN, *NEVER, *RUNS.get(name, ()), "--", *words)
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(word) for word in commands.get(name, run)],
                env={**os.environ, "PACELINE_HOME": str(self._home), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
            )
        listener.settimeout(START_S)
        try:
            self._turns, _ = listener.accept()
        except TimeoutError:
            self.end()
            raise harness.failure(name, "it does not train", [self._home / "log"]) from None
        self._turns.settimeout(TURN_S)
        self._lines = self._turns.makefile("rw")
        assert self._lines.readline() == f"{name}\n"

    def take_turn(self, milliseconds: float, steps: int) -> Turn:
        """Make so many steps, each of which computes so long."""
        before = self._cpu_s()
        print(milliseconds, steps, file=self._lines, flush=True)
        wall_s, thread_s = json.loads(self._lines.readline())
        cpu_s = {role: now_s - before.get(role, 0.0) for role, now_s in self._cpu_s().items()}
        return Turn(steps, wall_s, cpu_s | {"training": thread_s})

    def _cpu_s(self) -> dict[str, float]:
        """Return the processor seconds of our processes so far, by what they are."""
        found = {"scripts": 0.0}
        if self.name not in RUNS:
            ranks = psutil.Process(self._process.pid).children() or [self._process]
            found["scripts"] = sum(harness.cpu_s(rank.pid) for rank in ranks)
        for path in self._home.glob("jobs/*"):
            for one in find_job_processes(path):
                names = (role for module, role in ROLES.items() if one.runs(module))
                role = next(names, "servers" if one.node.startswith("server") else "scripts")
                with contextlib.suppress(OSError):  # it has ended
                    found[role] = found.get(role, 0.0) + harness.cpu_s(one.pid)
        return found

    def end(self) -> None:
        """End it, and all that it has started."""
        if hasattr(self, "_turns"):
            self._turns.close()
            self._lines.close()
        for path in self._home.glob("jobs/*"):
            harness.stop(JobDir(path))
        self._process.terminate()
        self._process.wait()


TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run"),
    *("--standalone", "--nproc-per-node", "2", "--no-python", sys.executable),
)


@contextlib.contextmanager
def arms(names: Sequence[str], layers: int) -> Iterator[list[Arm]]:
    """All arms, ready for their turns."""
    with harness.scratch() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "turns"))
        listener.listen()
        with contextlib.ExitStack() as stack:
            started = []
            for name in names:
                started.append(Arm(name, folder, listener, layers))
                stack.callback(started[-1].end)
            yield started


def measured(options: argparse.Namespace) -> dict[str, dict[str, dict[str, object]]]:
    """Figures of each arm, by how long a step computes."""
    turns: dict[tuple[float, str], list[Turn]] = {}
    with arms(options.arms, options.layers) as started:
        for number in range(options.rounds + 1):
            for milliseconds in options.milliseconds:
                steps = max(5, int(1000 * options.seconds / milliseconds))
                for arm in started if number % 2 else started[::-1]:
                    turn = arm.take_turn(milliseconds, steps)
                    if number:  # the first round warms up
                        turns.setdefault((milliseconds, arm.name), []).append(turn)
    return {
        f"{milliseconds:g} ms": {
            name: figures(
                turns[milliseconds, name], turns.get((milliseconds, BESIDE.get(name, "")))
            )
            for name in options.arms
        }
        for milliseconds in options.milliseconds
    }


def figures(ours: Sequence[Turn], theirs: Sequence[Turn] | None) -> dict[str, object]:
    """Sum up the turns of one arm, beside those of another one."""
    roles = sorted({role for turn in ours for role in turn.cpu_s})
    cpu_us = {role: statistics.median(turn.per_step_us(role) for turn in ours) for role in roles}
    found: dict[str, object] = {
        "wall_ms": round(1e3 * statistics.median(turn.wall_s / turn.steps for turn in ours), 3),
        "cpu_us": {role: round(value) for role, value in cpu_us.items()},
    }
    if theirs:
        pairs = list(zip(ours, theirs, strict=True))
        more = [mine.per_step_us("training") - its.per_step_us("training") for mine, its in pairs]
        found["ratio"] = harness.ratio([(its.wall_s, mine.wall_s) for mine, its in pairs])
        found["training_more_us"] = round(statistics.median(more))
    return found


def main() -> None:
    """Measure, and print a table of each length of steps."""
    parser = harness.parser(__doc__, "two rounds of 3 ms")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--milliseconds", type=float, nargs="+", default=[1.0, 3.0, 10.0, 30.0])
    parser.add_argument("--seconds", type=float, default=0.5, help="of one turn")
    parser.add_argument("--layers", type=int, default=0, help="of two small parameters each")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.milliseconds, options.seconds = 2, [3.0], 0.1
    found = measured(options)
    for length, by_arm in found.items():
        print(f"\nsteps that compute for {length}")
        rows = []
        for name, one in by_arm.items():
            ratio, cpu_us = one.get("ratio", {}), one["cpu_us"]
            beside = (
                f"{ratio['ratio']:.3f} [{ratio['low95']:.3f}, {ratio['high95']:.3f}]"
                if ratio
                else ""
            )
            roles = [cpu_us.get(role, "") for role in COLUMNS]
            rows.append((name, one["wall_ms"], beside, one.get("training_more_us", ""), *roles))
        harness.table(("arm", "wall ms", "ratio", "training +us", *COLUMNS), rows)
    harness.report("short_steps", found, file=options.json)


COLUMNS = ("training", "scripts", "servers", "agents", "master")

if __name__ == "__main__":
    harness.run(main)
