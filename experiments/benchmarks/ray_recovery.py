"""A machine of a Ray cluster is gone, or its raylet alone: when is the next step in the model?

    python benchmarks/ray_recovery.py [--quick] [--trials 20] [--per-round 5] [--fast-health]
        [--parts machine raylet launch head]

Three workers, each on a machine of its own: real raylets with two cores, in a network of their own
on one machine. Steps of 50 ms of emulated compute (a sleep), 1 MB of gradients, gloo, the same loop
(`jobs/stepping.py`). Two arms, which take turns in the same cluster:

* *paceline*: ``strategy: allreduce`` on the backend ``ray``;
* *ray-train*: Ray Train v2, as its user guides on failures and elastic training have it. Elastic
  (``num_workers=(1, 3)``), ``max_failures=-1``, a checkpoint every 20 steps (1 s) into a folder on
  the local disk. Quicker than its defaults: ``elastic_resize_monitor_interval_s=2`` (60) and
  ``RAY_TRAIN_HEALTH_CHECK_INTERVAL_S=0.5`` (2). It needs ``pip install 'ray[train]'``.

*machine*: a raylet and all processes of its machine are killed. *raylet*: the raylet alone is.
Another machine is added 1 s later, with both. Ray's health checks are its defaults (Ray calls the
machine dead after 12 to 15 s); ``--fast-health``: 250 ms, four of which may fail. *head*: the head
is killed; paceline alone, since the cluster ends with it.

*step_s*: from the kill to the next step in the model; for *raylet* and *head* the longest time
between two steps, from 1 s before the kill until 20 s, or 75 s, after it. *again*: steps that were
in the model and were computed again, until all train. *whole_s*: until all three have done a step.
*launch*: from the start of the master to its third agent, and from the start of a process to the
answers of three plain actors in places that are reserved alike (`jobs/ray_actors.py`).

Floor: machine <= 1.0 s, raylet no pause and no step again, launch <= 1 s over the actors'; goal:
0.3 s. Needs Ray, root, `unshare`.
"""

import argparse
import atexit
import contextlib
import functools
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import allreduce_recovery as recovery
import numpy as np
import psutil
from numpy.typing import NDArray
from paceline_experiments import harness

from paceline.base.processes import kill_quietly
from paceline.wire.spec import DataPlaneSpec, JobSpec, NodeSpec, RestartSpec

INSIDE = "PACELINE_TEST_RAY"
ACTORS = Path(__file__).with_name("jobs") / "ray_actors.py"
PARTS = ("machine", "raylet", "launch", "head")
WORKERS, CPUS = 3, 2
START_S, WHOLE_S = 240.0, 300.0
ADDED_S = 1.0
"""Seconds from a kill to the start of another machine, whose imports take the processor long."""
WATCHED_S = 20.0
HEADLESS_S = 75.0
"""Seconds by which Ray has ended its own processes."""
AGAIN_S = 0.25
"""A step that is done so much later than by another member is done again."""
FAST_HEALTH = {
    "RAY_health_check_period_ms": "250",
    "RAY_health_check_timeout_ms": "250",
    "RAY_health_check_failure_threshold": "4",
    "RAY_health_check_initial_delay_ms": "0",
}

Await = Callable[[Callable[[], bool], float, str], None]
"""Wait for a condition of an arm, so long; what is wrong if it does not come."""


# ---------------------------------------------------------------------------- arms


def spec_of(out: Path) -> JobSpec:
    return JobSpec(
        script=str(recovery.SCRIPT),
        args=("--out", str(out)),
        name="ray-recovery",
        strategy="allreduce",
        workers=NodeSpec(count=WORKERS, cpu=(float(CPUS),)),
        restart=RestartSpec(budget=1000, backoff_s=0.0),
        solution="none",
        backend="ray",
        ray_address=os.environ["RAY_ADDRESS"],
        data_plane=DataPlaneSpec(transport="tcp"),
    )


@contextlib.contextmanager
def by_paceline(out: Path) -> Iterator[Await]:
    with harness.running(spec_of(out)) as job:
        yield functools.partial(harness.require, job)


@contextlib.contextmanager
def by_ray_train(out: Path) -> Iterator[Await]:
    flags = ["--out", str(out), "--workers", str(WORKERS), "--cpus", str(CPUS)]
    env = ["env", "RAY_TRAIN_V2_ENABLED=1", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S=0.5"]
    command = [*env, sys.executable, str(recovery.SCRIPT), *flags]
    child = harness.Child("ray-train", command, out / "ray-train.log")

    def wait(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        came = harness.until(lambda: child.has_ended or condition(), timeout_s)
        if not came or child.has_ended:
            raise harness.failure("ray-train", what, [child.log])

    try:
        yield wait
    finally:
        child.kill()  # its actors end with it
        harness.until(lambda: not recovery.lively(out), START_S)


ARMS = {"paceline": by_paceline, "ray-train": by_ray_train}


# ---------------------------------------------------------------------------- kills


def add_machine() -> "subprocess.Popen[bytes]":
    """A raylet with two cores; what Ray has started with it ends when it does."""
    ray = Path(sys.executable).with_name("ray")
    options = (f"--address={os.environ['RAY_ADDRESS']}", f"--num-cpus={CPUS}")
    env = {**os.environ, "PACELINE_HOME": os.environ[INSIDE]}
    command = [ray, "start", "--block", *options, "--object-store-memory=83886080"]
    quiet = subprocess.DEVNULL
    machine = subprocess.Popen(command, env=env, stdout=quiet, stderr=quiet)
    atexit.register(machine.terminate)
    return machine


def raylet_of(worker: int) -> psutil.Process | None:
    """The raylet of its machine; None: Ray has died there before."""
    with contextlib.suppress(psutil.Error):
        return next(
            (one for one in psutil.Process(worker).parents() if one.name() == "raylet"), None
        )
    return None


class Kill(NamedTuple):
    """Outcome of one kill."""

    step_s: float
    again: int
    whole_s: float


def kill_one(what: str, out: Path, rng: random.Random, wait: Await) -> Kill:
    """Kill a worker's machine, or its raylet alone."""
    raylets = {pid: raylet_of(pid) for pid in recovery.lively(out)}
    victim, raylet = rng.choice([(pid, one) for pid, one in sorted(raylets.items()) if one])
    others = raylet.children(recursive=True) if what == "machine" else []
    time.sleep(rng.random() * 0.05)
    at_s = time.monotonic()
    for one in (raylet, *others):
        kill_quietly(one.pid)
    time.sleep(ADDED_S)
    added = [add_machine()]
    until_s = at_s if what == "machine" else at_s + WATCHED_S

    def is_whole() -> bool:
        if added[-1].poll() is not None:  # Ray gives up to start where other work is heavy
            added.append(add_machine())
        return recovery.steady(out, WORKERS, until_s)

    wait(is_whole, WHOLE_S, "it is not whole again")
    rows, living = recovery.recorded(out), recovery.lively(out)
    if what == "machine":
        step_s = recovery.outcome(rows, victim, at_s).seconds or float("nan")
        del rows[victim]
    else:
        step_s = longest_pause(rows, at_s)
    whole_s = max(float(one[one[:, 0] > at_s][0, 0]) for one in living.values()) - at_s
    return Kill(step_s, done_again(rows, at_s), whole_s)


def longest_pause(rows: dict[int, NDArray[np.float64]], at_s: float) -> float:
    """The longest time between two steps of anybody, from 1 s before the kill on."""
    times_s = np.sort(np.concatenate(list(rows.values()))[:, 0])
    return float(np.diff(times_s[times_s > at_s - 1.0]).max())


def done_again(rows: dict[int, NDArray[np.float64]], at_s: float) -> int:
    """Steps of before, or after, that came into the model once more after the kill."""
    times_s, steps = np.concatenate(list(rows.values())).T
    order = np.lexsort((times_s, steps))
    times_s, steps = times_s[order], steps[order]
    again = (np.diff(steps) == 0) & (np.diff(times_s) > AGAIN_S) & (times_s[1:] > at_s)
    return int(again.sum())


def measured(arm: str, what: str, kills: int, seed: int) -> list[Kill]:
    """Run one job, and so many kills."""
    rng, found = random.Random(seed), list[Kill]()
    with tempfile.TemporaryDirectory(prefix="paceline-stepping-") as name:
        out, since_s = Path(name), 0.0
        with ARMS[arm](out) as wait:
            for _ in range(kills):
                steady = functools.partial(recovery.steady, out, WORKERS, since_s)
                wait(steady, START_S, "it is not whole")
                found.append(kill_one(what, out, rng, wait))
                print(f"{arm}, {what}: {found[-1]}", file=sys.stderr, flush=True)
                since_s = time.monotonic()
    return found


def kill_head(watched_s: float) -> dict[str, object]:
    """Kill the head of the cluster under a job; there is one cluster, and so one kill.

    Returns:
        The longest pause, and for comparison that of as long before the kill.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-stepping-") as name:
        out = Path(name)
        with by_paceline(out) as wait:
            wait(functools.partial(recovery.steady, out, WORKERS, 0.0), START_S, "it is not whole")
            begun_s = time.monotonic()
            time.sleep(watched_s)
            at_s = time.monotonic()
            for one in psutil.Process(os.getppid()).children():  # of this cluster alone
                if one.name() == "gcs_server":
                    one.kill()
            time.sleep(watched_s)
            rows = recovery.recorded(out)
    before = {pid: one[one[:, 0] < at_s - 1.0] for pid, one in rows.items()}
    return {
        "head, paceline": {
            "step_s": longest_pause(rows, at_s),
            "before_s": longest_pause(before, begun_s),
            "again": done_again(rows, at_s),
        }
    }


# ---------------------------------------------------------------------------- launches


def launched_by_paceline(out: Path) -> float:
    """Seconds from the start of the master to its third agent."""
    with harness.running(spec_of(out)) as job:

        def joined() -> list[float]:
            return [one["t"] for one in harness.events(job) if one["event"] == "agent_joined"]

        harness.require(job, lambda: len(joined()) >= WORKERS, START_S, "its agents do not come")
        begun_s = next(one["t"] for one in harness.events(job) if one["event"] == "master_started")
        return float(max(joined()) - begun_s)


def launched_by_ray(_: Path) -> float:
    """Seconds from the start of a process to the answers of its three actors."""
    begun_s = time.monotonic()
    flags = ["--workers", str(WORKERS), "--cpus", str(CPUS)]
    return float(harness.output_of("actors", [sys.executable, str(ACTORS), *flags])) - begun_s


# ---------------------------------------------------------------------------- figures


def row_of(kills: Sequence[Kill]) -> dict[str, object]:
    fields = zip(Kill._fields, zip(*kills, strict=True), strict=True)
    return {name: harness.summary(values) for name, values in fields}


def kills_of(what: str, arms: Sequence[str], trials: int, per_round: int) -> dict[str, object]:
    """Kill machines or raylets of the arms in turns."""
    kills = {arm: list[Kill]() for arm in arms}
    while len(kills[arms[0]]) < trials:
        done = len(kills[arms[0]])
        for arm in arms if done // per_round % 2 else arms[::-1]:
            number = min(per_round, trials - done) if what == "machine" else 1
            kills[arm] += measured(arm, what, number, done)
    report: dict[str, object] = {f"{what}, {arm}": row_of(found) for arm, found in kills.items()}
    if len(arms) > 1:
        pairs = zip(*([kill.step_s for kill in kills[arm]] for arm in ARMS), strict=True)
        report[f"{what}, {' / '.join(ARMS)}"] = harness.ratio(list(pairs))
    return report


def launches(scratch: Path, trials: int) -> dict[str, object]:
    """Launch three nodes, and three actors, in turns."""
    both = [(launched_by_paceline(scratch), launched_by_ray(scratch)) for _ in range(trials)]
    ours, plain = zip(*both, strict=True)
    return {
        "launch, paceline": harness.summary(ours),
        "launch, actors": harness.summary(plain),
        "launch, excess": harness.summary([one - other for one, other in both]),
    }


def inside(arms: Sequence[str], options: argparse.Namespace) -> None:
    trials = 1 if options.quick else options.trials
    numbers = {"machine": trials, "raylet": max(1, trials // 5), "launch": trials}
    report: dict[str, object] = {}
    with harness.scratch() as scratch:
        for part in options.parts:
            if part == "launch":
                report |= launches(scratch, numbers[part])
            elif part == "head":
                report |= kill_head(WATCHED_S if options.quick else HEADLESS_S)
            else:
                report |= kills_of(part, arms, numbers[part], options.per_round)
            print(json.dumps(report), flush=True)
    harness.report("ray_recovery", report, file=options.json)


def main() -> int | None:
    parser = harness.parser(__doc__, "one kill of each, no figures")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--per-round", type=int, default=5, help="kills of one job")
    parser.add_argument("--fast-health", action="store_true", help="faster health checks of Ray")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    arms = list(ARMS)
    if importlib.util.find_spec("pandas") is None:
        harness.skipped("ray-train", "not installed; run: pip install 'ray[train]'")
        arms.remove("ray-train")
    if INSIDE in os.environ:
        inside(arms, options)
        return None
    if importlib.util.find_spec("ray") is None or os.geteuid() or not shutil.which("unshare"):
        harness.skipped("ray_recovery", "it needs Ray, root and unshare")
        return None
    again = [sys.executable, str(Path(__file__).absolute()), *sys.argv[1:]]
    command = ["unshare", "--net", sys.executable, "-m", "tests.ray.cluster", *again]
    env = {**os.environ, **(FAST_HEALTH if options.fast_health else {})}
    # Ray's own actors find the newest cluster of this folder, which must be ours.
    with tempfile.TemporaryDirectory(prefix="ray-") as env["RAY_TMPDIR"]:
        root = Path(__file__).parents[2]
        return subprocess.run(command, cwd=root, env=env, check=False).returncode


if __name__ == "__main__":
    harness.run(main)
