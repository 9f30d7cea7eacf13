"""What a solution costs a job in which nobody is slow.

    python benchmarks/solution_cost.py [--quick] [--jobs 8] [--pairs 15] [--workers 2]
        [--solution auto]

Two jobs of two workers, which a solution can compare, and one server, synchronous, one with the
solution and one without, side by side; they run so many steps in turn, never both. What workers
measure is the same in both (it is always measured); the master's windows, observations and
decisions come on top. One process is faster than the next for all its life, so there are several
pairs of jobs, and the ratio of median times has its 95 % interval over those, by Student's t.
Beside it, what the master takes of a core, which scatters less. Prints JSON and a verdict: exit
code 0, the ratio is at most 1.005; 1, it is above; 2, the interval is too wide to tell.
"""

import functools
import math
import statistics
from collections.abc import Iterable
from pathlib import Path

from paceline_experiments import harness
from paceline_experiments.stragglers.pairs import FEWEST_SEEDS, interval

from paceline.wire.spec import JobSpec, NodeSpec, WindowSpec

GOAL = 1.005
SCRIPT = Path(__file__).with_name("jobs") / "gated.py"


def spec_of(solution: str, flags: list[str], workers: int) -> JobSpec:
    return JobSpec(
        script=str(SCRIPT),
        args=(*flags, "--model", "click", "--run-steps", "20"),
        name=f"solution-cost-{solution.replace('_', '-')}",
        mode="bsp",
        workers=NodeSpec(count=workers),
        torch_threads=1,
        servers=NodeSpec(count=1),
        solution=solution,
        windows=WindowSpec(short_steps=10, long_steps=20),
    )


def verdict(ratios: list[float]) -> tuple[str, int]:
    """Say what is known about the goal, with the exit code; each ratio is of a pair of jobs."""
    if len(ratios) < FEWEST_SEEDS:
        return f"undecided: {len(ratios)} pairs of jobs, of {FEWEST_SEEDS} the least", 2
    mean, low, high = map(math.exp, interval([math.log(each) for each in ratios]))
    found = f"{mean:.4f} ({low:.4f} to {high:.4f}, {len(ratios)} pairs of jobs), goal {GOAL}"
    if low > GOAL:
        return f"missed: {found}", 1
    if high > GOAL:
        return f"undecided, the interval is too wide: {found}; take more --jobs", 2
    return f"met: {found}", 0


def main() -> int:
    parser = harness.parser(__doc__, "one pair of jobs, 2 of runs: decides nothing")
    parser.add_argument("--jobs", type=int, default=8, help="pairs of jobs")
    parser.add_argument("--pairs", type=int, default=15, help="of runs of each pair of jobs")
    parser.add_argument("--solution", default="auto")
    parser.add_argument("--workers", type=int, default=2, help="of each job, at least 2")
    options = parser.parse_args()
    if options.workers < 2:
        parser.error(f"--workers {options.workers}: a solution has nothing to compare; at least 2")
    num_jobs, num_pairs = (1, 2) if options.quick else (options.jobs, options.pairs)
    arms = (options.solution, "none")
    spec = functools.partial(spec_of, workers=options.workers)
    jobs = [harness.interleaved(spec, arms, num_pairs, options.workers) for _ in range(num_jobs)]
    medians = [_medians([run.seconds for run in runs] for runs in zip(*job)) for job in jobs]
    told, code = verdict([first / second for first, second in medians])
    figures: dict[str, object] = {"verdict": told, "of each pair of jobs": medians}
    for number, arm in enumerate(arms):
        parts = [pair[number].master_cpu_s / pair[number].seconds for job in jobs for pair in job]
        figures[f"{arm}: master, of a core"] = harness.summary(parts)
    harness.report("solution_cost", figures, file=options.json)
    print(told)
    return 0 if options.quick else code


def _medians(arms: Iterable[list[float]]) -> tuple[float, float]:
    first, second = (statistics.median(seconds) for seconds in arms)
    return first, second


if __name__ == "__main__":
    harness.run(main)
