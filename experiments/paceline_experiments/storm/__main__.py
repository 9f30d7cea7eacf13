"""A storm over 32 members on four machines: what is left of the throughput, and is it exact?

    make storm                                     # or: python -m paceline_experiments.storm
        [--quick] [--minutes 30] [--every-s 29] [--seed 1] [--deterministic] [--page FOLDER]

Machines are namespaces of one kernel, each with a network, a host name and a home of its own. Steps
wait as for an accelerator: a sample costs a sleep, so that 32 members fit on a few cores. Every
``--every-s`` seconds one of twelve kinds of faults happens, each kind once before any comes again.

*share*: samples in the model over those that the capacity present would have trained, as in the
calm before the storm; `account` says what is present, and what it would train. The counts of all
samples must be exact, and the model that of one worker to which nothing happened: to rounding, with
``--deterministic`` bit for bit. Floor: 0.985. Needs root, unshare, nsenter, ip, gcc.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes
from paceline.jobs.launch import ask
from paceline.jobs.outcome import read_outcome
from paceline.wire.client import GetStatus, JobStatus
from paceline_experiments import harness
from paceline_experiments.machines import (
    Machine,
    in_own_network,
    machines,
    paceline,
    yielding,
)
from paceline_experiments.outputs import circumstances
from paceline_experiments.storm.account import Account, Done, Work, account, read_lives
from paceline_experiments.storm.faults import Clock, Planned, Weather, make_shim, plan
from paceline_experiments.storm.page import write_page

FLOOR = 0.985
PER_WORKER, EPOCH_STEPS = 60, 10
"""Samples of a step for each worker at the start, and steps of an epoch."""
DISK_BYTES = 1 << 30
"""Size of the disk of the master's machine, which is filled up."""
START_S, END_S = 300.0, 900.0
SUM_S = 0.01
"""Seconds by which each member makes a step longer, at least, where all share two processors."""
CALM_S = 40.0
POLL_S = 0.2
SCRIPT = Path(__file__).with_name("train.py")
ROUNDING = 1e-9
QUICK = {
    "per_machine": 2,
    "num_machines": 2,
    "step_s": 0.5,
    "minutes": 2.0,
    "every_s": 10.0,
    "calm_s": 8.0,
}


class Sizes(argparse.Namespace):
    """How large a storm is."""

    per_machine: int
    num_machines: int
    step_s: float
    minutes: float
    every_s: float
    seed: int
    deterministic: bool
    calm_s: float

    @property
    def workers(self) -> int:
        """How many members there are at the start."""
        return self.per_machine * self.num_machines

    @property
    def batch_size(self) -> int:
        """Samples of a step."""
        return PER_WORKER * self.workers

    @property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return EPOCH_STEPS * self.batch_size

    @property
    def epochs(self) -> int:
        """As many as last for the calm, the storm, and some seconds more."""
        seconds = self.calm_s + 60 * self.minutes + 3 * self.every_s
        step_s = self.step_s + SUM_S * self.workers
        return int(seconds / step_s / EPOCH_STEPS) + 2

    @property
    def settings(self) -> dict[str, object]:
        """Return the settings of steps: equal bits, or a solution that acts after a few steps."""
        if not self.deterministic:
            return {"solution": "falcon"}
        return {"deterministic": "true", "blocks": 2 * self.workers}

    def arguments(self, out: Path, sample_s: float) -> list[str]:
        """Return the script's arguments."""
        named = {
            "out": out,
            "num-samples": self.num_samples,
            "batch-size": self.batch_size,
            "epochs": self.epochs,
            "sample-s": sample_s,
        }
        return [word for name, value in named.items() for word in (f"--{name}", str(value))]


def until(condition: Callable[[], Any], what: str, within_s: float) -> Any:
    """Wait for a condition; what it returned."""
    end_s = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > end_s:
            raise harness.ArmError("storm", f"{what}: not within {within_s:.0f} s")
        time.sleep(POLL_S)
    return found


def status(job: JobDir) -> JobStatus | None:
    """Return the answer of the master; None: it gave none."""
    try:
        found = ask(job, GetStatus(), timeout_s=2.0)
    except (PacelineError, OSError):
        return None
    return found if isinstance(found, JobStatus) else None


def num_training(out: Path) -> int:
    """Count the workers that have done a step, so far as they were not given up."""
    return len({life.node for life in read_lives(out) if life.batches})


def start(first: Machine, sizes: Sizes, out: Path, clock: Clock) -> tuple[JobDir, Any]:
    """Start the job on the first machine."""
    settings = {
        "listen": first.address,
        "data_plane.transport": "tcp",
        "restart.budget": 1000,
        "restart.backoff_s": 0.1,
        **sizes.settings,
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = paceline(
        *("run", SCRIPT, "--strategy", "allreduce", "--workers", sizes.per_machine, *sets),
        *("--", *sizes.arguments(out, sizes.step_s / PER_WORKER)),
    )
    run = first.start(command, out / "run.log", **clock.env)

    def made() -> JobDir | None:
        if run.poll() is not None:
            raise harness.failure("storm", "the job did not start", [out / "run.log"])
        found = [path.parent for path in first.home.glob("jobs/*/ticket")]
        return JobDir(found[0]) if found else None

    return until(made, "a job", START_S), run


def rage(weather: Weather, faults: list[Planned], job: JobDir) -> None:
    """Let all faults happen, each at its time."""
    begun_s = time.monotonic()
    for number, fault in enumerate(faults, 1):
        time.sleep(max(0.0, begun_s + fault.at_s - time.monotonic()))
        if (ended := read_outcome(job.outcome)) is not None:
            raise harness.failed_job(job, f"it ended in the storm: {ended.error}")
        done = weather.strike(fault)
        now = status(job)
        trains = "no answer" if now is None else f"step {now.step}"
        print(f"{number}/{len(faults)} {fault.kind} {done.whom}: {trains}", flush=True)


def undisturbed(sizes: Sizes, folder: Path) -> Path:
    """Train the same with one worker, without waits and faults; the final model."""
    folder.mkdir()
    sets = [word for key, value in sizes.settings.items() for word in ("--set", f"{key}={value}")]
    command = paceline("run", SCRIPT, "--workers", 1, *sets, "--", *sizes.arguments(folder, 0))
    env = {**os.environ, "PACELINE_HOME": str(folder / "home")}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise harness.ArmError("undisturbed", done.stdout[-2000:] + done.stderr[-2000:])
    return folder / "final.safetensors"


def judge(sizes: Sizes, out: Path, plain: Path) -> dict[str, Any]:
    """Compare the final model with that of the undisturbed run, and count the samples."""
    found, wanted = load_file(out / "final.safetensors"), load_file(plain)
    seen = next(value for name, value in found.items() if name.endswith("seen"))
    furthest = max(float(np.abs(found[name] - wanted[name]).max()) for name in wanted)
    return {
        "wrong_counts": int((np.abs(seen - sizes.epochs) > ROUNDING * sizes.epochs).sum()),
        "furthest": furthest,
        "equal_bits": all(np.array_equal(found[name], wanted[name]) for name in wanted),
    }


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A folder with a disk of its own, which can be filled up."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(path)], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def storm(sizes: Sizes, folder: Path) -> tuple[Account, list[Done], dict[str, Any]]:
    """Run a storm: its account, its diary, and what its model is like."""
    out, home = folder / "out", folder / "machines/machine-1"
    out.mkdir()
    home.mkdir(parents=True)
    plain = undisturbed(sizes, folder / "plain")
    library = make_shim(folder)
    with (
        small_disk(home),
        yielding() as group,
        machines(sizes.num_machines, home.parent) as hosts,
    ):
        clocks = [Clock(library, folder / f"{host.name}.clock") for host in hosts]
        job, run = start(hosts[0], sizes, out, clocks[0])
        ticket = folder / "ticket"
        ticket.write_bytes(job.ticket.read_bytes())
        ticket.chmod(0o600)
        weather = Weather(job, out, hosts, clocks, ticket, group)
        until(lambda: num_training(out) >= sizes.per_machine, "the first machine", START_S)
        for host in hosts[1:]:
            weather.join(host, sizes.per_machine)
        until(lambda: num_training(out) >= sizes.workers, "all workers", START_S)
        print(f"{sizes.workers} workers train", flush=True)
        calm_s = time.monotonic() + sizes.step_s
        time.sleep(sizes.calm_s)
        faults = plan(sizes.seed, sizes.minutes, sizes.every_s)
        rage(weather, faults, job)
        time.sleep(sizes.every_s)
        end_s = time.monotonic()
        outcome = until(lambda: read_outcome(job.outcome), "the end of the job", END_S)
        if outcome.state != "finished":
            raise harness.failed_job(job, "it did not finish")
        run.wait(60)
        shutil.copytree(job.path, folder / "job")
        diary = [one._asdict() for one in weather.diary]
        (folder / "diary.json").write_text(json.dumps([calm_s, end_s, diary]))
        weather.close()
        left = [process.pid for process in find_job_processes(job.path)]
        work = Work(sizes.batch_size, sizes.step_s * sizes.workers)
        found = account(read_lives(out), weather.diary, calm_s, end_s, work)
        return found, weather.diary, judge(sizes, out, plain) | {"left": left}


def main() -> int:
    """Run a storm, and write its page."""
    options = harness.parser(__doc__, "two machines, four members, a fault of each kind")
    options.add_argument("--minutes", type=float, default=30.0)
    options.add_argument("--every-s", type=float, default=29.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--deterministic", action="store_true", help="compare bit for bit")
    options.add_argument("--keep", type=Path, help="an empty folder, where all files stay")
    options.add_argument("--page", type=Path, help="a folder for storm.md and figures/storm.svg")
    given = options.parse_args()
    if (status := in_own_network("paceline_experiments.storm", sys.argv[1:])) is not None:
        return status
    sizes = Sizes(**vars(given), per_machine=8, num_machines=4, step_s=2.0, calm_s=CALM_S)
    if given.quick:
        sizes = Sizes(**{**vars(sizes), **QUICK})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        folder = given.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="storm-"))
        found, diary, model = storm(sizes, Path(folder))
    figures = {
        "share": round(found.share, 4),
        "present": round(found.present, 2),
        "rate": round(found.rate, 2),
        "steps": found.steps,
        "faults": len(diary),
        **model,
    }
    text = write_page(found, diary, figures, vars(sizes), given.page)
    print(text)
    if given.json:
        given.json.write_text(json.dumps({**circumstances(), **figures}, indent=2))
    print(json.dumps(figures))
    exact = not model["wrong_counts"] and model["furthest"] < ROUNDING and not model["left"]
    exact = exact and (model["equal_bits"] or not given.deterministic)
    return 0 if exact and (given.quick or found.share >= FLOOR) else 1


if __name__ == "__main__":
    harness.run(main)
