"""What a solution costs a job in which nobody is slow.

    python benchmarks/solution_cost.py [--quick] [--pairs 40] [--solution auto]

Two jobs of one worker and one server, synchronous, one with the solution and one without, side by
side; their workers run so many steps in turn, never both. What workers measure is the same in both
(it is always measured); the master's windows, observations and decisions come on top. The ratio of
times with its 95 % interval over pairs; goal: 1.005. Prints JSON.
"""

import argparse
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
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--solution", default="auto")
    options = parser.parse_args()
    pairs = harness.interleaved(
        spec_of, (options.solution, "none"), 5 if options.quick else options.pairs
    )
    seconds = {
        options.solution: harness.summary([first for first, _ in pairs]),
        "none": harness.summary([second for _, second in pairs]),
    }
    harness.report("solution_cost", {"with / without": harness.ratio(pairs), "run_s": seconds})


if __name__ == "__main__":
    main()
