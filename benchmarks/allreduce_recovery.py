"""A worker is killed in an all-reduce job: when is the next step in the model of anybody?

    python benchmarks/allreduce_recovery.py [--quick] [--trials 20] [--workers 2 4] [--log FOLDER]

Steps of 50 ms of emulated compute (a sleep), 1 MB of gradients, gloo on loopback. Arms: paceline,
and torchrun as it is installed (``--standalone``, its default monitor interval), which restarts all
workers; its script keeps no checkpoint, so what it loses in steps is not counted. In rounds that
take turns; each round starts a job anew and kills one worker after another, the next one when all
have done 20 steps together. A kill that nothing follows within 60 s is counted as *never*. Floor:
median <= 1.0 s, 95 % <= 2 s; goal: median <= 0.3 s.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import harness
import numpy as np

from paceline.wire.spec import JobSpec, NodeSpec, RestartSpec

SCRIPT = Path(__file__).with_name("jobs") / "stepping.py"
STEADY_STEPS = 20
PATIENCE_S = 60.0
FLOOR_S, FLOOR_P95_S, GOAL_S = 1.0, 2.0, 0.3


@contextlib.contextmanager
def by_paceline(out: Path, workers: int, log: Path) -> Iterator[None]:
    """A job of this many workers; its logs are copied to ``log``."""
    spec = JobSpec(
        script=str(SCRIPT),
        args=("--out", str(out)),
        name="recovery",
        strategy="allreduce",
        workers=NodeSpec(count=workers),
        restart=RestartSpec(budget=1000, backoff_s=0.0),
        solution="none",
    )
    with harness.running(spec) as job:
        yield
        shutil.copytree(job.logs, log / "logs", dirs_exist_ok=True)
        shutil.copy(job.events, log)


@contextlib.contextmanager
def by_torchrun(out: Path, workers: int, log: Path) -> Iterator[None]:
    """The same under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [
        f"--nproc-per-node={workers}",
        "--max-restarts=1000",
        str(SCRIPT),
        "--out",
        str(out),
    ]
    with (log / "torchrun.log").open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, start_new_session=True, env=plain_environment()
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10.0)
            for pid in living(out):
                os.kill(pid, signal.SIGKILL)
            if process.poll() is None:
                process.kill()


def plain_environment() -> dict[str, str]:
    """Without what a job of ours would set, and one thread for each process, as ours have."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PACELINE_")} | {
        "OMP_NUM_THREADS": "1"
    }


ARMS = {"paceline": by_paceline, "torchrun": by_torchrun}


def living(out: Path) -> dict[int, np.ndarray]:
    """The processes that live, and the times of their steps."""
    found = {int(path.stem): path for path in out.glob("*.f64")}
    return {
        pid: harness.stamps(path) for pid, path in found.items() if Path(f"/proc/{pid}").exists()
    }


def steady(out: Path, workers: int, since_s: float) -> bool:
    """Whether so many workers have all done their steps since then."""
    counts = [int((times > since_s).sum()) for times in living(out).values()]
    return sum(count >= STEADY_STEPS for count in counts) >= workers


def kill_one(out: Path, rng: random.Random) -> float | None:
    """Kill one worker: seconds until somebody's next step; None: there was none."""
    victim = rng.choice(sorted(living(out)))
    time.sleep(rng.random() * 0.05)
    at_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)

    def after() -> list[float]:
        found = {int(path.stem): harness.stamps(path) for path in out.glob("*.f64")}
        return [float(t) for pid, ts in found.items() if pid != victim for t in ts[ts > at_s]]

    # A step whose sums were complete before the kill may end after it: it is none of the next.
    def next_ones() -> list[float]:
        times = sorted(after())
        return [t for t in times if t > at_s + 0.045]

    if not harness.until(lambda: bool(next_ones()), PATIENCE_S):
        return None
    return next_ones()[0] - at_s


def measured(arm: str, workers: int, kills: int, seed: int, log: Path) -> list[float | None]:
    """One round."""
    rng = random.Random(seed)
    found: list[float | None] = []
    log.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="paceline-stepping-") as name:
        out = Path(name)
        with ARMS[arm](out, workers, log):
            since_s = 0.0
            for _ in range(kills):
                if not harness.until(lambda: steady(out, workers, since_s), PATIENCE_S):  # noqa: B023
                    found.append(None)
                    return found
                took = kill_one(out, rng)
                found.append(took)
                if took is None:
                    return found
                since_s = time.monotonic()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--per-round", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--arms", nargs="+", choices=sorted(ARMS), default=sorted(ARMS))
    parser.add_argument("--log", type=Path, default=None, help="keep logs here")
    parser.add_argument("--quick", action="store_true", help="one kill each, no figures")
    options = parser.parse_args()
    trials, per_round = (1, 1) if options.quick else (options.trials, options.per_round)
    report = {}
    with harness.scratch() as scratch:
        for workers in options.workers:
            found: dict[str, list[float | None]] = {arm: [] for arm in options.arms}
            number = 0
            while min(map(len, found.values())) < trials:
                for arm in sorted(found, key=lambda arm: (number + options.arms.index(arm)) % 2):
                    if len(found[arm]) < trials:
                        log = (options.log or scratch) / f"{arm}-{workers}-{number}"
                        found[arm] += measured(arm, workers, per_round, number, log)
                number += 1
            for arm, took in found.items():
                times = [t for t in took[:trials] if t is not None]
                row = harness.summary(times) | {"never": took[:trials].count(None)}
                if times:
                    row["p95"] = round(float(np.quantile(times, 0.95)), 4)
                report[f"{arm}, {workers} workers"] = row
                print(f"{arm}, {workers} workers: {json.dumps(row)}", flush=True)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
