"""What a dead master costs the workers: SIGKILL to the master while two workers train.

    python benchmarks/master_death.py [--quick] [--kills 5]

For ASP and for BSP: a job of two workers and one server (tiny model, 10 ms of emulated compute per
step), whose master is killed again and again. Printed: the largest gap between two steps of a
worker within ``WATCH_S`` of a kill beside the median gap and the largest one in quiet stretches of
the same length; steps during the outage against those expected from the median; seconds from the
kill until the restarted master's first new grant is in its journal (written before it leaves).
A *stall* is a gap of more than STALL_S that begins within the outage. Prints a table and JSON.
"""

import contextlib
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.master.journal import JournalRecord
from paceline.protocol.records import Granted
from paceline.wire.spec import DataSpec, JobSpec, NodeSpec

WATCH_S = 4.0
"""Longer than an outage: so much is looked at after each kill, and before it for comparison."""
WARM_UP_S = 6.0
"""Speeds are measured and leases have their full length."""
WINDOW_S = 30.0
STALL_S = 0.5


def measure(mode: str, kills: int, step_s: float) -> list[dict[str, Any]]:
    with harness.scratch() as out:
        spec = JobSpec(
            script=str(harness.TINY),
            args=("--out", str(out), "--step-s", str(step_s)),
            name=f"master-{mode}",
            solution="none",
            mode=mode,  # type: ignore[arg-type]
            workers=NodeSpec(count=2),
            servers=NodeSpec(count=1),
            # Small shards, so that somebody always wants one: the first grant is not waited for.
            data=DataSpec(shard_size=512),
        )
        with harness.running(spec) as job:
            what = "the workers do not train"
            harness.require(job, lambda: len(steps_of(out)) == 2, WINDOW_S, what)
            time.sleep(WARM_UP_S)
            found = []
            for _ in range(kills):
                time.sleep(WATCH_S)
                killed_s, started_s, granted_s = kill_master(job)
                time.sleep(max(0.0, killed_s + WATCH_S - time.monotonic()))
                found.append({"restart_s": started_s} | trial(out, killed_s, granted_s))
            return found


def steps_of(out: Path) -> list[np.ndarray]:
    found = [harness.stamps(path) for path in sorted(out.glob("worker-*.steps.f64"))]
    return [steps for steps in found if steps.size]


def kill_master(job: JobDir) -> tuple[float, float, float]:
    """Return when it was killed, seconds to the next one, and when that journalled a new grant."""
    pid, before = harness.status(job).master_pid, last_record(job)
    killed_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)

    def started_s() -> float:
        return max(e["at_s"] for e in harness.events(job) if e["event"] == "master_started")

    def grants() -> bool:
        return started_s() > killed_s and new_grant(job, before)

    harness.require(job, grants, WINDOW_S, "no new grant after the master's death")
    return killed_s, started_s() - killed_s, time.monotonic()


def last_record(job: JobDir) -> int:
    with contextlib.closing(sqlite3.connect(job.journal)) as db:
        return int(db.execute("SELECT max(seq) FROM log").fetchone()[0])


def new_grant(job: JobDir, after: int) -> bool:
    """Tell whether the journal has a grant beyond ``after`` (none comes while nobody lives)."""
    with contextlib.closing(sqlite3.connect(job.journal)) as db:
        rows = db.execute("SELECT record FROM log WHERE seq > ?", (after,)).fetchall()
    decode = msgspec.msgpack.Decoder(JournalRecord).decode
    return any(isinstance(decode(data), Granted) for (data,) in rows)


def trial(out: Path, killed_s: float, granted_s: float) -> dict[str, Any]:
    quiet = gaps(out, killed_s - WATCH_S, killed_s)
    after = gaps(out, killed_s, killed_s + WATCH_S)
    outage_s = granted_s - killed_s
    median_s = float(np.median(quiet))
    return {
        "grant_s": outage_s,
        "median_gap_s": median_s,
        "largest_gap_before_s": float(quiet.max()),
        "largest_gap_after_s": float(after.max()),
        "stalls": int((after > STALL_S).sum()),
        "steps_in_outage": gaps(out, killed_s, killed_s + outage_s).size,
        "steps_expected": round(2 * outage_s / float(quiet.mean())),
    }


def gaps(out: Path, from_s: float, to_s: float) -> np.ndarray:
    """Gaps between steps of one worker that end within a stretch of time, of all workers."""
    found = []
    for steps in steps_of(out):
        first, last = np.searchsorted(steps, (from_s, to_s))
        found.append(np.diff(steps[max(0, first - 1) : last]))
        # One that has not ended yet counts, too.
        found.append(np.array([to_s - steps[last - 1]]))
    return np.concatenate(found)


def main() -> None:
    parser = harness.parser(__doc__, "1 kill in each mode")
    parser.add_argument("--kills", type=int, default=5, help="of the master, in each mode")
    parser.add_argument("--step-s", type=float, default=0.01)
    options = parser.parse_args()
    kills = 1 if options.quick else options.kills
    trials = {mode: measure(mode, kills, options.step_s) for mode in ("asp", "bsp")}
    rows = []
    for mode, found in trials.items():
        for one in found:
            seconds = [one[key] for key in one if key.endswith("_s")]
            shown = [f"{s:.3f}" for s in seconds]
            counts = [one[key] for key in ("stalls", "steps_in_outage", "steps_expected")]
            rows.append((mode, *shown, *counts))
    head = ("mode", "restart s", "grant s", "median gap", "largest before", "largest after")
    harness.table((*head, "stalls", "steps in outage", "expected"), rows)
    goals = {"stalls": 0, "grant_s": 2.0}
    figures = {"kills": kills, "goals": goals, "trials": trials}
    harness.report("master_death", figures, file=options.json)


if __name__ == "__main__":
    harness.run(main)
