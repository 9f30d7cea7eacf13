"""How soon training begins on a long text file that has no index yet.

    python benchmarks/first_lease.py [--lines 100000000] [--runs 5] [--quick] [--dir DIR]

Each run is a script of its own, started without `paceline run` (a job of one process), with an
empty index folder: ``first_lease_s`` is the time from the call of ``job.batches`` to the first
batch of a shuffled epoch, ``counted_s`` the time until all lines are counted meanwhile,
``wait_for_count_s`` what a script waits that asks for the length first (interleaved with the
others). The file lies in the page cache. Prints a table, then JSON.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from paceline_experiments import harness

BATCH_SIZE = 4096
FLOOR_S = 0.1
"""Seconds that the first lease may take on 10^8 lines."""


def train_on(path: Path, index_dir: Path) -> dict[str, float]:
    """Inside a run: the script, up to its first batch."""
    import torch

    import paceline as pl
    from paceline.runtime.data.sources.text_lines import TextLines

    model = torch.nn.Linear(1, 1)
    job = pl.init()
    model, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    dataset = TextLines(path, index_dir=index_dir)
    start_s = time.perf_counter()
    first = next(iter(job.batches(dataset, batch_size=BATCH_SIZE)))
    first_lease_s = time.perf_counter() - start_s
    assert len(first) == BATCH_SIZE
    num_lines = dataset.wait_len()
    return {
        "first_lease_s": first_lease_s,
        "counted_s": time.perf_counter() - start_s,
        "lines": num_lines,
    }


def ask_length(path: Path, index_dir: Path) -> dict[str, float]:
    """Inside a run: what waiting for the length costs."""
    from paceline.runtime.data.sources.text_lines import TextLines

    dataset = TextLines(path, index_dir=index_dir)
    start_s = time.perf_counter()
    len(dataset)
    return {"wait_for_count_s": time.perf_counter() - start_s}


def run(kind: str, path: Path) -> dict[str, float]:
    """Run once in a process of its own."""
    with tempfile.TemporaryDirectory() as index_dir:
        command = [sys.executable, __file__, "--inside", kind, str(path), index_dir]
        told = harness.output_of(kind, command, {"OMP_NUM_THREADS": "1"})
    found: dict[str, float] = json.loads(told)
    return found


def main() -> None:
    parser = harness.parser(__doc__, "1 run on a million lines")
    parser.add_argument("--lines", type=int, default=100_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=None, help="where the file is made")
    options = parser.parse_args()
    if options.quick:
        options.lines, options.runs = 1_000_000, 1
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        path = Path(folder) / "lines.txt"
        harness.write_lines(path, options.lines)
        size_gb = path.stat().st_size / 1e9
        found: list[dict[str, float]] = []
        for _ in range(options.runs):
            found.append(run("train", path) | run("length", path))
    assert all(one["lines"] == options.lines for one in found)
    print(f"{options.lines} lines, {size_gb:.2f} GB, {options.runs} runs")
    medians = {}
    for name in ("first_lease_s", "counted_s", "wait_for_count_s"):
        values = sorted(one[name] for one in found)
        medians[name] = statistics.median(values)
        print(f"{name:>18}  median {medians[name]:.4f}  ({values[0]:.4f} to {values[-1]:.4f})")
    figures = {
        "lines": options.lines,
        "gb": size_gb,
        "floor_s": FLOOR_S,
        "medians": medians,
        "count_gb_per_s": size_gb / medians["counted_s"],
        "runs": found,
    }
    harness.report("first_lease", figures, file=options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        kinds = {"train": train_on, "length": ask_length}
        print(json.dumps(kinds[sys.argv[2]](Path(sys.argv[3]), Path(sys.argv[4]))))
    else:
        harness.run(main)
