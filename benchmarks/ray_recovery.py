"""A machine of a Ray cluster is gone, or its raylet alone: when is the next step in the model?

    python benchmarks/ray_recovery.py [--quick] [--trials 20]

An all-reduce job of three workers (`jobs/stepping.py`: steps of 50 ms) on real raylets, which are
on one machine, in a network of their own. *machine*: the raylet, the launcher and all processes of
a worker are killed, and another raylet is added. *raylet*: the raylet alone is killed. Nothing
should happen: the figure is the longest time between two steps in the 20 s that follow (Ray needs
12 to 15 s to call it dead). *lost* are steps that were in the model and are not any more.
Floor: machine <= 1.0 s, raylet no pause and no step lost; goal: 0.3 s. Needs Ray, root, `unshare`.
"""

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import allreduce_recovery as recovery
import harness
import numpy as np
import psutil

from paceline.base.jobdir import JobDir
from paceline.base.processes import JOB_DIR, kill_quietly
from paceline.wire.spec import DataPlaneSpec, JobSpec, NodeSpec, RestartSpec

INSIDE = "PACELINE_TEST_RAY"
WORKERS = 3
START_S = 120.0
WATCHED_S = 20.0


def spec_of(out: Path) -> JobSpec:
    return JobSpec(
        script=str(recovery.SCRIPT),
        args=("--out", str(out)),
        name="ray-recovery",
        strategy="allreduce",
        workers=NodeSpec(count=WORKERS),
        restart=RestartSpec(budget=1000, backoff_s=0.0),
        solution="none",
        backend="ray",
        ray_address=os.environ["RAY_ADDRESS"],
        data_plane=DataPlaneSpec(transport="tcp"),
    )


def add_machine() -> None:
    """A raylet with two cores; those of this cluster end with it."""
    ray = Path(sys.executable).with_name("ray")
    options = (f"--address={os.environ['RAY_ADDRESS']}", "--num-cpus=2", "--disable-usage-stats")
    env = {**os.environ, "PACELINE_HOME": os.environ[INSIDE]}
    command = [ray, "start", *options, "--object-store-memory=83886080"]
    subprocess.run(command, env=env, capture_output=True, check=False)


class Machine:
    """Where a worker is: its processes, its launcher, its raylet."""

    def __init__(self, worker: int) -> None:
        folder = psutil.Process(worker).environ()[JOB_DIR]
        self.processes = [one for one in psutil.process_iter() if _belongs(one, folder)]
        agent = next(one for one in self.processes if "paceline.agent" in one.cmdline())
        # Where Ray has died before, the parents of what it has left are others.
        launcher = agent.parent()
        known = launcher is not None and "Launcher" in " ".join(launcher.cmdline())
        raylet = launcher.parent() if launcher and known else None
        self.raylet = raylet if raylet and raylet.name() == "raylet" else None
        self.launcher = launcher if self.raylet else None

    def vanish(self) -> None:
        for one in (self.raylet, self.launcher, *self.processes):
            if one is not None:
                kill_quietly(one.pid)


def _belongs(process: psutil.Process, folder: str) -> bool:
    try:
        return bool(process.environ().get(JOB_DIR) == folder)
    except psutil.Error:
        return False


def lose_machine(out: Path, rng: random.Random) -> recovery.Kill:
    victim = rng.choice(sorted(recovery.lively(out)))
    machine = Machine(victim)
    time.sleep(rng.random() * 0.05)
    at_s = time.monotonic()
    machine.vanish()
    time.sleep(recovery.LATE_S)

    def found() -> recovery.Kill:
        return recovery.outcome(recovery.recorded(out), victim, at_s)

    harness.until(lambda: found().seconds is not None, recovery.PATIENCE_S)
    add_machine()
    return found()


def lose_raylet(out: Path, rng: random.Random) -> recovery.Kill:
    """Its seconds are the longest pause of anybody."""
    raylets = [Machine(worker).raylet for worker in sorted(recovery.lively(out))]
    raylet = rng.choice([one for one in raylets if one is not None])
    at_s = time.monotonic()
    kill_quietly(raylet.pid)
    time.sleep(WATCHED_S)
    rows = [one[one[:, 0] > at_s - 1.0] for one in recovery.lively(out).values()]
    pause_s = max(float(np.diff(one[:, 0]).max()) for one in rows)
    again = sum(int((np.diff(one[:, 1]) <= 0).sum()) for one in rows)
    add_machine()
    return recovery.Kill(pause_s, again)


ARMS: dict[str, Callable[[Path, random.Random], recovery.Kill]] = {
    "machine": lose_machine,
    "raylet": lose_raylet,
}


def measured(arm: str, kills: int) -> list[recovery.Kill]:
    """One job, and so many kills."""
    rng, found = random.Random(0), list[recovery.Kill]()
    with tempfile.TemporaryDirectory(prefix="paceline-stepping-") as name:
        out = Path(name)
        with harness.running(spec_of(out)) as job:
            since_s = 0.0
            for number in range(kills):
                harness.require(job, lambda: _steady(job, out, since_s), START_S, "it is not whole")  # noqa: B023
                found.append(ARMS[arm](out, rng))
                print(f"{arm}, kill {number}: {found[-1]}", file=sys.stderr, flush=True)
                since_s = time.monotonic()
    return found


def _steady(job: JobDir, out: Path, since_s: float) -> bool:
    return recovery.steady(out, WORKERS, since_s)


def inside(trials: int, json_file: Path | None) -> None:
    report = {}
    with harness.scratch():
        for arm in ARMS:
            kills = measured(arm, trials if arm == "machine" else 1)
            report[arm] = recovery.row_of(kills)
            print(f"{arm}: {json.dumps(report[arm])}", flush=True)
    harness.report("ray_recovery", report, file=json_file)


def main() -> int | None:
    parser = harness.parser(__doc__, "one kill of each, no figures")
    parser.add_argument("--trials", type=int, default=20)
    options = parser.parse_args()
    if INSIDE in os.environ:
        inside(1 if options.quick else options.trials, options.json)
        return None
    if importlib.util.find_spec("ray") is None or os.geteuid() or not shutil.which("unshare"):
        harness.skipped("ray_recovery", "it needs Ray, root and unshare")
        return None
    again = [sys.executable, str(Path(__file__).absolute()), *sys.argv[1:]]
    command = [sys.executable, "-m", "tests.ray.cluster", *again]
    root = Path(__file__).parents[1]
    return subprocess.run(["unshare", "--net", *command], cwd=root, check=False).returncode


if __name__ == "__main__":
    harness.run(main)
