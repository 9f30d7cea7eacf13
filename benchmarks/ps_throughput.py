"""Samples per second of a click model: paceline with 1 worker and 1 server beside its peers.

    python benchmarks/ps_throughput.py [--quick] [--variant NAME ...] [--tf-python FILE]
                                       [--rounds 7] [--steps 50] [--json FILE]

26 sparse fields of dimension 16, 2.6 M rows, a perceptron on top, Adagrad everywhere, batches of
4096 that were made beforehand. Arms: PyTorch in one process with sparse gradients (1 and 2
threads), paceline asynchronous and synchronous (1 worker + 1 server, one torch thread, exactly
once, cuts on, one host), and with ``--tf-python``, a Python that has TensorFlow, its
ParameterServerStrategy with 1 worker + 1 server. All arms of a variant live at once and take
turns in every round, so that whatever else the machine does hits them alike; between their turns
they sleep. The table shows medians over the rounds, a ratio is the median of the rounds' ratios.

Variants: ``tables`` (26 tables, 512-256-1), ``one-table`` (the same ids in one table),
``embedding`` (26 tables, 64-1: bound by the embeddings).

Where the time goes, per step: *compute* is the user's forward and backward (torch), *wait* what
the training thread waits for the model's values, *rest* what paceline itself takes in that thread;
*server* (T^s) and *wire* (T^m) lie beside the computing, and hide behind it in the asynchronous
mode. *cpu* is the CPU time of all the arm's processes, of which *top* a bare forward and backward
of the perceptron would take (one thread): a machine cannot be faster than cpu / cores, nor any
trainer faster than top / cores, and on a shared machine these say more than the wall does.
"""

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.cli.launch import ask, is_supervised, launch
from paceline.wire.client import GetStatus, JobStatus, StopJob
from paceline.wire.spec import DataPlaneSpec, DataSpec, JobSpec

PEERS = Path(__file__).parent / "peers"
SCRIPT = PEERS / "click_model.py"
sys.path.insert(0, str(PEERS))  # the arms' modules lie where the arms' processes find them
import click_model  # noqa: E402
import rounds  # noqa: E402

START_S, END_S = 180.0, 10.0


class Variant(NamedTuple):
    """A shape of the model."""

    tables: int
    hidden: tuple[int, ...]
    goal: float


VARIANTS = {
    "tables": Variant(26, (512, 256), 1.3),
    "one-table": Variant(1, (512, 256), 1.3),
    "embedding": Variant(26, (64,), 3.0),
}
FLOOR = 1.0
TORCH_1, TORCH_2, TF = "torch 1", "torch 2", "tf ps"
ASP_1, ASP_2, BSP_2 = "asp 1", "asp 2", "bsp 2"
"""Names of arms end in the number of torch's threads."""
OURS, PEERS_OF_OURS = (ASP_1, ASP_2, BSP_2), (TORCH_1, TORCH_2, TF)
Figures = dict[str, float]


class Arm:
    """One way to train, in processes of its own that wait for their turn."""

    def __init__(self, name: str, options: list[str], socket_file: str) -> None:
        self.name = name
        self.options = ["--socket", socket_file, "--name", name, *options]
        self.lines: Any = None
        self.rounds: list[Figures] = []
        self.processes: list[psutil.Process] = []
        self.server: psutil.Process | None = None

    def start(self, stack: ExitStack) -> None:
        raise NotImplementedError

    def look(self) -> None:
        """Find its processes, once it has connected."""

    def spawn(self, stack: ExitStack, command: list[str], env: dict[str, str]) -> None:
        """Start a process that connects by itself and ends by itself."""
        child = stack.enter_context(subprocess.Popen(command, env={**os.environ, **env}))
        stack.callback(end, child)
        self.processes = [psutil.Process(child.pid)]

    def take_turn(self, num_steps: int) -> Figures:
        """Run some steps; what they took."""
        before_s, server_before_s = cpu_s(self.processes), cpu_s([self.server])
        self.tell(str(num_steps))
        figures: Figures = json.loads(self.lines.readline())
        all_steps = num_steps + rounds.WARM_STEPS
        figures["cpu_s"] = (cpu_s(self.processes) - before_s) / all_steps
        if self.server is not None:
            figures["server_cpu_s"] = (cpu_s([self.server]) - server_before_s) / all_steps
        return figures

    def tell(self, line: str) -> None:
        self.lines.write(line + "\n")
        self.lines.flush()


class Torch(Arm):
    """PyTorch in one process."""

    def start(self, stack: ExitStack) -> None:
        options = ["--engine", "torch", "--threads", self.name.split()[1], *self.options]
        self.spawn(stack, [sys.executable, "-W", "ignore", str(SCRIPT), *options], {})


class TensorFlow(Arm):
    """ParameterServerStrategy: coordinator, worker and server in a process each."""

    python = ""

    def start(self, stack: ExitStack) -> None:
        command = [self.python, str(PEERS / "tf_click_model.py"), *self.options]
        self.spawn(stack, command, {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"})

    def look(self) -> None:
        self.processes += self.processes[0].children(recursive=True)


class Paceline(Arm):
    """A job of 1 worker and 1 server."""

    job: JobDir

    def start(self, stack: ExitStack) -> None:
        mode, threads = self.name.split()
        spec = JobSpec(
            script=str(SCRIPT),
            args=("--engine", "paceline", *self.options),
            name=f"throughput-{mode}",
            mode=mode,  # type: ignore[arg-type]
            torch_threads=int(threads),
            data=DataSpec(shard_size=1 << 18),
            data_plane=DataPlaneSpec(encryption="off"),
        )
        self.job = launch(spec)
        stack.callback(self.stop)

    def look(self) -> None:
        status = ask(self.job, GetStatus())
        assert isinstance(status, JobStatus)
        pids = [status.master_pid]
        for node in status.nodes:
            pids += [node.pid, node.agent_pid]
            if node.role == "server":
                self.server = psutil.Process(node.pid)
        self.processes = [psutil.Process(pid) for pid in pids]

    def stop(self) -> None:
        with suppress(PacelineError):  # it has ended by itself
            ask(self.job, StopJob(now=True))
        deadline_s = time.monotonic() + END_S
        while is_supervised(self.job) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        shutil.rmtree(self.job.path, ignore_errors=True)


def cpu_s(processes: list[psutil.Process | None]) -> float:
    """CPU time of these processes so far."""
    times = [process.cpu_times() for process in processes if process is not None]
    return sum(t.user + t.system for t in times)


def top_cpu_s(hidden: tuple[int, ...], batch_size: int) -> float:
    """CPU time of a forward and backward of the perceptron alone: the best of a few."""
    torch.set_num_threads(1)
    top = click_model.ClickModel(click_model.NUM_FIELDS, 1, list(hidden)).top
    inputs = torch.randn(batch_size, click_model.NUM_FIELDS * click_model.DIM, requires_grad=True)
    taken = []
    for _ in range(6):
        start_s = time.process_time()
        top(inputs).mean().backward()
        taken.append(time.process_time() - start_s)
    return min(taken)


def end(child: subprocess.Popen[bytes]) -> None:
    """Let it end by itself, but not for long."""
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()


def start_arms(stack: ExitStack, arms: list[Arm], listener: socket.socket) -> None:
    """Start one after the other; each has connected when this returns."""
    listener.settimeout(START_S)
    for arm in arms:
        arm.start(stack)
        peer, _ = listener.accept()
        peer.settimeout(START_S)
        arm.lines = peer.makefile("rw")
        said = json.loads(arm.lines.readline())
        assert said["arm"] == arm.name, said
        arm.look()
        stack.callback(arm.tell, "")


def run(variant: str, args: argparse.Namespace) -> list[Arm]:
    """All rounds of one variant."""
    shape = VARIANTS[variant]
    options = ["--rows", str(args.rows), "--tables", str(shape.tables)]
    options += ["--batch-size", str(args.batch_size), "--hidden", *map(str, shape.hidden)]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ.setdefault("PACELINE_HOME", f"{folder}/home")
        path = f"{folder}/arms"
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen()
        kinds: dict[str, type[Arm]] = {TORCH_1: Torch, TORCH_2: Torch}
        kinds |= dict.fromkeys(OURS, Paceline)
        if args.tf_python:
            TensorFlow.python = args.tf_python
            kinds[TF] = TensorFlow
        arms = [kind(name, options, path) for name, kind in kinds.items() if name in args.arms]
        start_arms(stack, arms, listener)
        for arm in arms:
            arm.take_turn(4)  # compiles, learns recipes, fills the heap
        for number in range(args.rounds):
            print(f"{variant}: round {number + 1} of {args.rounds}", file=sys.stderr)
            for arm in arms:
                arm.rounds.append(arm.take_turn(args.steps))
    return arms


def median(arm: Arm, name: str) -> float:
    """Of one figure over the rounds; nan where the arm has none."""
    return statistics.median(figures.get(name, nan) for figures in arm.rounds)


def ratio(one: Arm, other: Arm) -> float:
    """How much faster ``one`` is, in the median round."""
    both = zip(one.rounds, other.rounds, strict=True)
    return statistics.median(b["step_s"] / a["step_s"] for a, b in both)


COLUMNS = {
    "step": "step_s",
    "compute": "compute_s",
    "wait": "wait_s",
    "rest": "rest_s",
    "server": "server_s",
    "wire": "message_s",
    "cpu": "cpu_s",
    "srv cpu": "server_cpu_s",
}


def show(variant: str, arms: list[Arm], batch_size: int) -> dict[str, Any]:
    """Print a variant's table; what goes into the JSON file."""
    shape = VARIANTS[variant]
    top_s = top_cpu_s(shape.hidden, batch_size)
    print(f"\n{variant}: {shape.tables} tables, hidden {shape.hidden}; top {1e3 * top_s:.1f} ms")
    print(f"{'arm':8s} samples/s   lowest  highest | ms:" + "".join(f"{c:>8s}" for c in COLUMNS))
    for arm in arms:
        for figures in arm.rounds:
            figures["rest_s"] = (
                figures["step_s"] - figures.get("compute_s", nan) - figures.get("wait_s", nan)
            )
        rates = [batch_size / figures["step_s"] for figures in arm.rounds]
        times = [1e3 * median(arm, name) for name in COLUMNS.values()]
        print(
            f"{arm.name:8s} {statistics.median(rates):9.0f} {min(rates):8.0f} {max(rates):8.0f}"
            " |    " + "".join(f"{t:8.1f}" if t == t else f"{'-':>8s}" for t in times)
        )
    by_name = {arm.name: arm for arm in arms}
    pairs = [
        (by_name[ours], by_name[peer])
        for ours in OURS
        for peer in PEERS_OF_OURS
        if ours in by_name and peer in by_name
    ]
    for ours, peer in pairs:
        cpu = median(peer, "cpu_s") / median(ours, "cpu_s")
        print(f"{ours.name} / {peer.name}: {ratio(ours, peer):.2f} (by CPU time {cpu:.2f})")
    return {
        "top_cpu_s": top_s,
        "rounds": {arm.name: arm.rounds for arm in arms},
        "median_samples_per_s": {a.name: batch_size / median(a, "step_s") for a in arms},
        "ratios": {f"{ours.name} / {peer.name}": ratio(ours, peer) for ours, peer in pairs},
    }


def main() -> int:
    """Print the tables; 1: a floor was missed."""
    parser = argparse.ArgumentParser(description="Throughput beside PyTorch and TensorFlow.")
    parser.add_argument("--variant", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--arms", nargs="+", default=[*OURS, *PEERS_OF_OURS])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rows", type=int, default=2_600_000)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--quick", action="store_true", help="3 rounds of 15 steps")
    parser.add_argument("--tf-python", help="a Python that can import tensorflow")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.steps = 3, 15
    told: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_1min": os.getloadavg()[0],
        "batch_size": args.batch_size,
    }
    print(f"{told['machine']}, load {told['load_1min']:.1f} before")
    missed = False
    for variant in args.variant:
        told[variant] = show(variant, run(variant, args), args.batch_size)
        for peer in (TORCH_2, TF):
            value = told[variant]["ratios"].get(f"{ASP_2} / {peer}")
            if value is not None:
                goal = VARIANTS[variant].goal
                print(f"{ASP_2} / {peer}: floor {FLOOR}, goal {goal}, seen {value:.2f}")
                missed |= value < FLOOR
    if args.json:
        args.json.write_text(json.dumps(told, indent=2))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
