"""Time of the solvers, of a decision, and of taking in a report.

    python benchmarks/solvers.py [--quick] [--repeats 30]

Prints JSON: medians and extremes over the repeats, seconds, one thread. Bounds: solvers under
10 ms at 1,000 workers and 100 ms at 10,000, decisions under 10 ms at 1,000. A third of the workers
are stragglers with a constant delay, as in AntDT section VII-A-4. DD's solver divides among classes
of hardware: two, as in section VII-C, and four whose numbers of devices have no common factor, so
that there are the most sums to be had.
"""

import itertools
import math
import time
from collections.abc import Callable

import numpy as np
from paceline_experiments import harness

from paceline.features.stragglers.policy import registry, solvers
from paceline.policy.observation import Observation, ServerSeen, WorkerSeen
from paceline.policy.stats.history import Lengths, NodeHistory, WindowMeans

LOCAL_BATCH = 4096
SLOPE_S = 2.15 / LOCAL_BATCH
BOUNDS_S = {1_000: 0.010, 10_000: 0.100}
"""Bounds by workers, of a solver and of a decision."""
SPEEDS_S = (1.0, 3.0, 1.7, 2.3)
"""Time of 32 samples, by class of hardware."""


def costs(count: int, seed: int) -> tuple[solvers.Floats, solvers.Floats]:
    rng = np.random.default_rng(seed)
    delays_s = np.where(rng.random(count) < 0.3, rng.uniform(0.1, 3.0, count), 0.0)
    return delays_s, SLOPE_S * rng.uniform(0.8, 1.3, count)


def classes(count: int, number: int) -> list[solvers.HardwareClass]:
    """Make so many devices in so many classes."""
    sizes = [count // number + offset for offset in range(number - 1)]
    return [
        solvers.HardwareClass(
            devices=devices,
            sizes=(8, 32, 128),
            times_s=(slow_s, slow_s, 4 * slow_s),
            smallest=32,
            largest=128,
        )
        for devices, slow_s in zip((*sizes, count - sum(sizes)), SPEEDS_S)
    ]


def observation(count: int, seed: int) -> Observation:
    """Make an observation after 300 iterations, with two batch sizes seen."""
    rng = np.random.default_rng(seed)
    delays_s, slopes_s = costs(count, seed)
    workers = []
    for index in range(count):
        history = NodeHistory(Lengths())
        for number in range(1, 31):
            size = LOCAL_BATCH if number < 20 else LOCAL_BATCH * 9 // 10
            time_s = (delays_s[index] + slopes_s[index] * size) * rng.normal(1.0, 0.01)
            report = WindowMeans(
                t_s=30.0 * number,
                iterations=10,
                samples=size,
                compute_s=float(time_s),
                compute_max_s=1.05 * float(time_s),
                server_s=0.05,
                message_s=0.05,
                bpt_s=3.0,
            )
            history.report(report)
        workers.append(
            WorkerSeen(
                node=f"worker-{index}",
                batch_size=LOCAL_BATCH,
                short=history.short(900.0),
                long=history.long(900.0),
                regime=history.regime(900.0),
            )
        )
    return Observation(
        now_s=900.0,
        step=300,
        mode="bsp",
        global_batch=LOCAL_BATCH * count,
        steps_left=1000,
        workers=tuple(workers),
        servers=tuple(ServerSeen(node=f"server-{number}") for number in range(200)),
    )


def timed(repeats: int, work: Callable[[], object]) -> dict[str, float]:
    work()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return harness.summary(seconds)


def reports(count: int) -> Callable[[], None]:
    """Take in so many reports of one node."""
    times_s = np.random.default_rng(0).normal(2.0, 0.05, count).tolist()

    def work() -> None:
        history = NodeHistory(Lengths())
        for number, time_s in enumerate(times_s):
            history.report(
                WindowMeans(
                    t_s=30.0 * number, iterations=10, samples=4096, compute_s=time_s, bpt_s=3.0
                )
            )

    return work


def main() -> int:
    """Measure, print, hold against the bounds; 1: one is exceeded."""
    parser = harness.parser(__doc__, "3 repeats")
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    repeats = 3 if options.quick else options.repeats
    figures = {}
    for count in (20, 1000, 10_000):
        delays_s, slopes_s = costs(count, seed=count)
        total = LOCAL_BATCH * count
        figures[f"level_{count}"] = timed(
            repeats, lambda d=delays_s, s=slopes_s, b=total: solvers.level(d, s, b)
        )
    for count, number in itertools.product((20, *BOUNDS_S), (2, 4)):
        kinds = classes(count, number)
        figures[f"dedicated_{number}_classes_{count}"] = timed(
            repeats, lambda k=kinds, b=96 * count: solvers.dedicated(k, b)
        )
    seen = observation(1000, seed=1)
    for name in ("nd", "lb_bsp", "auto"):
        decide = registry.solution(name).decide
        figures[f"decide_{name}_1000"] = timed(repeats, lambda decide=decide: decide(seen))
    figures["1000_reports"] = timed(max(repeats // 10, 3), reports(1000))
    harness.report("solvers", figures, file=options.json)
    late = [
        name
        for name, seconds in figures.items()
        if name.startswith(("level", "dedicated", "decide"))
        if seconds["median"] > BOUNDS_S.get(int(name.rpartition("_")[2]), math.inf)
    ]
    if late:
        print(f"above their bounds: {', '.join(late)}")
    return int(bool(late) and not options.quick)


if __name__ == "__main__":
    harness.run(main)
