"""Time the servers' embedding kernels on one thread, each beside its rival in the same run.

    python benchmarks/embedding_kernels.py [--quick]

Rows are gathered and updated in batches of 26 x 4096 ids, eight different batches in turn, ours and
the rival's call alternating. Rivals: torch (index_select; Adagrad written by hand with unique and
index_add_) and, where pandas is installed, its Int64HashTable. Before a pair is timed, the results
are compared. Times are cpu time of the one thread, so that other work on the machine disturbs less.
Prints a table, and one line of JSON.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from paceline_experiments import harness

from paceline.runtime.server.store import Gradients, Store
from paceline.runtime.server.tables import KeyIndex
from paceline.runtime.state import kernels
from paceline.runtime.state.layout import initial_arrays
from paceline.wire.schema import NUM_BUCKETS, ModelSchema, OptimizerGroup, Table

IDS = 26 * 4096
BATCHES = 8
LR, EPS = 0.05, 1e-10
Call = Callable[[int], Any]


def spread_s(times: list[float]) -> dict[str, float]:
    """Median and quartiles in ms."""
    low, mid, high = statistics.quantiles(times, n=4)
    return {"median_ms": mid * 1e3, "q1_ms": low * 1e3, "q3_ms": high * 1e3}


def compare(
    name: str, ours: Call, rival: Call | None, repeats: int, **facts: Any
) -> dict[str, Any]:
    """Time two calls in turn; each gets the number of the batch."""
    times: tuple[list[float], list[float]] = [], []
    for repeat in range(-BATCHES, repeats):
        for call, taken in zip((ours, rival), times, strict=True):
            if call is not None:
                start = time.thread_time()
                call(repeat % BATCHES)
                taken.append(time.thread_time() - start)
    result: dict[str, Any] = {"name": name, **facts, "ours": spread_s(times[0][BATCHES:])}
    if rival is not None:
        result["rival"] = spread_s(times[1][BATCHES:])
        result["ratio"] = result["rival"]["median_ms"] / result["ours"]["median_ms"]
    return result


def batches(rows: int, rng: np.random.Generator, *, zipf: bool) -> list[np.ndarray]:
    """Ids of each batch: uniform, or a few very frequent and a long tail."""
    if zipf:
        return [(rows ** rng.random(IDS)).astype(np.int64) % rows for _ in range(BATCHES)]
    return [rng.integers(0, rows, IDS) for _ in range(BATCHES)]


def torch_adagrad(
    weight: torch.Tensor, sums: torch.Tensor, ids: torch.Tensor, grads: torch.Tensor
) -> None:
    """Adagrad as one writes it by hand for sparse rows."""
    rows, inverse = torch.unique(ids, return_inverse=True)
    merged = torch.zeros(rows.numel(), grads.shape[1]).index_add_(0, inverse, grads)
    squares = sums.index_select(0, rows).addcmul_(merged, merged)
    sums.index_copy_(0, rows, squares)
    weight.index_add_(0, rows, merged.div_(squares.sqrt_().add_(EPS)).mul_(-LR))


def make_store(values: np.ndarray) -> Store:
    """Make one server that holds a table with these values, updated by Adagrad."""
    table = Table(name="t", dim=values.shape[1], dtype="float32", group=0, num_rows=len(values))
    schema = ModelSchema(tables=(table,), groups=(OptimizerGroup(kind="adagrad"),))
    store = Store(schema, (0,) * NUM_BUCKETS, 0)
    store.load([initial_arrays(schema, {}, {0: values})])
    return store


def table_benchmarks(num_rows: int, dim: int, repeats: int, *, zipf: bool) -> list[dict[str, Any]]:
    """Gather and update of one table, through the whole server path."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal((num_rows, dim), np.float32)
    store, ids = make_store(values), batches(num_rows, rng, zipf=zipf)
    weight, sums = torch.from_numpy(values), torch.zeros(num_rows, dim)
    grads = [rng.standard_normal((IDS, dim), np.float32) for _ in range(BATCHES)]
    torch_ids = [torch.from_numpy(some) for some in ids]
    torch_grads = [torch.from_numpy(some) for some in grads]
    out, torch_out = np.empty((IDS, dim), np.float32), torch.empty(IDS, dim)
    facts = {"rows": num_rows, "dim": dim, "ids": IDS, "skewed": zipf}

    def update(i: int) -> None:
        store.apply([Gradients({}, {0: (ids[i], grads[i])}, 1.0, (LR,))])

    def torch_update(i: int) -> None:
        torch_adagrad(weight, sums, torch_ids[i], torch_grads[i])

    gathered = compare(
        "gather",
        lambda i: store.rows(0, ids[i], out),
        lambda i: torch.index_select(weight, 0, torch_ids[i], out=torch_out),
        repeats,
        **facts,
    )
    updated = compare("dedup + Adagrad", update, torch_update, repeats, **facts)
    merged = compare(
        "dedup alone", lambda i: kernels.dedup(ids[i], grads[i]), None, repeats, **facts
    )
    error = np.abs(store.rows(0, ids[0]) - weight[torch_ids[0]].numpy()).max()
    if error > 1e-4:
        raise harness.failure("dedup + Adagrad", f"updates differ from torch's by {error}")
    return [gathered, updated, merged]


def index_benchmark(num_keys: int, repeats: int) -> dict[str, Any]:
    """64-bit key -> row."""
    rng = np.random.default_rng(2)
    keys = rng.integers(-(2**63), 2**63 - 1, num_keys)
    index = KeyIndex()
    start = time.perf_counter()
    for part in np.array_split(keys, max(1, num_keys // IDS)):
        index.insert(part)
    built_s = time.perf_counter() - start
    asked = [keys[rng.integers(0, num_keys, IDS)] for _ in range(BATCHES)]
    facts: dict[str, Any] = {
        "keys": num_keys,
        "ids": IDS,
        "insert_m_per_s": num_keys / built_s / 1e6,
    }
    rival: Call | None = None
    try:
        from pandas._libs.hashtable import Int64HashTable  # not needed by paceline
    except ImportError:
        harness.skipped("Int64HashTable", "pandas is not installed")
    else:
        table = Int64HashTable(num_keys)
        table.map_locations(keys)
        if not np.array_equal(table.lookup(asked[0]), index.find(asked[0])[0]):
            raise harness.failure("id -> row", "rows differ from pandas'")

        def rival(i: int) -> Any:
            return table.lookup(asked[i])

    result = compare("id -> row", lambda i: index.find(asked[i]), rival, repeats, **facts)
    result["m_per_s"] = IDS / result["ours"]["median_ms"] / 1e3
    return result


STARTUP = """
import time; start = time.process_time()
import numpy
base = time.process_time()
from paceline.runtime.server.store import Gradients, Store
from paceline.wire.schema import ModelSchema, OptimizerGroup, Table
imported = time.process_time()
table = Table(name="t", dim=16, dtype="float32", group=0, num_rows=99)
store = Store(ModelSchema(tables=(table,), groups=(OptimizerGroup(kind="adagrad"),)), (0,) * 64, 0)
ids = numpy.arange(9); grads = numpy.ones((9, 16), numpy.float32)
store.apply([Gradients({}, {0: (ids, grads)}, 1.0, (0.1,))]); store.rows(0, ids)
print(imported - base, time.process_time() - imported)
"""


def startup_benchmark(repeats: int) -> dict[str, Any]:
    """Measure the cpu time of a new process for importing the store and using its kernels."""
    with tempfile.TemporaryDirectory() as cache:
        runs = []
        for _ in range(repeats + 1):
            command = [sys.executable, "-c", STARTUP]
            told = harness.output_of("new process", command, {"NUMBA_CACHE_DIR": cache})
            runs.append([float(part) for part in told.split()])
    imports, uses = zip(*runs[1:], strict=True)
    return {
        "name": "new process",
        "compile_s": runs[0][1],
        "import_s": statistics.median(imports),
        "first_use_s": statistics.median(uses),
    }


def show(result: dict[str, Any]) -> str:
    """Write one line of the table."""
    if "ours" not in result:
        numbers = {key: f"{value:.2f}" for key, value in result.items() if key != "name"}
        return f"{result['name']:<18}{numbers}"
    keys = ("rows", "keys", "dim", "skewed", "skipped", "m_per_s")
    facts = ", ".join(f"{key} {result[key]}" for key in keys if key in result)
    ours = f"{result['ours']['median_ms']:8.3f} ms"
    rival = (
        f"{result['rival']['median_ms']:8.3f} ms  {result['ratio']:5.2f}x"
        if "rival" in result
        else ""
    )
    return f"{result['name']:<18}{ours}  {rival:<20}  {facts}"


def main() -> None:
    options = harness.parser(__doc__, "small tables, few repeats").parse_args()
    quick = options.quick
    torch.set_num_threads(1)
    repeats = 8 if quick else 32
    results = [startup_benchmark(1 if quick else 5)]
    plans = [(1_000_000, 16, False), (1_000_000, 16, True), (10_000_000, 16, False)]
    plans += [(1_000_000, 64, False), (1_000_000, 64, True)]
    for num_rows, dim, zipf in [(100_000, 16, True)] if quick else plans:
        results += table_benchmarks(num_rows, dim, repeats, zipf=zipf)
    for num_keys in [100_000] if quick else [1_000_000, 10_000_000]:
        results.append(index_benchmark(num_keys, repeats))
    print(f"{'':<18}{'ours':>11}  {'rival':>11}  ratio")
    for result in results:
        print(show(result))
    figures = {"torch": torch.__version__, "results": results}
    harness.report("embedding_kernels", figures, file=options.json)


if __name__ == "__main__":
    harness.run(main)
