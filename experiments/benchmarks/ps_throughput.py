"""Samples per second of a click model: paceline with 1 worker and 1 server beside its peers.

    python benchmarks/ps_throughput.py [--quick] [--variant NAME ...] [--tf-python FILE]
                                       [--rounds 7] [--steps 50] [--json FILE] [--arms NAME ...]

26 sparse fields of dimension 16, 2.6 M rows, a perceptron on top, Adagrad everywhere, batches of
4096 that were made beforehand. Arms: PyTorch in one process with sparse gradients (1 and 2
threads), paceline asynchronous and synchronous (1 worker + 1 server, one torch thread, exactly
once, cuts on, one host), and with ``--tf-python``, a Python that has TensorFlow (optional), its
ParameterServerStrategy with 1 worker + 1 server. All arms of a variant live at once and take
turns in every round, so that whatever else the machine does hits them alike; between their turns
they sleep. The table shows medians over the rounds, a ratio is the median of the rounds' ratios.

Variants: ``tables`` (26 tables, 512-256-1), ``one-table`` (the same ids in one table),
``embedding`` (26 tables, 64-1: bound by the embeddings).

Where the time goes, per step: *compute* is the user's forward and backward (torch), *wait* what
the training thread waits for the model's values, *rest* what paceline itself takes in that thread;
*server* (T^s) and *wire* (T^m) lie beside the computing, and hide behind it in the asynchronous
mode: as the worker's step ledger has them. *cpu* is the CPU time of all the arm's processes, of
which *top* a bare forward and backward of the perceptron would take (one thread): a machine cannot
be faster than cpu / cores, nor any trainer faster than top / cores, and on a shared machine these
say more than the wall does.
"""

import argparse
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.base.node_files import NodeFiles
from paceline.jobs.outcome import read_outcome
from paceline.wire.spec import DataPlaneSpec, DataSpec, JobSpec
from paceline.wire.step_ledger import StepLedgerReader

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
        self.pids: list[int] = []
        self.server_pids: list[int] = []

    def start(self, stack: ExitStack, log: Path) -> None:
        """Start processes that connect on their own; ``log``: for what they print."""
        raise NotImplementedError

    def ended(self) -> bool:
        """Tell whether they have ended."""
        raise NotImplementedError

    def failure(self, what: str) -> harness.ArmError:
        """Return its error, with the end of its log."""
        raise NotImplementedError

    def look(self) -> None:
        """Find its processes, once it has connected."""

    def take_turn(self, num_steps: int) -> Figures:
        """Run some steps; what they took."""
        before_s, server_before_s = cpu_s(self.pids), cpu_s(self.server_pids)
        self.tell(str(num_steps))
        figures: Figures = json.loads(self.hear())
        all_steps = num_steps + rounds.WARM_STEPS
        figures["cpu_s"] = (cpu_s(self.pids) - before_s) / all_steps
        if self.server_pids:
            figures["server_cpu_s"] = (cpu_s(self.server_pids) - server_before_s) / all_steps
        return figures

    def tell(self, line: str) -> None:
        try:
            self.lines.write(line + "\n")
            self.lines.flush()
        except OSError:
            raise self.failure("it has closed its socket") from None

    def hear(self) -> str:
        """Read what it says next."""
        try:
            line: str = self.lines.readline()
        except TimeoutError:
            raise self.failure(f"it said nothing for {START_S:.0f} s") from None
        if not line:
            raise self.failure("it has closed its socket")
        return line


class OwnProcess(Arm):
    """One process, which may have others."""

    child: "subprocess.Popen[bytes]"
    log: Path

    def spawn(self, stack: ExitStack, log: Path, command: list[str], env: dict[str, str]) -> None:
        """Start a process that connects and ends on its own."""
        self.log = log
        with log.open("wb") as file:
            self.child = subprocess.Popen(
                command, stdout=file, stderr=file, env={**os.environ, **env}
            )
        stack.callback(end, self.child)
        self.pids = [self.child.pid]

    def ended(self) -> bool:
        return self.child.poll() is not None

    def failure(self, what: str) -> harness.ArmError:
        return harness.failure(self.name, what, [self.log])


class Torch(OwnProcess):
    """PyTorch in one process."""

    def start(self, stack: ExitStack, log: Path) -> None:
        options = ["--engine", "torch", "--threads", self.name.split()[1], *self.options]
        self.spawn(stack, log, [sys.executable, "-W", "ignore", str(SCRIPT), *options], {})


class TensorFlow(OwnProcess):
    """ParameterServerStrategy: coordinator, worker and server in a process each."""

    python = ""

    def start(self, stack: ExitStack, log: Path) -> None:
        command = [self.python, str(PEERS / "tf_click_model.py"), *self.options]
        env = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        self.spawn(stack, log, command, env)

    def look(self) -> None:
        children = psutil.Process(self.child.pid).children(recursive=True)
        self.pids += [child.pid for child in children]


class Paceline(Arm):
    """A job of 1 worker and 1 server."""

    job: JobDir
    ledger: StepLedgerReader

    def start(self, stack: ExitStack, log: Path) -> None:
        del log  # the job has its own
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
        self.job = stack.enter_context(harness.running(spec))
        self.ledger = StepLedgerReader(NodeFiles(self.job, "worker-0").ledger)

    def ended(self) -> bool:
        return read_outcome(self.job.outcome) is not None

    def failure(self, what: str) -> harness.ArmError:
        return harness.failed_job(self.job, what)

    def look(self) -> None:
        status = harness.status(self.job)
        self.pids = [status.master_pid]
        for node in status.nodes:
            self.pids += [node.pid, node.agent_pid]
            if node.role == "server":
                self.server_pids = [node.pid]

    def take_turn(self, num_steps: int) -> Figures:
        figures = super().take_turn(num_steps)
        page = self.ledger.read()
        # A step is noted when the next one begins, as this one's turn ends.
        records = page.records[-num_steps:] if page else ()
        for name in NOTED if records else ():
            figures[name] = statistics.fmean(getattr(record, name) for record in records)
        return figures


def cpu_s(pids: Iterable[int]) -> float:
    """CPU time of these processes so far."""
    return sum(map(harness.cpu_s, pids))


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


def end(child: "subprocess.Popen[bytes]") -> None:
    """Let it end on its own, but not for long."""
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def start_arms(stack: ExitStack, arms: list[Arm], listener: socket.socket, logs: Path) -> None:
    """Start one after the other; each has connected when this returns."""
    for arm in arms:
        arm.start(stack, logs / f"{arm.name}.log")
        deadline_s = time.monotonic() + START_S
        while not select.select([listener], [], [], harness.POLL_S)[0]:
            if arm.ended():
                raise arm.failure("it ended before it trained")
            if time.monotonic() > deadline_s:
                raise arm.failure(f"it did not connect within {START_S:.0f} s")
        peer = stack.enter_context(listener.accept()[0])
        peer.settimeout(START_S)
        arm.lines = stack.enter_context(peer.makefile("rw"))
        said = json.loads(arm.hear())
        assert said["arm"] == arm.name, said
        arm.look()


def run(variant: str, args: argparse.Namespace) -> list[Arm]:
    """Run all rounds of one variant."""
    shape = VARIANTS[variant]
    options = ["--rows", str(args.rows), "--tables", str(shape.tables)]
    options += ["--batch-size", str(args.batch_size), "--hidden", *map(str, shape.hidden)]
    with ExitStack() as stack:
        folder = stack.enter_context(harness.scratch())
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
        start_arms(stack, arms, listener, folder)
        for arm in arms:
            arm.take_turn(4)  # compiles, learns recipes, fills the heap
        for number in range(args.rounds):
            print(f"{variant}: round {number + 1} of {args.rounds}", file=sys.stderr)
            for arm in arms:
                arm.rounds.append(arm.take_turn(args.steps))
        for arm in arms:
            arm.tell("")
    return arms


def median(arm: Arm, name: str) -> float:
    """Return the median of one figure over the rounds; nan where the arm has none."""
    return statistics.median(figures.get(name, nan) for figures in arm.rounds)


def ratio(one: Arm, other: Arm) -> float:
    """Return how much faster ``one`` is, in the median round."""
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
NOTED = ("compute_s", "server_s", "message_s", "wait_s")
"""Times in a worker's step ledger."""


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
    parser = harness.parser(__doc__, "one variant with few rows, 2 rounds of 5 steps")
    parser.add_argument("--variant", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--arms", nargs="+", default=[*OURS, *PEERS_OF_OURS])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rows", type=int, default=2_600_000)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--tf-python", help="a Python that can import tensorflow")
    args = parser.parse_args()
    if args.quick:
        args.variant, args.rounds, args.steps = ["embedding"], 2, 5
        args.rows, args.batch_size = 26_000, 256
    if TF in args.arms and not args.tf_python:
        harness.skipped(TF, "no --tf-python")
    told: dict[str, Any] = {"batch_size": args.batch_size}
    missed = False
    for variant in args.variant:
        told[variant] = show(variant, run(variant, args), args.batch_size)
        for peer in (TORCH_2, TF):
            value = told[variant]["ratios"].get(f"{ASP_2} / {peer}")
            if value is not None:
                goal = VARIANTS[variant].goal
                print(f"{ASP_2} / {peer}: floor {FLOOR}, goal {goal}, seen {value:.2f}")
                missed |= value < FLOOR
    harness.report("ps_throughput", told, file=args.json)
    return int(missed and not args.quick)


if __name__ == "__main__":
    harness.run(main)
