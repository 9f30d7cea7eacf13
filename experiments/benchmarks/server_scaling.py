"""How long training pauses while parameter servers come and go, and how fast it is meanwhile.

    python benchmarks/server_scaling.py [--quick] [--megabytes 64 1024] [--modes asp bsp]

A job of two workers (10 ms of emulated compute per step), whose one table is as large as stated.
`paceline scale` takes its servers from 2 to 4, to 1, to 3 and back to 2 while it trains. The pause
of a change is the longest time between two steps of a worker while it goes on, less the median
step. The rate is that of all workers from the order until the buckets have moved, and for five
seconds at least, compared with the five seconds before.

While buckets are copied workers send to the servers of both maps. So training is as fast then as
it is with the larger number of servers, at best. *Of slower* compares the rate with the slower of
the five seconds before and five seconds after: what is below 1 is the move itself. *Before s* is
the longest step, less the median, in the five seconds before: what the machine does on its own.

Each sample adds 1 to a row of its own. The job is stopped after the last change, and its last cut
must hold each sample as often as its committed set says. Prints a table and JSON.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.jobs.launch import ask
from paceline.runtime.checkpoint import cutfile
from paceline.wire.client import Done, Scale, StopJob
from paceline.wire.schema import NUM_BUCKETS
from paceline.wire.spec import CheckpointSpec, JobSpec, Mode, NodeSpec, RestartSpec

COUNTING = Path(__file__).with_name("jobs") / "counting.py"
DIM = 64
FIRST, THEN = 2, (4, 1, 3)
BEFORE_S = 5.0
AFTER_S = 1.0
PATIENCE_S = 180.0
SHOWN = {
    "what": "servers",
    "pause_s": "pause s",
    "other_s": "before s",
    "rate": "rate",
    "of_slower": "of slower",
    "took_s": "took s",
}
"""Columns of the table."""
PAUSE_FLOOR_S, PAUSE_GOAL_S, RATE_FLOOR = 0.2, 0.05, 0.9


def spec_of(out: Path, megabytes: int, mode: Mode) -> JobSpec:
    rows = megabytes * (1 << 20) // (4 * DIM)
    synchronous = ("--synchronous",) if mode == "bsp" else ()
    return JobSpec(
        script=str(COUNTING),
        args=("--out", str(out), "--rows", str(rows), "--dim", str(DIM), *synchronous),
        name="scaling",
        solution="none",
        mode=mode,
        workers=NodeSpec(count=2),
        servers=NodeSpec(count=FIRST),
        checkpoint=CheckpointSpec(every_s=harness.NEVER_S),
        restart=RestartSpec(budget=0),
    )


def measure(megabytes: int, mode: Mode, rounds: int) -> list[dict[str, Any]]:
    """Make all changes in turn, and tell whether every sample was counted once."""
    found: list[dict[str, Any]] = []
    with harness.scratch() as out, harness.running(spec_of(out, megabytes, mode)) as job:
        wait_for_steps(job, out)
        before = FIRST
        for count in (*THEN, FIRST) * rounds:
            found.append(change(job, out, before, count))
            before = count
        time.sleep(BEFORE_S)
        now_s = time.monotonic()
        rates = [each["before"] for each in found[1:]]
        for each, after in zip(found, [*rates, rate(stamps_of(out), now_s - BEFORE_S, now_s)]):
            each["of_slower"] = each["during"] / min(each["before"], after)
        ask(job, StopJob())
        harness.require(job, job.outcome.exists, PATIENCE_S, "the job does not stop")
        check_counts(job)
        if sum(event["event"] == "epoch" for event in harness.events(job)) > 1:
            raise harness.failed_job(job, "it went back to a cut")
    return found


def wait_for_steps(job: JobDir, out: Path) -> None:
    def training() -> bool:
        workers = [n for n in harness.status(job).nodes if n.role == "worker"]
        files = [out / f"{n.node}.{n.inc}.steps.f64" for n in workers]
        return all(harness.stamps(path).size > 100 for path in files)

    harness.require(job, training, PATIENCE_S, "the workers do not train")


def change(job: JobDir, out: Path, before: int, count: int) -> dict[str, Any]:
    """Scale once: pause, rate against that of before, duration."""
    time.sleep(BEFORE_S)
    told = sum(event["event"] == "servers_changed" for event in harness.events(job))
    start_s = time.monotonic()
    reply = ask(job, Scale(servers=count))
    if isinstance(reply, Done) and reply.error:
        raise harness.failed_job(job, reply.error)

    def is_over() -> bool:
        done = sum(event["event"] == "servers_changed" for event in harness.events(job))
        return done > told

    what = f"{before} -> {count}"
    harness.require(job, is_over, PATIENCE_S, f"{what} servers did not come to its end")
    end_s = time.monotonic()
    seen_s = max(end_s + AFTER_S, start_s + BEFORE_S)
    time.sleep(seen_s - end_s)
    stamps = stamps_of(out)
    of_before = rate(stamps, start_s - BEFORE_S, start_s)
    during = rate(stamps, start_s, max(end_s, start_s + BEFORE_S))

    def longest(from_s: float, to_s: float) -> float:
        return max(pause(each, from_s, to_s, median_before_s=start_s) for each in stamps)

    return {
        "what": what,
        "pause_s": longest(start_s, end_s + AFTER_S),
        "other_s": longest(start_s - BEFORE_S, start_s),
        "rate": during / of_before,
        "before": of_before,
        "during": during,
        "took_s": end_s - start_s,
    }


def stamps_of(out: Path) -> list[Any]:
    """Return when each life of a worker ended its steps."""
    return [harness.stamps(path) for path in out.glob("*.steps.f64")]


def rate(stamps: list[Any], start_s: float, end_s: float) -> float:
    """Steps per second of all workers."""
    steps = sum(int(np.sum((each >= start_s) & (each < end_s))) for each in stamps)
    return steps / (end_s - start_s)


def pause(stamps: Any, start_s: float, end_s: float, *, median_before_s: float) -> float:
    """The longest step in that time, less the median one before a change."""
    steps = stamps[1:] - stamps[:-1]
    before = steps[stamps[1:] < median_before_s][-200:]
    during = steps[(stamps[1:] >= start_s) & (stamps[:-1] <= end_s)]
    return float(during.max() - statistics.median(before))


def check_counts(job: JobDir) -> None:
    """Raises ArmError: the last cut holds a sample more often, or less, than it says."""
    newest = max(job.cuts.glob("*/manifest.json")).parent
    manifest, files = cutfile.read_cut(newest)
    (table,) = manifest.schema.tables
    num_rows = table.num_rows or 0
    held, said = np.zeros(num_rows), np.zeros(num_rows)
    for arrays in files.values():
        ids = [np.arange(int(one), num_rows, NUM_BUCKETS) for one in arrays["buckets"]]
        values = arrays[f"table.{table.name}.value"]
        if values.size and np.ptp(values, axis=1).max() > 0:
            raise harness.failed_job(job, "elements of one row differ")
        held[np.concatenate(ids)] = values[:, 0]
    for span in manifest.committed:
        whole, rest = divmod(span.stop - span.start, num_rows)
        said += whole
        np.add.at(said, np.arange(span.start, span.start + rest) % num_rows, 1)
    wrong = np.flatnonzero(np.abs(held - said) > 1e-3)
    if wrong.size:
        few = wrong[:5]
        what = f"{wrong.size} rows are wrong: {held[few]} in the model, {said[few]} said"
        raise harness.failed_job(job, what)
    print(f"{int(said.sum())} samples, each in the model as often as said", flush=True)


def main() -> int:
    parser = harness.parser(__doc__, "one round with 8 MB")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--modes", nargs="+", choices=("asp", "bsp"), default=["asp", "bsp"])
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    if options.quick:
        options.megabytes, options.modes = [8], ["asp"]
    rows, figures = [], {}
    for size in options.megabytes:
        for mode in options.modes:
            found = measure(size, mode, options.rounds)
            for one in found:
                name = f"{size} MB, {mode}, {one['what']}"
                figures.setdefault(name, []).append(one)
                rows.append((f"{size} MB", mode, *(one[name] for name in SHOWN)))
    harness.table(("servers hold", "mode", *SHOWN.values()), rows)
    harness.report("server_scaling", figures, file=options.json)
    pauses = [one["pause_s"] for found in figures.values() for one in found]
    rates = [one["rate"] for found in figures.values() for one in found]
    print(
        f"longest pause {max(pauses):.3f} s (floor {PAUSE_FLOOR_S}, goal {PAUSE_GOAL_S}), "
        f"lowest rate {min(rates):.2f} (floor {RATE_FLOOR})"
    )
    missed = max(pauses) > PAUSE_FLOOR_S or min(rates) < RATE_FLOOR
    return int(missed and not options.quick)


if __name__ == "__main__":
    harness.run(main)
