"""How long do updates of a server wait while a cut of its share is copied?

    python benchmarks/server_cut.py [--quick] [--megabytes 256 1024] [--rows 512 4096] [--rounds 5]

One table under Adagrad, values and state together as large as stated; updates of so many random
rows come one after the other, 5 ms apart. In turn the share is copied *in place* (updates wait for
all of it), *aside* (as servers do: by a thread, with an undo log), and by a *fork* (decision 18
says why not). Printed, in ms, medians of the rounds: the longest that an update waited, all that
updates within a second took longer than those before, and when the copy was whole.
"""

import mmap
import os
import statistics
import threading
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from paceline_experiments import harness

from paceline.runtime.checkpoint import cutfile
from paceline.runtime.server.store import Gradients, Store
from paceline.wire.schema import NUM_BUCKETS, ModelSchema, OptimizerGroup, Table

DIM, SLABS = 64, 2
GAP_S, WATCHED_S = 0.005, 1.0
WARM_UPDATES = 60

Ended = Callable[[], bool]


class Found(NamedTuple):
    """Seconds of one cut."""

    longest_s: float
    longer_s: float
    copied_s: float


class Bench:
    """A share, and memory for its copy that was written to before."""

    def __init__(self, megabytes: int, num_rows: int) -> None:
        table_rows = (megabytes << 20) // (4 * DIM * SLABS)
        table = Table(name="t", dim=DIM, dtype="float32", group=0, num_rows=table_rows)
        schema = ModelSchema(tables=(table,), groups=(OptimizerGroup(kind="adagrad"),))
        self.store = Store(schema, [0] * NUM_BUCKETS, 0)
        for array in self.store.save().values():
            array.reshape(-1)[:: mmap.PAGESIZE // array.itemsize] = 1
        size = cutfile.packed_bytes(self.store.save())
        self._image = memoryview(mmap.mmap(-1, size))
        cutfile.pack(self.store.save(), self._image)
        self._rng = np.random.default_rng(0)
        self._table_rows = table_rows
        self._grads = np.ones((num_rows, DIM), np.float32)

    def update(self) -> float:
        """Seconds of one."""
        ids = np.unique(self._rng.integers(0, self._table_rows, len(self._grads)))
        given = {0: (ids, self._grads[: len(ids)])}
        part = Gradients({}, given, weight=1.0, rates=(0.1,), distinct=True)
        begun_s = time.perf_counter()
        self.store.apply([part])
        return time.perf_counter() - begun_s

    def in_place(self) -> Ended:
        """Return when it is copied."""
        cutfile.pack(self.store.save(), self._image)
        return lambda: True

    def aside(self) -> Ended:
        """Copy as `Server` has it done."""
        aside = self.store.set_aside()

        def copy() -> None:
            aside.pack(aside.saved, self._image)
            aside.end()

        threading.Thread(target=copy).start()
        return lambda: aside.is_over

    def fork(self) -> Ended:
        """Copy by a child."""
        saved = self.store.save()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads
            pid = os.fork()
        if not pid:
            cutfile.pack(saved, self._image)
            os._exit(0)
        return lambda: os.waitpid(pid, os.WNOHANG)[0] == pid

    def cut(self, begin: Callable[[], Ended]) -> Found:
        """Make one while updates go on."""
        usual_s = statistics.median(self.update() for _ in range(WARM_UPDATES))
        begun_s = time.perf_counter()
        ended = begin()
        took, copied_s = [time.perf_counter() - begun_s], 0.0
        while not copied_s or time.perf_counter() < begun_s + WATCHED_S:
            if not copied_s and ended():
                copied_s = time.perf_counter() - begun_s
            took.append(self.update())
            time.sleep(GAP_S)
        longer_s = took[0] + sum(max(0.0, one - usual_s) for one in took[1:])
        return Found(max(took), longer_s, copied_s)


def main() -> None:
    parser = harness.parser(__doc__, "one round of 16 MB, no figures")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 4096], help="of an update")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.quick:
        options.megabytes, options.rows, options.rounds = [16], [512], 1
    rows, figures = [], {}
    for megabytes in options.megabytes:
        for num_rows in options.rows:
            bench = Bench(megabytes, num_rows)
            arms = {"in place": bench.in_place, "aside": bench.aside, "fork": bench.fork}
            found: dict[str, list[Found]] = {arm: [] for arm in arms}
            for _ in range(options.rounds):
                for arm, begin in arms.items():
                    found[arm].append(bench.cut(begin))
            for arm, cuts in found.items():
                each = [[1000 * seconds for seconds in one] for one in zip(*cuts, strict=True)]
                what = f"{megabytes} MB, {num_rows} rows, {arm}"
                figures[what] = dict(zip(Found._fields, map(harness.summary, each), strict=True))
                rows.append((what, *(round(statistics.median(one), 1) for one in each)))
    harness.table(("cut", "longest wait ms", "all waits ms", "copied after ms"), rows)
    harness.report("server_cut", figures, file=options.json)


if __name__ == "__main__":
    harness.run(main)
