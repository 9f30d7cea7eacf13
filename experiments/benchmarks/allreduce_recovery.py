"""A worker is killed in an all-reduce job: when is the next step in the model of anybody?

    python benchmarks/allreduce_recovery.py [--quick] [--trials 20] [--workers 2 4] [--log FOLDER]
                                            [--peers FOLDER] [--arms ARM ...]

Steps of 50 ms of emulated compute (a sleep), 1 MB of gradients, gloo on loopback, the same script
(`jobs/stepping.py`). Arms: paceline; torchrun as it is installed (``--standalone``, its default
monitor interval); with ``--peers`` (optional), where `peers/install.py` has installed them:
torchft, released and nightly, each with the lighthouse of its README (``join`` 10 s, heartbeats
missed for 5 s) and, as ``-eager``, with 1 s and 0.5 s; DLRover (``dlrover-run --standalone``) as
installed and with what it takes to run. torchrun and DLRover restart all workers, whose script
keeps no checkpoint: they lose every step.

In rounds that take turns; each round starts a job anew and kills one worker after another, the next
one when all have done 20 steps together. A kill that nothing follows within 60 s is counted as
*never*, and ends the round. An arm that ends before it trains, or with five such kills, is asked no
more. *lost* are steps that were in the model before the kill and are not in the one after it.
Floor: median <= 1.0 s, 95 % <= 2 s; goal: median <= 0.3 s; 0 lost.
"""

import contextlib
import functools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from paceline_experiments import harness
from peers import launch
from peers.install import chosen

from paceline.base.jobdir import JobDir
from paceline.jobs.outcome import read_outcome
from paceline.wire.spec import JobSpec, NodeSpec, RestartSpec

SCRIPT = Path(__file__).with_name("jobs") / "stepping.py"
STEADY_STEPS = 20
PATIENCE_S = 60.0
MOST_NEVER = 5
LIVELY_S = 1.0
"""Seconds since the last step of a process that is killed, at most."""
LATE_S = 0.03
"""The step under way may have had its sums before the kill, and ends so much later at most. Where
they broke it takes longer: 50 ms again, after the group is formed anew."""


class Started(Protocol):
    """A process, or a job."""

    def poll(self) -> int | None:
        """Return its exit status; None: it runs."""


Launcher = Callable[
    [Path, int, Sequence[str], Path], contextlib.AbstractContextManager[Sequence[Started]]
]
"""Way to start so many workers of a script by the Python of a peer, with flags and a log folder."""


class Kill(NamedTuple):
    """Outcome of one kill."""

    seconds: float | None
    """Seconds until the next step in the model of anybody; None: there was none."""
    lost: int
    """Steps that were in the model and are not any more."""


class NotStartedError(Exception):
    """The arm ended before all its workers trained."""


class StartedJob(NamedTuple):
    """A job of paceline, seen as its process."""

    job: JobDir

    def poll(self) -> int | None:
        """Return its exit status; None: it runs."""
        outcome = read_outcome(self.job.outcome)
        return None if outcome is None else outcome.exit_code


@contextlib.contextmanager
def by_paceline(
    python: Path, workers: int, script: Sequence[str], log: Path
) -> Iterator[Sequence[Started]]:
    """A job of this many workers; its logs are copied to ``log``."""
    spec = JobSpec(
        script=script[0],
        args=tuple(script[1:]),
        name=f"recovery-{workers}",
        strategy="allreduce",
        workers=NodeSpec(count=workers),
        restart=RestartSpec(budget=1000, backoff_s=0.0),
        solution="none",
    )
    with harness.running(spec) as job:
        try:
            yield [StartedJob(job)]
        finally:
            shutil.copytree(job.logs, log, dirs_exist_ok=True)
            shutil.copy(job.events, log)


readme = functools.partial(launch.by_torchft, join_ms=10_000, heartbeat_ms=5_000)
eager = functools.partial(launch.by_torchft, join_ms=1_000, heartbeat_ms=500)
ARMS: dict[str, tuple[str | None, Launcher]] = {
    "paceline": (None, by_paceline),
    "torchrun": (None, launch.by_torchrun),
    "torchft": ("torchft", readme),
    "torchft-eager": ("torchft", eager),
    "torchft-nightly": ("torchft-nightly", readme),
    "torchft-nightly-eager": ("torchft-nightly", eager),
    "dlrover": ("dlrover", launch.by_dlrover),
    "dlrover-fixed": ("dlrover-fixed", launch.by_dlrover),
}
"""Arms: what is installed, by which name, None: with the benchmark; and how it starts a script."""


def recorded(out: Path) -> dict[int, NDArray[np.float64]]:
    """Return times and steps, ``[n, 2]``, of every process that ever trained."""
    return {int(path.stem): harness.steps(path) for path in out.glob("*.f64")}


def lively(out: Path) -> dict[int, NDArray[np.float64]]:
    """Return those of processes that live and train: a killed one that is to be reaped does not."""
    since_s = time.monotonic() - LIVELY_S
    rows = {pid: rows for pid, rows in recorded(out).items() if Path(f"/proc/{pid}").exists()}
    return {pid: one for pid, one in rows.items() if len(one) and one[-1, 0] > since_s}


def steady(out: Path, workers: int, since_s: float) -> bool:
    """Tell whether so many workers have all done their steps since then."""
    counts = [int((rows[:, 0] > since_s).sum()) for rows in lively(out).values()]
    return sum(count >= STEADY_STEPS for count in counts) >= workers


def kill_one(out: Path, rng: random.Random, ended: Callable[[], bool]) -> Kill:
    """Kill one worker; ``ended``: whether nothing can follow any more."""
    victim = rng.choice(sorted(lively(out)))
    time.sleep(rng.random() * 0.05)
    at_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    time.sleep(LATE_S)

    def is_over() -> bool:
        return ended() or outcome(recorded(out), victim, at_s).seconds is not None

    harness.until(is_over, PATIENCE_S)
    return outcome(recorded(out), victim, at_s)


def outcome(rows: dict[int, NDArray[np.float64]], victim: int, at_s: float) -> Kill:
    """Return what a kill at ``at_s`` led to, as far as is recorded."""
    every = np.concatenate(list(rows.values()))
    # What the victim recorded is exact: of no later step than this has anybody had its share.
    under_way = round(rows[victim][-1, 1]) + 1
    held = min(under_way, round(every[every[:, 0] <= at_s + LATE_S, 1].max()))
    others = np.concatenate([[(np.inf, 0.0)], *(one for pid, one in rows.items() if pid != victim)])
    times_s, steps = others.T
    # Another member may be later than that with the same step.
    fresh = (steps > under_way) | ((times_s > at_s + LATE_S) & (steps != held))
    first_s, number = min(map(tuple, others[(times_s > at_s) & fresh]))
    if first_s == np.inf:
        return Kill(None, held)
    return Kill(first_s - at_s, max(0, held - (round(number) - 1)))


def measured(arm: str, python: Path, workers: int, kills: int, seed: int, log: Path) -> list[Kill]:
    """Measure one round.

    Raises:
        NotStartedError: all of the arm's processes ended, or workers did not train in time.
    """
    rng = random.Random(seed)
    found: list[Kill] = []
    log.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="paceline-stepping-") as name:
        out = Path(name)
        script = [str(SCRIPT), "--out", name]
        with ARMS[arm][1](python, workers, script, log) as processes:

            def ended() -> bool:
                return any(process.poll() is not None for process in processes)

            since_s = 0.0
            for _ in range(kills):
                harness.until(lambda: ended() or steady(out, workers, since_s), PATIENCE_S)  # noqa: B023
                if not steady(out, workers, since_s):
                    if not found:
                        raise NotStartedError
                    # Survivors went on, but never all of them together again.
                    return found
                found.append(kill_one(out, rng, ended))
                if found[-1].seconds is None:
                    return found
                since_s = time.monotonic()
    return found


def row_of(kills: Sequence[Kill]) -> dict[str, object]:
    """Make a row of the table."""
    times = [kill.seconds for kill in kills if kill.seconds is not None]
    row: dict[str, object] = {**harness.summary(times), "never": len(kills) - len(times)}
    if times:
        row["p95"] = round(float(np.quantile(times, 0.95)), 4)
        row["lost"] = harness.summary([kill.lost for kill in kills])
    return row


def main() -> None:
    parser = harness.parser(__doc__, "2 workers, one kill each, no figures")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--per-round", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--peers", type=Path, default=None, help="where they are installed")
    parser.add_argument("--arms", nargs="+", choices=ARMS, help="default: all that are installed")
    parser.add_argument("--log", type=Path, default=None, help="keep logs here")
    options = parser.parse_args()
    pythons = chosen({arm: peer for arm, (peer, _) in ARMS.items()}, options.peers, options.arms)
    trials, per_round = options.trials, options.per_round
    if options.quick:
        trials, per_round, options.workers = 1, 1, [2]
    report = {}
    lost: dict[str, str] = {}
    with harness.scratch() as scratch:
        for workers in options.workers:
            found, failed = rounds(pythons, workers, trials, per_round, options.log or scratch)
            for arm, kills in found.items():
                row = row_of(kills[:trials])
                what = f"{arm}, {workers} workers"
                if arm in failed:
                    row["did not start"] = lost[what] = failed[arm]
                report[what] = row
                print(f"{what}: {json.dumps(row)}", flush=True)
    harness.report("allreduce_recovery", report, file=options.json, failed=lost)


def rounds(
    pythons: dict[str, Path], workers: int, trials: int, per_round: int, log: Path
) -> tuple[dict[str, list[Kill]], dict[str, str]]:
    """Take turns until each arm has its trials; of which that did not start, why."""
    found: dict[str, list[Kill]] = {arm: [] for arm in pythons}
    failed: dict[str, str] = {}
    number = 0

    def is_open(arm: str) -> bool:
        never = sum(kill.seconds is None for kill in found[arm])
        return arm not in failed and never < MOST_NEVER and len(found[arm]) < trials

    while open_ := [arm for arm in pythons if is_open(arm)]:
        so_far = ", ".join(f"{arm} {len(found[arm])}" for arm in open_)
        print(f"{workers} workers, round {number}: kills so far: {so_far}", file=sys.stderr)
        for arm in open_[number % len(open_) :] + open_[: number % len(open_)]:
            folder = log / f"{arm}-{workers}-{number}"
            try:
                found[arm] += measured(arm, pythons[arm], workers, per_round, number, folder)
            except NotStartedError:
                failed[arm] = f"it did not train{harness.last_lines(folder.glob('*.log'))}"
        number += 1
    return found, failed


if __name__ == "__main__":
    harness.run(main)
