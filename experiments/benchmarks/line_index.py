"""The index of line offsets: time to the first lease, and speed of the build in the background.

    python benchmarks/line_index.py [--quick] [--lines 10000000] [--dir DIR]

Prints JSON. ``first_lease_s`` is the time from opening a file without an index to the first batch
of records of a shuffled epoch of unknown length; ``build_gb_per_s`` is read from the page cache
if the file is there. Five runs each. The build is timed alone, and beside a thread of pure Python
that never gives up the interpreter lock on its own accord, as a training loop would.
"""

import itertools
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from paceline_experiments import harness

from paceline.runtime.data.loader import Loader
from paceline.runtime.data.order import EpochOrder
from paceline.runtime.data.sources.text_lines import TextLines

BATCH_SIZE = 4096
REPEATS = 5


def first_lease(path: Path, index_dir: Path) -> float:
    """Seconds until one batch of a shuffled window is there, nothing being indexed before."""
    begin = time.perf_counter()
    lines = TextLines(path, index_dir=index_dir)
    with Loader(lines, EpochOrder(None, BATCH_SIZE, seed=1, window_shards=8)) as loader:
        loader.submit(0, [(0, 0, BATCH_SIZE)])
        loader.get()
        elapsed_s = time.perf_counter() - begin
    lines.close()
    return elapsed_s


def build(path: Path, index_dir: Path) -> tuple[float, int]:
    """Seconds to index the whole file, and the number of its lines."""
    begin = time.perf_counter()
    lines = TextLines(path, index_dir=index_dir)
    count = lines.wait_len()
    elapsed_s = time.perf_counter() - begin
    lines.close()
    return elapsed_s, count


def beside_python(work: Callable[[], tuple[float, int]]) -> tuple[float, int]:
    """Measure the same while another thread keeps the interpreter busy."""
    stop = threading.Event()

    def spin() -> None:
        count = 0
        while not stop.is_set():
            for _ in range(10_000):
                count += 1

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        return work()
    finally:
        stop.set()
        thread.join()


def main() -> None:
    """Generate, measure, print."""
    parser = harness.parser(__doc__, "a hundredth of the lines")
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--dir", type=Path, default=None, help="where the file is generated")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.lines = 100_000
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        path = Path(folder) / "lines.txt"
        harness.write_lines(path, arguments.lines)
        size_gb = path.stat().st_size / 1e9
        before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        dirs = (Path(folder) / str(number) for number in itertools.count())
        firsts_s = [first_lease(path, next(dirs)) for _ in range(REPEATS)]
        alone = [build(path, next(dirs)) for _ in range(REPEATS)]
        beside = [beside_python(lambda: build(path, next(dirs))) for _ in range(REPEATS)]
        again_s, count = build(path, Path(folder) / str(REPEATS))
        after_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        if count != arguments.lines:
            raise harness.failure("build", f"counted {count} lines, wrote {arguments.lines}")
    figures = {
        "lines": count,
        "size_gb": round(size_gb, 3),
        "first_lease_s": [round(one, 4) for one in firsts_s],
        "build_gb_per_s": [round(size_gb / one, 2) for one, _ in alone],
        "build_beside_python_gb_per_s": [round(size_gb / one, 2) for one, _ in beside],
        "open_with_index_s": round(again_s, 4),
        "peak_memory_growth_mb": round(after_mb - before_mb, 1),
    }
    harness.report("line_index", figures, file=arguments.json)


if __name__ == "__main__":
    harness.run(main)
