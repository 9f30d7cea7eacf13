"""What a solution costs a job in which nobody is slow.

    python benchmarks/solution_cost.py [--quick] [--jobs 8] [--pairs 15] [--solution auto]

Two jobs of one worker and one server, synchronous, one with the solution and one without, side by
side; their workers run so many steps in turn, never both. What workers measure is the same in both
(it is always measured); the master's windows, observations and decisions come on top. One process
is faster than the next for all its life, so there are several pairs of jobs, and the ratio of
median times (goal: 1.005) has its 95 % interval over those. Beside it, what the master takes of a
core, which scatters less. Prints JSON.
"""

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path

import harness

from paceline.wire.spec import JobSpec, NodeSpec, WindowSpec

SCRIPT = Path(__file__).with_name("jobs") / "gated.py"


def spec_of(solution: str, flags: list[str]) -> JobSpec:
    return JobSpec(
        script=str(SCRIPT),
        args=(*flags, "--model", "click", "--run-steps", "20"),
        name="solution-cost",
        mode="bsp",
        workers=NodeSpec(count=1),
        servers=NodeSpec(count=1),
        solution=solution,
        windows=WindowSpec(short_steps=10, long_steps=20),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jobs", type=int, default=8, help="pairs of jobs")
    parser.add_argument("--pairs", type=int, default=15, help="of runs of each pair of jobs")
    parser.add_argument("--solution", default="auto")
    options = parser.parse_args()
    num_jobs, num_pairs = (2, 5) if options.quick else (options.jobs, options.pairs)
    arms = (options.solution, "none")
    jobs = [harness.interleaved(spec_of, arms, num_pairs) for _ in range(num_jobs)]
    medians = [_medians([run.seconds for run in runs] for runs in zip(*job)) for job in jobs]
    figures = {"with / without": harness.ratio(medians), "of each pair of jobs": medians}
    for number, arm in enumerate(arms):
        parts = [pair[number].master_cpu_s / pair[number].seconds for job in jobs for pair in job]
        figures[f"{arm}: master, of a core"] = harness.summary(parts)
    harness.report("solution_cost", figures)


def _medians(arms: Iterable[list[float]]) -> tuple[float, float]:
    first, second = (statistics.median(seconds) for seconds in arms)
    return first, second


if __name__ == "__main__":
    main()
