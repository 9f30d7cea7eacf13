"""What it costs a server to count how much is asked of each bucket, over what it is asked.

    python benchmarks/bucket_load_cost.py [--quick] [--rounds 15] [--json FILE]

One thread, its own CPU time. *Asked* is a server's arithmetic for one contribution and the pull
before it: rows read, then updated by Adagrad, in a click model (26 tables, 4096 rows of each) and
in a small one. *Counting* is two calls for each table, one for the pull and one for the update.
What a server does for the messages themselves (about 1 ms for a contribution and its pull) is left
out, so the share of all its work is smaller still. Bound for the click model: 1 %.
"""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from paceline_experiments import harness

from paceline.runtime.server.bucket_load import EVERY, BucketLoad
from paceline.runtime.server.store import Gradients, Store
from paceline.wire.schema import NUM_BUCKETS, ModelSchema, OptimizerGroup, Table

ROWS, DIM = 100_000, 16
BOUND = 0.01


class Figures(NamedTuple):
    """Microseconds."""

    asked: float
    counting: float

    @property
    def share(self) -> float:
        """Part that counting adds."""
        return self.counting / self.asked


def measure(num_tables: int, num_ids: int, rounds: int) -> Figures:
    """The median over rounds."""
    names = [f"t{number}" for number in range(num_tables)]
    schema = ModelSchema(
        tables=tuple(
            Table(name=name, dim=DIM, dtype="float32", group=0, num_rows=ROWS) for name in names
        ),
        groups=(OptimizerGroup(kind="adagrad"),),
    )
    rng = np.random.default_rng(0)
    ids = [np.unique(rng.integers(0, ROWS, num_ids)) for _ in names]
    grads = [np.ones((one.size, DIM), np.float32) for one in ids]
    sparse = dict(enumerate(zip(ids, grads, strict=True)))
    given = Gradients(dense={}, sparse=sparse, weight=num_ids, rates=(0.1,), distinct=True)
    store = Store(schema, [0] * NUM_BUCKETS, 0)
    store.load_of_buckets = _Uncounted(schema, range(NUM_BUCKETS))
    load = BucketLoad(schema, range(NUM_BUCKETS))

    def ask() -> None:
        for table, one in enumerate(ids):
            store.rows(table, one)
        store.apply([given])

    def count() -> None:
        for table, one in enumerate(ids):
            load.rows(table, one)
            load.rows(table, one)

    calls = max(1, 2600 // num_tables // 26)
    return Figures(_time_us(ask, calls, rounds), _time_us(count, EVERY * calls, rounds))


class _Uncounted(BucketLoad):
    """Counts nothing."""

    def rows(self, table: int, ids: object) -> None:
        """Rows are read or updated."""


def _time_us(call: Callable[[], None], calls: int, rounds: int) -> float:
    call()
    found = []
    for _ in range(rounds):
        start_s = time.thread_time()
        for _ in range(calls):
            call()
        found.append(1e6 * (time.thread_time() - start_s) / calls)
    return statistics.median(found)


def main() -> int:
    parser = harness.parser(__doc__, "three rounds")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    rounds = 3 if options.quick else options.rounds
    found = {
        "26 tables, 4096 rows of each": measure(26, 4096, rounds),
        "one table, 64 rows": measure(1, 64, rounds),
    }
    rows = [
        (name, f"{one.asked:.1f}", f"{one.counting:.2f}", f"{one.share:.2%}")
        for name, one in found.items()
    ]
    harness.table(("model", "asked µs", "counting µs", "share"), rows)
    harness.report(
        "bucket_load_cost", {n: one._asdict() for n, one in found.items()}, file=options.json
    )
    share = next(iter(found.values())).share
    print(f"share in the click model {share:.2%} (bound {BOUND:.0%})")
    return int(share > BOUND and not options.quick)


if __name__ == "__main__":
    harness.run(main)
