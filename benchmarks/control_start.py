"""How soon a control process begins its work: what its imports take, beside torch's.

Usage: python benchmarks/control_start.py [--runs 15]

Each run starts a fresh interpreter that imports one module, as its process does, and ends; the
modules are interleaved. ``wall_ms`` and ``cpu_ms`` are medians and ``cpu_min_ms`` the least of the
runs. Prints a table, then JSON.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

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
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # as control processes are started
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True, env=environment)
    wall_s = time.perf_counter() - start_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    modules = PROCESSES | BESIDE
    for module in modules.values():
        start(module)  # into the page cache
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in modules}
    for _ in range(runs):
        for name, module in modules.items():
            taken[name].append(start(module))
    rows = {}
    print(f"{'process':<14}{'wall_ms':>9}{'cpu_ms':>9}{'cpu_min_ms':>12}")
    for name, times in taken.items():
        walls, cpus = zip(*times)
        rows[name] = {
            "wall_ms": round(1000 * statistics.median(walls), 1),
            "cpu_ms": round(1000 * statistics.median(cpus), 1),
            "cpu_min_ms": round(1000 * min(cpus), 1),
        }
        row = rows[name]
        print(f"{name:<14}{row['wall_ms']:>9}{row['cpu_ms']:>9}{row['cpu_min_ms']:>12}")
    within = all(rows[name]["wall_ms"] < 1000 * GOAL_S for name in PROCESSES)
    print(json.dumps({"rows": rows, "goal_s": GOAL_S, "within": within}))


if __name__ == "__main__":
    main()
