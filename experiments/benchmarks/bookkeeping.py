"""What being managed costs the training thread.

    python benchmarks/bookkeeping.py [--quick] [--steps 10000] [--pairs 60] [--compute sleep|busy]
        [--solution none]

A job of one worker and one server (asynchronous, exactly-once), a model with one small dense
tensor, 10 ms of emulated compute per step.

(i) Time inside paceline, summed around every entry on the training thread, over ``--steps`` steps:
wall time without what it waited for data and pulls (``mean``, ``median``, ``p99``), the cpu time
of the thread, and the wall time by what it went to: ``tensors`` (parameters in, gradients out),
``rest`` (leases, batches, the protocol's state, records: bookkeeping in the narrow sense),
``blocked`` (the waits). Goal: 50 us a step, in all. Beside it, in the same process and measured
likewise: ``optimizer.step`` of torch's SGD on the same model, which the job's step stands for; and
the cpu time of paceline's other threads in the process.
(ii) The same loop with and without paceline, in one worker process, in short interleaved runs of
``--pair-steps`` steps (order alternating); the plain loop has its batches ready made. The ratio of
wall times with its 95 % interval; goal: consistent with 1.005. Prints tables and JSON.
"""

import json
from pathlib import Path

import numpy as np
from paceline_experiments import harness

from paceline.wire.spec import JobSpec

GOAL_US, GOAL_RATIO = 50.0, 1.005


def run(arguments: list[str], timeout_s: float, solution: str) -> dict[str, list]:
    with harness.scratch() as out:
        script = Path(harness.TINY).with_name("metered.py")
        spec = JobSpec(
            script=str(script),
            args=("--out", str(out), *arguments),
            name="bookkeeping",
            mode="asp",
            solution=solution,
        )
        with harness.running(spec) as job:
            result = out / "metered.json"
            harness.require(job, result.exists, timeout_s, "no result")
            if "--profile" in arguments:
                print((job.logs / "worker-0.log").read_text())
            # Renamed into place it is not: let the writer finish.
            harness.until(lambda: result.read_text().endswith("}"), 5.0)
            return json.loads(result.read_text())


def per_step(entries: dict[str, list[list[float]]]) -> dict[str, dict[str, float]]:
    """Microseconds per step of each entry, and of all."""
    spent = {name: np.array(rows) * 1e6 for name, rows in entries.items()}
    spent["all"] = spent["next"] + spent["step"]
    found = {}
    for name, rows in spent.items():
        wall, cpu, blocked, tensors = rows.T
        busy = wall - blocked
        found[name] = {
            "mean_us": round(float(busy.mean()), 1),
            "median_us": round(float(np.median(busy)), 1),
            "p99_us": round(float(np.quantile(busy, 0.99)), 1),
            "cpu_us": round(float(np.median(cpu)), 1),
            "tensors_us": round(float(np.median(tensors)), 1),
            "rest_us": round(float(np.median(busy - tensors)), 1),
            "blocked_us": round(float(blocked.mean()), 1),
        }
    return found


def main() -> None:
    parser = harness.parser(__doc__, "200 steps, 4 pairs of 10")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--pair-steps", type=int, default=25)
    parser.add_argument("--compute", choices=("sleep", "busy"), default="busy")
    parser.add_argument("--solution", default="none", help="that manages the job")
    parser.add_argument("--profile", action="store_true", help="print a profile of the thread")
    options = parser.parse_args()
    if options.quick:
        options.steps, options.pairs, options.pair_steps = 200, 4, 10
    steps, pairs = options.steps, options.pairs
    arguments = ["--steps", str(steps), "--pairs", str(pairs), "--compute", options.compute]
    arguments += ["--pair-steps", str(options.pair_steps)]
    arguments += ["--profile"] if options.profile else []
    total_steps = (2 if options.profile else 1) * steps + 2 * pairs * options.pair_steps
    found = run(arguments, timeout_s=60.0 + 0.1 * total_steps, solution=options.solution)
    entries, ratio = per_step(found["entries"]), harness.ratio(found["pairs"])
    harness.table(
        ("entry", *next(iter(entries.values()))),
        [(name, *values.values()) for name, values in entries.items()],
    )
    for name, cpu_s in found["thread_cpu_s"].items():
        print(f"beside it, cpu of {name}: {1e6 * cpu_s:.0f} us a step")
    print(
        f"with / without: {ratio['ratio']:.4f} "
        f"[{ratio['low95']:.4f}, {ratio['high95']:.4f}] over {ratio['n']} pairs"
    )
    harness.report(
        "bookkeeping",
        {
            "solution": options.solution,
            "compute": f"{options.compute} 10 ms",
            "steps": steps,
            "entries": entries,
            "thread_cpu_us": {n: round(1e6 * s, 1) for n, s in found["thread_cpu_s"].items()},
            "goal_us": GOAL_US,
            "with_over_without": ratio,
            "goal_ratio": GOAL_RATIO,
        },
        file=options.json,
    )


if __name__ == "__main__":
    harness.run(main)
