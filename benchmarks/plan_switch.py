"""What a change of plan costs the step at which it takes effect.

    python benchmarks/plan_switch.py [--quick] [--switches 100] [--step-s 0.3]

A job of two workers and one server in BSP, whose steps take the same emulated compute whoever
computes how much of them, so that nothing but the change itself can make one longer. Every few
steps the master is asked for another plan. The time of a step is that from one batch to the next
at the slower worker; what is above the median of the ordinary steps is its extra wait. Goal: at the
95th percentile of the switching steps 1 % of a step, or 1 % more than at that of the ordinary ones,
which is the machine's own. Prints a table and JSON.
"""

import argparse
import sys
from pathlib import Path

import harness
import numpy as np
from equality import switching
from numpy.typing import NDArray

from paceline.base.jobdir import JobDir
from paceline.policy.straggler.actions import AdjustBatch, Share
from paceline.wire.spec import JobSpec, NodeSpec

WORKERS, BATCH_SIZE = 2, 64
EVERY = 6
"""Steps from one plan to the request for the next."""
PLANS = [
    AdjustBatch(shares={"worker-0": Share(size), "worker-1": Share(BATCH_SIZE - size)})
    for size in (8, 40, 60)
]
GOAL = 0.01
SKIPPED = 5
"""Steps at the start and at the end."""


def run(switches: int, step_s: float) -> tuple[NDArray[np.float64], NDArray[np.bool_], int]:
    """Seconds of each step, whether the one after it has another plan, and the plans committed."""
    steps = switches * (EVERY + 4) + 4 * SKIPPED
    with harness.scratch() as out:
        flags = {
            "--out": out,
            "--steps": steps,
            "--batch-size": BATCH_SIZE,
            "--step-s": step_s,
            "--together": WORKERS,
        }
        spec = JobSpec(
            script=str(Path(__file__).with_name("jobs") / "switched.py"),
            args=tuple(word for flag in flags.items() for word in map(str, flag)),
            name="plan-switch",
            mode="bsp",
            workers=NodeSpec(count=WORKERS),
            servers=NodeSpec(count=1),
        )
        with switching(EVERY, PLANS), harness.running(spec) as job:
            if not harness.until(job.outcome.exists, 60.0 + 2 * steps * step_s):
                raise RuntimeError("the job does not end")
            plans = sum(event["event"] == "plan" for event in harness.events(job))
        return (*steps_of(out, job), plans)


def steps_of(out: Path, job: JobDir) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """From the workers' stamps."""
    rows = [harness.stamps(path).reshape(-1, 2) for path in sorted(out.glob("worker-*.f64"))]
    if len({len(one) for one in rows}) != 1:
        raise RuntimeError(f"a worker was not part of every step; see {job.logs}")
    times = np.max([np.diff(one[:, 0]) for one in rows], axis=0)
    switched = np.diff(rows[0][:, 1]) != 0
    return times[SKIPPED:-SKIPPED], switched[SKIPPED:-SKIPPED]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--switches", type=int, default=100)
    parser.add_argument("--step-s", type=float, default=0.3)
    parser.add_argument("--quick", action="store_true", help="20 switches")
    options = parser.parse_args()
    times, switched, plans = run(20 if options.quick else options.switches, options.step_s)
    median_s = float(np.median(times[~switched]))
    extra = {
        name: np.percentile(times[which] - median_s, [50, 95, 100]) / median_s
        for name, which in (("switching", switched), ("ordinary", ~switched))
    }
    harness.table(
        ("steps", "number", "median", "p95", "max"),
        [
            (name, int(which.sum()), *(f"{share:.2%}" for share in extra[name]))
            for name, which in (("switching", switched), ("ordinary", ~switched))
        ],
    )
    print(f"extra wait as a share of a step of {1e3 * median_s:.1f} ms; {plans} plans committed")
    harness.report(
        "plan_switch",
        {
            "step_s": round(median_s, 5),
            "switches": int(switched.sum()),
            "plans": plans,
            "extra": {
                name: dict(zip(("median", "p95", "max"), map(float, found), strict=True))
                for name, found in extra.items()
            },
            "goal_p95": GOAL,
        },
    )
    return int(extra["switching"][1] > GOAL + max(0.0, extra["ordinary"][1]))


if __name__ == "__main__":
    sys.exit(main())
