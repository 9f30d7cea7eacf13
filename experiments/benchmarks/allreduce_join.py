"""A worker joins an all-reduce job that holds much state: what do the others lose?

    python benchmarks/allreduce_join.py [--quick] [--megabytes 1024] [--joins 5]

Two workers train with steps of 50 ms of emulated compute, in proportion to a member's samples.
Half of their state are parameters, the other half is the optimizer's: momentum of each. There are
gradients of 1 MB of it only, so that a step stays short; the rest is frozen. A third worker is
added by `paceline scale` and taken away again, several times. Printed: how much longer than those
of two the survivors' steps took until all three were in step again, together and the longest one;
the time of one warm memory copy of the state in one thread beside it, and the ratio. Goal: at most
the larger of one step and 1.2 x the copy.
"""

import statistics
import time
from pathlib import Path

import numpy as np
from paceline_experiments import harness

from paceline.jobs.launch import ask
from paceline.wire.client import Scale
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec

SCRIPT = Path(__file__).with_name("jobs") / "stepping.py"
STEP_S, STEADY_STEPS = 0.05, 20
SHARE = 32
"""Samples of one of two."""
BEFORE, AFTER = 2, 5
"""Steps around the longest one that what is lost is spread over: the joiner is in its second step
when the others are in their third."""
PATIENCE_S = 120.0


def memcpy_s(num_bytes: int) -> float:
    """Time a copy by one thread: the median of five, both sides touched before."""
    source, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
    took = []
    for _ in range(5):
        begun_s = time.perf_counter()
        np.copyto(target, source)
        took.append(time.perf_counter() - begun_s)
    return statistics.median(took)


def lost_s(survivors: list[Path], since_s: float) -> tuple[float, float]:
    """Return what their steps since then took beyond those before: in all, and the longest."""
    total = longest = 0.0
    for path in survivors:
        times = harness.steps(path)[:, 0]
        usual_s = np.median(np.diff(times[times < since_s][-STEADY_STEPS:]))
        beyond = np.diff(times[times > since_s - usual_s]) - usual_s
        at = int(beyond.argmax())
        around = beyond[max(0, at - BEFORE) : at + AFTER]
        total = max(total, float(around[around > 0].sum()))  # those of three are shorter
        longest = max(longest, float(beyond[at]))
    return total, longest


def main() -> None:
    parser = harness.parser(__doc__, "one join of 16 MB, no figures")
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--joins", type=int, default=5)
    options = parser.parse_args()
    megabytes, joins = (16, 1) if options.quick else (options.megabytes, options.joins)
    copy_s = memcpy_s(megabytes << 20)
    found: list[tuple[float, float]] = []
    with harness.scratch() as out:
        spec = JobSpec(
            script=str(SCRIPT),
            args=(
                *("--out", str(out), "--megabytes", str(megabytes)),
                *("--step-s", str(STEP_S), "--share", str(SHARE)),
            ),
            name="join",
            strategy="allreduce",
            workers=NodeSpec(count=2),
            solution="none",
            checkpoint=CheckpointSpec(every_s=3600.0),
        )
        with harness.running(spec) as job:

            def alive() -> list[Path]:
                stamps = out.glob("*.f64")
                return sorted(p for p in stamps if Path(f"/proc/{p.stem}").exists())

            def steady(count: int, since_s: float) -> bool:
                new = [int((harness.steps(path)[:, 0] > since_s).sum()) for path in alive()]
                return sum(number >= STEADY_STEPS for number in new) == count

            def await_steady(count: int, since_s: float) -> None:
                what = f"not all of {count} workers train"
                harness.require(job, lambda: steady(count, since_s), PATIENCE_S, what)

            await_steady(2, 0.0)
            for _ in range(joins):
                survivors, since_s = alive(), time.monotonic()
                ask(job, Scale(workers=3))
                await_steady(3, since_s)
                found.append(lost_s(survivors, since_s))
                since_s = time.monotonic()
                ask(job, Scale(workers=2))
                await_steady(2, since_s)
    total, longest = zip(*found, strict=True)
    figures = {
        "megabytes": megabytes,
        "state": "parameters and momentum, half each, in tensors of 32 MB",
        "lost_s": harness.summary(total),
        "longest_s": harness.summary(longest),
        "memcpy_s": round(copy_s, 4),
        "goal_s": round(max(STEP_S, 1.2 * copy_s), 4),
        "lost / memcpy": round(statistics.median(total) / copy_s, 2),
    }
    harness.report("allreduce_join", figures, file=options.json)


if __name__ == "__main__":
    harness.run(main)
