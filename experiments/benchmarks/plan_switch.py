"""What a change of plan costs the step at which it takes effect.

    python benchmarks/plan_switch.py [--quick] [--switches 100] [--step-s 0.3] [--workers 2]

A job of an even number of workers and one server in BSP, whose steps take the same emulated compute
whoever computes how much of them, so that nothing but the change itself can make one longer. Every
few steps the master is asked for another plan. The time of a step is that from one batch to the
next at the slower worker; what is above the median of the ordinary steps is its extra wait. Goal:
at most 1 % of a step at the 95th percentile of the switching steps. What the ordinary ones have
there is the machine's own, and is shown beside it: where that is above 1 % by itself, the machine
is too busy to show the goal reached. Prints a table, JSON and a verdict; exit code 1: missed.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from equality import switching
from numpy.typing import NDArray
from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.policy.actions import AdjustBatch, Share
from paceline.wire.spec import JobSpec, NodeSpec

WORKERS = 2
OF_TWO = 64
"""Samples of a step, per pair of workers."""
EVERY = 6
"""Steps from one plan to the request for the next."""
GOAL = 0.01
SKIPPED = 5
"""Steps at the start and at the end."""


class Run(NamedTuple):
    """One job."""

    times: NDArray[np.float64]
    """Seconds of each step."""
    switched: NDArray[np.bool_]
    """Whether the step after it has another plan."""
    plans: int
    """Number of plans that were committed."""
    phases: NDArray[np.float64]
    """[plans, 3]: monotonic times: asked for, committed, all workers granted something anew."""


def plans_of(workers: int) -> list[AdjustBatch]:
    """Make plans by which now one, now the other of each two workers computes more."""
    return [
        AdjustBatch(
            shares={f"worker-{k}": Share(OF_TWO - size if k % 2 else size) for k in range(workers)}
        )
        for size in (8, 40, 60)
    ]


def run(switches: int, step_s: float, workers: int = WORKERS) -> Run:
    """Run one job of an even number of workers."""
    steps = switches * (EVERY + 4) + 4 * SKIPPED
    with harness.scratch() as out:
        flags = {
            "--out": out,
            "--steps": steps,
            "--batch-size": OF_TWO * workers // 2,
            "--step-s": step_s,
            "--together": workers,
        }
        spec = JobSpec(
            script=str(Path(__file__).with_name("jobs") / "switched.py"),
            args=tuple(word for flag in flags.items() for word in map(str, flag)),
            name="plan-switch",
            mode="bsp",
            solution="none",
            workers=NodeSpec(count=workers),
            torch_threads=1,
            servers=NodeSpec(count=1),
        )
        found = out / "phases"
        with switching(EVERY, plans_of(workers), found), harness.running(spec) as job:
            harness.finish(job, 60.0 + 2 * steps * step_s)
            plans = sum(event["event"] == "plan" for event in harness.events(job))
        return Run(*steps_of(out, job), plans, harness.stamps(found).reshape(-1, 3))


def steps_of(out: Path, job: JobDir) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Read steps from the workers' stamps; the first may be without those that came late."""
    rows = [harness.stamps(path).reshape(-1, 3) for path in sorted(out.glob("worker-*.f64"))]
    first = SKIPPED + int(max(one[0, 2] for one in rows))
    rows = [one[one[:, 2] >= first] for one in rows]
    if any(not np.array_equal(one[:, 2], rows[0][:, 2]) for one in rows):
        raise harness.failed_job(job, "a worker was not part of every step")
    times = np.max([np.diff(one[:, 0]) for one in rows], axis=0)
    switched = np.diff(rows[0][:, 1]) != 0
    return times[:-SKIPPED], switched[:-SKIPPED]


def main() -> int:
    parser = harness.parser(__doc__, "8 switches, steps of 50 ms")
    parser.add_argument("--switches", type=int, default=100)
    parser.add_argument("--step-s", type=float, default=0.3)
    parser.add_argument("--workers", type=int, default=WORKERS, help="an even number")
    options = parser.parse_args()
    if options.workers < 2 or options.workers % 2:
        parser.error(f"--workers {options.workers}: pairs of workers take turns; an even number")
    if options.quick:
        options.switches, options.step_s = 8, 0.05
    times, switched, plans, _ = run(options.switches, options.step_s, options.workers)
    if not switched.any() or switched.all():
        raise harness.failure("plan-switch", f"{int(switched.sum())} of {len(times)} steps switch")
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
            "workers": options.workers,
            "step_s": round(median_s, 5),
            "switches": int(switched.sum()),
            "plans": plans,
            "extra": {
                name: dict(zip(("median", "p95", "max"), map(float, found), strict=True))
                for name, found in extra.items()
            },
            "goal_p95": GOAL,
        },
        file=options.json,
    )
    found, own = extra["switching"][1], extra["ordinary"][1]
    met = found <= GOAL
    print(
        f"{'met' if met else 'missed'}: extra wait at p95 of {int(switched.sum())} switching steps "
        f"{found:.2%} of a step, goal {GOAL:.0%}; of ordinary steps {own:.2%}"
    )
    return int(not (met or options.quick))


if __name__ == "__main__":
    harness.run(main)
