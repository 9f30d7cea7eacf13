"""How soon a control process begins its work: what its imports take, beside torch's.

    python benchmarks/control_start.py [--quick] [--runs 15]

Each run starts a fresh interpreter that imports one module, as its process does, and ends; the
modules are interleaved. ``wall_ms`` and ``cpu_ms`` are medians and ``cpu_min_ms`` the least of the
runs. Prints a table, then JSON.
"""

import resource
import statistics
import sys
import time

from paceline_experiments import harness

GOAL_S = 0.5
PROCESSES = {
    "agent": "paceline.agent.__main__",
    "backend": "paceline.backends.local.backend",
    "master": "paceline.master.__main__",
    "supervisor": "paceline.supervisor.__main__",
}
BESIDE = {"python alone": "sys", "numpy": "numpy", "torch": "torch"}


def start(module: str) -> tuple[float, float]:
    """Seconds of wall and cpu time of an interpreter that imports the module."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start_s = time.perf_counter()
    # As control processes are started.
    environment = {"OPENBLAS_NUM_THREADS": "1"}
    harness.output_of(module, [sys.executable, "-c", f"import {module}"], environment)
    wall_s = time.perf_counter() - start_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = harness.parser(__doc__, "one run")
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    runs = 1 if options.quick else options.runs
    modules = PROCESSES | BESIDE
    for module in modules.values():
        start(module)  # into the page cache
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in modules}
    for _ in range(runs):
        for name, module in modules.items():
            taken[name].append(start(module))
    rows = {}
    for name, times in taken.items():
        walls, cpus = zip(*times)
        rows[name] = {
            "wall_ms": round(1000 * statistics.median(walls), 1),
            "cpu_ms": round(1000 * statistics.median(cpus), 1),
            "cpu_min_ms": round(1000 * min(cpus), 1),
        }
    within = all(rows[name]["wall_ms"] < 1000 * GOAL_S for name in PROCESSES)
    harness.table(
        ("process", *rows["master"]), [(name, *row.values()) for name, row in rows.items()]
    )
    figures = {"rows": rows, "goal_s": GOAL_S, "within": within}
    harness.report("control_start", figures, file=options.json)


if __name__ == "__main__":
    harness.run(main)
