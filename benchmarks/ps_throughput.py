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
mode. CPU seconds of both processes show which of them is the limit.
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
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.cli.launch import ask, launch
from paceline.wire.client import GetStatus, JobStatus, StopJob
from paceline.wire.spec import DataPlaneSpec, DataSpec, JobSpec

PEERS = Path(__file__).parent / "peers"
START_S, ROUND_S = 120.0, 120.0
VARIANTS = {
    "tables": {"tables": 26, "hidden": (512, 256), "floor": 1.0, "goal": 1.3},
    "one-table": {"tables": 1, "hidden": (512, 256), "floor": 1.0, "goal": 1.3},
    "embedding": {"tables": 26, "hidden": (64,), "floor": 1.0, "goal": 3.0},
}
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
        self._server: psutil.Process | None = None

    def start(self, stack: ExitStack) -> None:
        raise NotImplementedError

    def take_turn(self, num_steps: int) -> Figures:
        """Run some steps; what they took."""
        before_s = self._server_cpu_s()
        self.tell(str(num_steps))
        figures: Figures = json.loads(self.lines.readline())
        if self._server is not None:
            figures["server_cpu_s"] = (self._server_cpu_s() - before_s) / num_steps
        return figures

    def tell(self, line: str) -> None:
        self.lines.write(line + "\n")
        self.lines.flush()

    def watch_server(self, pid: int) -> None:
        """Its CPU time is reported too."""
        self._server = psutil.Process(pid)

    def _server_cpu_s(self) -> float:
        if self._server is None:
            return 0.0
        times = self._server.cpu_times()
        return times.user + times.system


class Torch(Arm):
    """PyTorch in one process."""

    def start(self, stack: ExitStack) -> None:
        options = ["--engine", "torch", "--threads", self.name.split()[1]]
        command = [sys.executable, str(PEERS / "click_model.py"), *options, *self.options]
        stack.callback(end, stack.enter_context(subprocess.Popen(command)))


class TensorFlow(Arm):
    """ParameterServerStrategy: chief and worker in one process, the server in another."""

    python = ""

    def start(self, stack: ExitStack) -> None:
        command = [self.python, str(PEERS / "tf_click_model.py"), *self.options]
        quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        stack.callback(end, stack.enter_context(subprocess.Popen(command, env=quiet)))


class Paceline(Arm):
    """A job of 1 worker and 1 server."""

    job: JobDir

    def start(self, stack: ExitStack) -> None:
        mode, threads = self.name.split()
        spec = JobSpec(
            script=str(PEERS / "click_model.py"),
            args=("--engine", "paceline", *self.options),
            name=f"throughput-{mode}",
            mode=mode,  # type: ignore[arg-type]
            torch_threads=int(threads),
            data=DataSpec(shard_size=1 << 18),
            data_plane=DataPlaneSpec(encryption="off"),
        )
        self.job = launch(spec)
        stack.callback(self.stop)

    def take_turn(self, num_steps: int) -> Figures:
        if self._server is None:
            status = ask(self.job, GetStatus())
            assert isinstance(status, JobStatus)
            self.watch_server(next(node.pid for node in status.nodes if node.role == "server"))
        return super().take_turn(num_steps)

    def stop(self) -> None:
        try:
            ask(self.job, StopJob(now=True))
        except PacelineError:
            pass  # it has ended by itself
        shutil.rmtree(self.job.path, ignore_errors=True)


def end(child: subprocess.Popen[bytes]) -> None:
    """Let it end by itself, but not for long."""
    try:
        child.wait(5.0)
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
        stack.callback(arm.tell, "")


def run(variant: str, args: argparse.Namespace) -> list[Arm]:
    """All rounds of one variant."""
    shape = VARIANTS[variant]
    options = ["--rows", str(args.rows), "--tables", str(shape["tables"])]
    options += ["--batch-size", str(args.batch_size), "--hidden", *map(str, shape["hidden"])]  # type: ignore[arg-type]
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
        for _ in range(args.rounds):
            for arm in arms:
                arm.rounds.append(arm.take_turn(args.steps))
    return arms


def median(arm: Arm, name: str) -> float:
    """Of one figure over the rounds; nan where the arm has none."""
    return statistics.median(figures.get(name, float("nan")) for figures in arm.rounds)


def ratio(one: Arm, other: Arm) -> float:
    """How much faster ``one`` is, in the median round."""
    rounds = zip(one.rounds, other.rounds, strict=True)
    return statistics.median(b["step_s"] / a["step_s"] for a, b in rounds)


def show(variant: str, arms: list[Arm], batch_size: int) -> dict[str, object]:
    """Print a variant's table; what goes into the JSON file."""
    by_name = {arm.name: arm for arm in arms}
    print(f"\n{variant}: {VARIANTS[variant]['tables']} tables, top {VARIANTS[variant]['hidden']}")
    columns = ("step", "compute", "wait", "rest", "server", "wire", "cpu", "srv cpu")
    print(
        f"{'arm':8s} samples/s {'lowest':>8s} {'highest':>8s}  ms a step: "
        + " ".join(f"{name:>7s}" for name in columns)
    )
    for arm in arms:
        rates = [batch_size / figures["step_s"] for figures in arm.rounds]
        names = (
            "step_s",
            "compute_s",
            "wait_s",
            "",
            "server_s",
            "message_s",
            "cpu_s",
            "server_cpu_s",
        )
        parts = [median(arm, name) if name else 0.0 for name in names]
        parts[3] = parts[0] - parts[1] - parts[2]
        print(
            f"{arm.name:8s} {statistics.median(rates):9.0f} {min(rates):8.0f} {max(rates):8.0f}"
            f"{'':13s}"
            + " ".join(f"{1e3 * part:7.1f}" if part == part else "      -" for part in parts)
        )
    ratios = {
        f"{ours} / {peer}": ratio(by_name[ours], by_name[peer])
        for ours in OURS
        for peer in PEERS_OF_OURS
        if ours in by_name and peer in by_name
    }
    for name, value in ratios.items():
        print(f"{name}: {value:.2f}")
    return {
        "samples_per_s": {a.name: [batch_size / f["step_s"] for f in a.rounds] for a in arms},
        "rounds": {arm.name: arm.rounds for arm in arms},
        "ratios": ratios,
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
        arms = run(variant, args)
        told[variant] = show(variant, arms, args.batch_size)
        for name, value in told[variant]["ratios"].items():
            compared = name in (f"{ASP_2} / {TORCH_2}", f"{ASP_2} / {TF}")
            missed |= compared and value < VARIANTS[variant]["floor"]  # type: ignore[operator]
    if args.json:
        args.json.write_text(json.dumps(told, indent=2))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
