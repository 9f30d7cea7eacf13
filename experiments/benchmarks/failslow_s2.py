"""S2 of FALCON in real jobs: workers become slow, and the work is divided to suit.

    python benchmarks/failslow_s2.py [--quick] [--rows 2@1.7 4@1.9x2 ...] [--rounds 1]
        [--arms none falcon auto] [--step-s 0.69]

All-reduce jobs of 2, 4 and 8 workers (`jobs/slowed.py`); compute is emulated by a sleep for each
sample. While a job runs, a file makes some of its workers slower by a factor, and is removed later.
The detector knows nothing of that file. Rows are `workers@factor`, and `x` how many are slow. The
arms take turns: no solution, ``falcon`` and ``auto``, the latter two without restarts.

Printed for each row, over a healthy step: a step without action; with each solution, once its plan
has settled; with the integer optimum (the exact greedy on the true times); what FALCON published
(section 4.5 of its evaluation: GPUs, so other granularity). And the steps from the onset until 90 %
of what can be gained is gained, and from relief until shares are even again.

Floor: a step under ``falcon`` takes at most 1.1 times that of the integer optimum. Goal: at most 20
steps from onset to 90 % of the gain with 4 workers. Exit code 1: the floor is missed.
"""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.features.stragglers.policy.solvers import level
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec

SCRIPT = Path(__file__).with_name("jobs") / "slowed.py"
EVEN = 32
"""Samples of an even share."""
STEP_S, QUICK_STEP_S = 0.69, 0.1
"""A healthy step. FALCON's took 0.69 s with 4 workers: one that is slow made it 1.9 times that."""
WARM_S, QUICK_WARM_S = 45.0, 8.0
"""Seconds until a worker becomes slow: the first half minute tells how times drift."""
SLOW_STEPS, IDLE_STEPS, RELIEF_STEPS = 45, 12, 30
"""Steps with slow workers; the same without a solution; steps afterwards."""
LAST = 12
"""Steps at the end of a phase whose median is its figure."""
PART = 0.9
"""Part of the gain that is waited for."""
FLOOR, GOAL_STEPS = 1.1, 20
START_S = 120.0
ARMS = ("none", "falcon", "auto")


class Row(NamedTuple):
    """Slow workers of a job, and what FALCON published of them."""

    workers: int
    factor: float
    slow: int
    published: float | None = None
    """Mitigated, over a healthy step."""

    @property
    def name(self) -> str:
        return f"{self.workers}@{self.factor:g}" + (f"x{self.slow}" if self.slow > 1 else "")

    @property
    def factors(self) -> list[float]:
        """Factors by worker."""
        return [self.factor if index < self.slow else 1.0 for index in range(self.workers)]

    @property
    def optimum(self) -> float:
        """The integer optimum's compute, over that of an even share."""
        counts = level(np.zeros(self.workers), np.asarray(self.factors), EVEN * self.workers)
        return float(max(counts * self.factors)) / EVEN


ROWS = (
    Row(2, 1.3, 1, 1.2),
    Row(2, 1.5, 1, 1.2),
    Row(2, 1.7, 1, 1.3),
    Row(4, 1.9, 1, 1.2),
    Row(4, 1.9, 2, 1.3),
    Row(4, 1.9, 3, 1.5),
    Row(4, 1.9, 4, 1.9),
    Row(8, 1.3, 1, 1.1),
    Row(8, 1.5, 1, 1.2),
    Row(8, 1.7, 1, 1.2),
)
QUICK = ("2@1.7",)


class Seen(NamedTuple):
    """One job."""

    healthy_s: float
    slow_s: float
    """The last steps with slow workers."""
    onset: NDArray[np.float64]
    """Times of each step from the onset until relief."""
    evened: int | None
    """Steps from relief until shares were even; None: they never were, or always."""


class Timing(NamedTuple):
    """Lengths of the phases."""

    step_s: float
    warm_s: float
    slow: int
    relief: int


def spec_of(row: Row, arm: str, out: Path, step_s: float) -> JobSpec:
    flags = {
        "--out": out,
        "--steps": 100_000,
        "--batch-size": EVEN * row.workers,
        "--sample-s": step_s / EVEN,
    }
    return JobSpec(
        script=str(SCRIPT),
        args=tuple(word for flag in flags.items() for word in map(str, flag)),
        name=f"slowed-{row.name.replace('@', '-')}-{arm}",
        strategy="allreduce",
        solution=arm,
        solution_args={} if arm == "none" else {"max_restarts": "0"},
        workers=NodeSpec(count=row.workers),
        torch_threads=1,
        checkpoint=CheckpointSpec(every_s=harness.NEVER_S),
        preflight=False,
    )


def steps_of(out: Path, row: Row) -> list[NDArray[np.float64]]:
    """Return by worker when each of its steps began, with how many samples, and its number."""
    files = [out / f"worker-{index}.f64" for index in range(row.workers)]
    found = [harness.stamps(file) for file in files]
    return [each[: len(each) // 3 * 3].reshape(-1, 3) for each in found]


def done_since(out: Path, row: Row, at_s: float) -> int:
    """Steps that the worker with the fewest has begun since then."""
    return min(int((each[:, 0] >= at_s).sum()) for each in steps_of(out, row))


def run(row: Row, arm: str, out: Path, timing: Timing) -> Seen:
    """Run one job: healthy, then slow, then healthy."""
    out.mkdir()
    files = [out / f"worker-{index}.factor" for index in range(row.slow)]
    with harness.running(spec_of(row, arm, out, timing.step_s)) as job:

        def wait(since_s: float, steps: int) -> None:
            limit_s = START_S + 10 * steps * row.factor * timing.step_s
            harness.require(
                job, lambda: done_since(out, row, since_s) >= steps, limit_s, "it stands still"
            )

        wait(0.0, 1)
        time.sleep(timing.warm_s)
        onset_s = time.monotonic()
        for file in files:
            fresh = file.with_suffix(".fresh")
            fresh.write_text(str(row.factor))
            fresh.rename(file)
        wait(onset_s, timing.slow)
        relief_s = time.monotonic()
        for file in files:
            file.unlink()
        wait(relief_s, timing.relief)
    return judged(steps_of(out, row), onset_s, relief_s, job)


def judged(
    workers: Sequence[NDArray[np.float64]], onset_s: float, relief_s: float, job: JobDir
) -> Seen:
    """Judge what the workers' stamps say."""
    first, times_s = workers[0][:-1, 0], np.diff(workers[0][:, 0])
    healthy, slow = times_s[first < onset_s][:-1], times_s[(first >= onset_s) & (first < relief_s)]
    if len(healthy) < LAST or len(slow) < 2:
        raise harness.failed_job(job, f"{len(healthy)} healthy and {len(slow)} slow steps")
    after = [each[each[:, 0] >= relief_s, 1] for each in workers]
    uneven = [np.flatnonzero(each != EVEN) for each in after]
    last = max((int(each[-1]) + 1 for each in uneven if len(each)), default=0)
    return Seen(
        healthy_s=float(np.median(healthy[-2 * LAST :])),
        slow_s=float(np.median(slow[-LAST:])),
        onset=slow,
        evened=last if 0 < last < min(map(len, after)) else None,
    )


def until_gained(seen: Seen, without_s: float, best_s: float) -> int | None:
    """Steps from the onset until the gain stays above `PART`; None: it does not come to that."""
    bound_s = without_s - PART * (without_s - best_s)
    for step in range(len(seen.onset) - 2):
        if seen.onset[step] <= bound_s and np.median(seen.onset[step : step + LAST]) <= bound_s:
            return step
    return None


def figures_of(row: Row, runs: dict[str, list[Seen]], step_s: float) -> dict[str, object]:
    """Medians over the rounds."""

    def median(values: Sequence[float | None]) -> float | None:
        known = [each for each in values if each is not None]
        return round(statistics.median(known), 3) if len(known) == len(values) and known else None

    healthy_s = statistics.median(each.healthy_s for seen in runs.values() for each in seen)
    besides_s = max(healthy_s - step_s, 0.0)
    found: dict[str, object] = {"healthy_s": round(healthy_s, 4)}
    best_s = row.optimum * step_s + besides_s
    without_s = row.factor * step_s + besides_s
    if "none" in runs:
        without_s = statistics.median(each.slow_s for each in runs["none"])
    found["no action"] = round(without_s / healthy_s, 3)
    found["optimum"] = round(best_s / healthy_s, 3)
    found["published"] = row.published
    for arm, seen in runs.items():
        if arm == "none":
            continue
        found[arm] = median([each.slow_s / healthy_s for each in seen])
        found[f"{arm} / optimum"] = median([each.slow_s / best_s for each in seen])
        gains = [until_gained(each, without_s, best_s) for each in seen]
        found[f"{arm}, steps to {PART:.0%}"] = median(gains) if row.slow < row.workers else None
        found[f"{arm}, steps to even"] = median([each.evened for each in seen])
    return found


def main() -> int:
    parser = harness.parser(__doc__, "one row of short steps, each arm once")
    parser.add_argument("--rows", nargs="+", choices=[row.name for row in ROWS])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--step-s", type=float)
    options = parser.parse_args()
    quick = options.quick
    names = options.rows or (QUICK if quick else [row.name for row in ROWS])
    step_s = options.step_s or (QUICK_STEP_S if quick else STEP_S)
    warm_s = QUICK_WARM_S if quick else WARM_S
    found: dict[str, dict[str, object]] = {}
    with harness.scratch() as root:
        for row in [row for row in ROWS if row.name in names]:
            runs: dict[str, list[Seen]] = {arm: [] for arm in options.arms}
            for number in range(options.rounds):
                shift = number % len(options.arms)
                for arm in [*options.arms[shift:], *options.arms[:shift]]:
                    idle = arm == "none"
                    slow, relief = (IDLE_STEPS, 0) if idle else (SLOW_STEPS, RELIEF_STEPS)
                    warm = step_s * 2 * LAST if idle else warm_s
                    timing = Timing(step_s, max(warm, QUICK_WARM_S), slow, relief)
                    seen = run(row, arm, root / f"{row.name}-{arm}-{number}", timing)
                    runs[arm].append(seen)
                    ratio = seen.slow_s / seen.healthy_s
                    print(f"{row.name} {arm}: {ratio:.2f} of {seen.healthy_s:.3f} s", flush=True)
            found[row.name] = figures_of(row, runs, step_s)
    head = ["workers@factor", *next(iter(found.values()))]
    harness.table(head, [[name, *each.values()] for name, each in found.items()])
    harness.report(
        "failslow_s2",
        {"compute": "a sleep per sample", "even_share": EVEN, "step_s": step_s, "rows": found},
        file=options.json,
    )
    return verdict(found, quick=quick)


def verdict(found: dict[str, dict[str, object]], *, quick: bool) -> int:
    """Say whether the floor and the goal are met."""
    over = {name: row.get("falcon / optimum") for name, row in found.items()}
    worst = {name: each for name, each in over.items() if isinstance(each, float) and each > FLOOR}
    print(f"floor {FLOOR}: {'missed: ' + str(worst) if worst else 'met'}")
    steps = {
        name: row.get(f"falcon, steps to {PART:.0%}")
        for name, row in found.items()
        if name.startswith("4@") and name != "4@1.9x4"
    }
    late = {
        name: each
        for name, each in steps.items()
        if not isinstance(each, int | float) or each > GOAL_STEPS
    }
    print(f"goal {GOAL_STEPS} steps: {'missed: ' + str(late) if late else 'met'}")
    return int(bool(worst) and not quick)


if __name__ == "__main__":
    harness.run(main)
