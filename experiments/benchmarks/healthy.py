"""What the default solution does to jobs in which nobody is slow, on a quiet and a busy machine.

    python benchmarks/healthy.py [--quick] [--seconds 60] [--rounds 3] [--only bsp-2 asp-3 ...]
        [--loads 0 2 8] [--share-cores]

Two jobs of the same kind, one with the default solution (``auto``) and one with ``none``. Where
the load is 0 one runs after the other, the order alternating from round to round. Else both run at
the same time beside processes that only compute, each with one half of the cores and of the load,
the halves changing from round to round: where two jobs contend for the same cores, chance gives
one up to a third more. ``--share-cores`` lets them.
Counted in the job with ``auto``: restarts and replacements that it ordered, and changes of the plan
(ADJUST_BS, BACKUP_WORKERS, partial steps) that took effect. The ratio is that of samples that came
into the models in the same number of seconds, after a warm-up, with its 95 % interval over rounds.
Goals: no restart, no replacement, at most two changes of the plan a minute, a ratio of at least
0.99. Exit code 1: a restart, or more changes; 2: the interval of the ratio does not decide; 3: it
is below.
"""

import contextlib
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any, NamedTuple

from paceline_experiments import harness

from paceline.base.errors import TransientError
from paceline.base.jobdir import JobDir
from paceline.features.stragglers.policy.decision_log import Decided, TookEffect, decode, log_of
from paceline.policy.actions import KillRestart
from paceline.wire.spec import JobSpec, NodeSpec

SCRIPT = Path(__file__).with_name("jobs") / "healthy.py"
WARM_UP_S = 5.0
START_S = 120.0
MAX_CHANGES_PER_MIN = 2.0
MIN_RATIO = 0.99


class Kind(NamedTuple):
    """A kind of job."""

    mode: str
    """``bsp``, ``asp`` or ``allreduce``."""
    workers: int

    def __str__(self) -> str:
        return f"{self.mode}-{self.workers}"


KINDS = [Kind(mode, workers) for mode in ("bsp", "asp", "allreduce") for workers in (2, 3, 4)]


class Counted(NamedTuple):
    """Result of one job."""

    samples: int
    seconds: float
    restarts: int
    changes: int


def spec_of(kind: Kind, solution: str) -> JobSpec:
    common: dict[str, Any] = {
        "script": str(SCRIPT),
        "name": f"healthy-{kind}-{solution}",
        "workers": NodeSpec(count=kind.workers),
        "torch_threads": 1,
        "solution": solution,
        "preflight": False,
    }
    if kind.mode == "allreduce":
        return JobSpec(strategy="allreduce", **common)
    return JobSpec(strategy="ps", mode=kind.mode, servers=NodeSpec(count=1), **common)


def actions_of(job: JobDir) -> tuple[int, int]:
    """Restarts that were ordered (replacements among them), and plans that took effect."""
    if not log_of(job).exists():
        return 0, 0
    lines = list(decode(log_of(job).read_bytes().splitlines()))
    decided = {line.no: line.actions for line in lines if isinstance(line, Decided)}
    ordered = [action for actions in decided.values() for action in actions]
    took = [
        decided[line.no][line.index]
        for line in lines
        if isinstance(line, TookEffect) and line.no in decided
    ]
    restarts = sum(isinstance(action, KillRestart) for action in ordered)
    return restarts, sum(not isinstance(action, KillRestart) for action in took)


def committed(job: JobDir) -> int:
    """Samples in the model; of a machine that is so busy that the master is late, asked again."""
    found: list[int] = []

    def answers() -> bool:
        with contextlib.suppress(TransientError):
            found.append(harness.status(job).committed)
        return bool(found)

    harness.require(job, answers, START_S, "its master does not answer")
    return found[0]


def watch(jobs: list[JobDir], seconds: float) -> list[Counted]:
    """Wait until all train, and so many seconds more."""
    for job in jobs:
        harness.require(
            job, lambda job=job: committed(job) > 0, START_S, "it does not begin to train"
        )
    time.sleep(WARM_UP_S)
    changes = [actions_of(job)[1] for job in jobs]
    begun_s, before = time.monotonic(), [committed(job) for job in jobs]
    harness.happens(jobs[0], lambda: time.monotonic() - begun_s >= seconds, seconds + 1.0)
    after, took_s = [committed(job) for job in jobs], time.monotonic() - begun_s
    found = []
    for job, start, end, early in zip(jobs, before, after, changes, strict=True):
        restarts, all_changes = actions_of(job)
        if restarts:
            kept = Path(tempfile.gettempdir()) / f"{job.job_id}-decisions.jsonl"
            shutil.copyfile(log_of(job), kept)
            print(f"it restarted nodes: its decisions are kept as {kept}")
        found.append(Counted(end - start, took_s, restarts, all_changes - early))
    return found


def one_round(
    kind: Kind, seconds: float, load: int, number: int, share_cores: bool
) -> tuple[Counted, Counted]:
    """The job with ``auto``, and the one with ``none``."""
    arms = ["auto", "none"] if number % 2 else ["none", "auto"]
    found = {}
    if not load:
        for arm in arms:
            with harness.running(spec_of(kind, arm)) as job:
                found[arm] = watch([job], seconds)[0]
        return found["auto"], found["none"]
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    own = [set(cores)] * 2 if share_cores or not half else [set(cores[:half]), set(cores[half:])]
    loads = load - load // 2, load // 2
    with contextlib.ExitStack() as stack:
        jobs = []
        for arm, where, part in zip(arms, own, loads, strict=True):
            with on(where):
                stack.enter_context(busy(part))
                jobs.append(stack.enter_context(harness.running(spec_of(kind, arm))))
        found = dict(zip(arms, watch(jobs, seconds), strict=True))
    return found["auto"], found["none"]


@contextlib.contextmanager
def on(cores: Set[int]) -> Iterator[None]:
    """Have what is started within compute on these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _spin() -> None:
    # Else all of them, and this process, weigh as much as one (the kernel groups by session).
    os.setsid()
    while True:
        sum(range(10_000))


@contextlib.contextmanager
def busy(load: int) -> Iterator[None]:
    """Have so many processes compute beside all else that runs."""
    spawned = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(load)]
    for one in spawned:
        one.start()
    try:
        yield
    finally:
        for one in spawned:
            one.kill()
            one.join()


def judge(rounds: dict[str, list[tuple[Counted, Counted]]]) -> tuple[dict[str, Any], int]:
    """Figures by kind and load and of all together, and the exit code."""
    every = [one for pairs in rounds.values() for one in pairs]
    figures = {name: figures_of(pairs) for name, pairs in rounds.items()}
    whole = figures["all"] = figures_of(every)
    if whole["restarts"] or whole["changes per minute"] > MAX_CHANGES_PER_MIN:
        return figures, 1
    if whole["ratio"]["high95"] < MIN_RATIO:
        return figures, 3
    return figures, 2 if whole["ratio"]["low95"] < MIN_RATIO else 0


def figures_of(pairs: list[tuple[Counted, Counted]]) -> dict[str, Any]:
    minutes = sum(auto.seconds for auto, _ in pairs) / 60
    return {
        "minutes": round(minutes, 1),
        "restarts": sum(auto.restarts for auto, _ in pairs),
        "changes per minute": round(sum(auto.changes for auto, _ in pairs) / minutes, 2),
        "ratio": harness.ratio([(auto.samples, none.samples) for auto, none in pairs]),
    }


def main() -> int:
    parser = harness.parser(__doc__, "one kind of each mode, 3 s, one round: decides nothing")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each job")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loads", type=int, nargs="+", default=[0, 2, 8], help="busy processes")
    parser.add_argument("--share-cores", action="store_true", help="both jobs use all cores")
    parser.add_argument("--only", nargs="+", metavar="KIND", help=", ".join(map(str, KINDS)))
    options = parser.parse_args()
    kinds = [kind for kind in KINDS if not options.only or str(kind) in options.only]
    if not kinds:
        parser.error(f"--only {' '.join(options.only)}: expected some of {[*map(str, KINDS)]}")
    seconds, num_rounds, loads = options.seconds, options.rounds, options.loads
    if options.quick:
        kinds, seconds, num_rounds, loads = kinds[::3], 3.0, 1, [2]
    rounds: dict[str, list[tuple[Counted, Counted]]] = {}
    with harness.scratch():
        for number in range(num_rounds):
            for load in loads:
                for kind in kinds:
                    pair = one_round(kind, seconds, load, number, options.share_cores)
                    rounds.setdefault(f"{kind}, load {load}", []).append(pair)
                    print(f"round {number}, {kind}, load {load}: auto {pair[0]}, none {pair[1]}")
    figures, code = judge(rounds)
    rows = [
        (
            name,
            each["minutes"],
            each["restarts"],
            each["changes per minute"],
            each["ratio"]["ratio"],
        )
        for name, each in figures.items()
    ]
    harness.table(("", "minutes", "restarts", "changes per minute", "auto over none"), rows)
    harness.report("healthy", figures, file=options.json)
    return 0 if options.quick else code


if __name__ == "__main__":
    harness.run(main)
