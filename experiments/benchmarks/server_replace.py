"""How long training pauses while a server's place is taken by a fresh one.

    python benchmarks/server_replace.py [--quick] [--megabytes 64 256 1024] [--moves 3]

A job of two workers and one server (asynchronous, 10 ms of emulated compute per step), whose one
table is as large as stated. In turn the server is replaced (`paceline replace`: its buckets move
while training goes on) and stopped and restarted (`paceline kill`: everybody goes back to the last
cut). The pause is the longest time between two steps of a worker while that goes on, less its
median step. Prints a table and JSON.
"""

import statistics
import time
from pathlib import Path
from typing import Any

from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.jobs.launch import ask
from paceline.wire.client import Kill, Replace
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec

DIM = 64
AFTER_S = 1.0
PATIENCE_S = 180.0


def spec_of(out: Path, megabytes: int) -> JobSpec:
    rows = megabytes * (1 << 20) // (4 * DIM)
    return JobSpec(
        script=str(harness.TINY),
        args=("--out", str(out), "--rows", str(rows), "--dim", str(DIM), "--batch-size", "512"),
        name="replace",
        solution="none",
        mode="asp",
        workers=NodeSpec(count=2),
        servers=NodeSpec(count=1),
        checkpoint=CheckpointSpec(every_s=20.0),
        restart=RestartSpec(budget=1_000, backoff_max_s=1.0),
    )


def measure(megabytes: int, moves: int) -> list[dict[str, Any]]:
    """Alternately a move and a kill."""
    found: list[dict[str, Any]] = []
    with harness.scratch() as out, harness.running(spec_of(out, megabytes)) as job:
        wait_for_steps(job, out)
        for _ in range(moves):
            found.append(one(job, out, "replace", "replaced"))
            found.append(one(job, out, "kill", "restored"))
    return found


def wait_for_steps(job: JobDir, out: Path) -> None:
    def training() -> bool:
        workers = [n for n in harness.status(job).nodes if n.role == "worker"]
        files = [out / f"{n.node}.{n.inc}.steps.f64" for n in workers]
        return all(harness.stamps(path).size > 100 for path in files)

    harness.require(job, training, PATIENCE_S, "the workers do not train")


def one(job: JobDir, out: Path, what: str, done: str) -> dict[str, Any]:
    """Have it done once; return pause and duration."""
    time.sleep(2 * AFTER_S)
    server = next(n.node for n in harness.status(job).nodes if n.role == "server")
    before = sum(event["event"] == done for event in harness.events(job))
    start_s = time.monotonic()
    ask(job, Replace(node=server) if what == "replace" else Kill(node=server))

    def is_over() -> bool:
        return sum(event["event"] == done for event in harness.events(job)) > before

    harness.require(job, is_over, PATIENCE_S, f"{what} of {server} did not come to its end")
    end_s = time.monotonic()
    time.sleep(AFTER_S)
    pauses = [pause(path, start_s, end_s + AFTER_S) for path in out.glob("*.steps.f64")]
    return {"what": what, "pause_s": max(pauses), "took_s": end_s - start_s}


def pause(path: Path, start_s: float, end_s: float) -> float:
    """The longest step in that time, less the median one before it."""
    stamps = harness.stamps(path)
    steps = stamps[1:] - stamps[:-1]
    before = steps[stamps[1:] < start_s][-200:]
    during = steps[(stamps[1:] >= start_s) & (stamps[:-1] <= end_s)]
    if not before.size or not during.size:
        return 0.0
    return float(during.max() - statistics.median(before))


def main() -> None:
    parser = harness.parser(__doc__, "one move of 8 MB")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--moves", type=int, default=3)
    options = parser.parse_args()
    if options.quick:
        options.megabytes, options.moves = [8], 1
    results = {size: measure(size, options.moves) for size in options.megabytes}
    rows, figures = [], {}
    for size, found in results.items():
        for what in ("replace", "kill"):
            pauses = harness.summary([one["pause_s"] for one in found if one["what"] == what])
            took = harness.summary([one["took_s"] for one in found if one["what"] == what])
            figures[f"{size} MB, {what}"] = {"pause_s": pauses, "took_s": took}
            rows.append((f"{size} MB", what, pauses["median"], pauses["max"], took["median"]))
    harness.table(("server holds", "what", "pause s, median", "max", "took s"), rows)
    harness.report("server_replace", figures, file=options.json)


if __name__ == "__main__":
    harness.run(main)
