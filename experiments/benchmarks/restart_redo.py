"""What a lost worker costs: samples computed twice, and seconds; without and with checkpoints.

    python benchmarks/restart_redo.py [--quick] [--kills 4] [--intervals 2 5 10 20]

AntDT's Figure 17, ours in seconds. Jobs of four workers and one server (emulated compute), of which
a process is killed:

- ``ledger``: a worker, at random moments (`paceline kill`); the others go on, and what it had not
  committed goes back to the ledger;
- a checkpoint every so many seconds: the server, after which everybody goes back to the last cut
  and computes again what came after it, as a job does that knows no ledger. It is the cheapest
  form of that: workers' processes live on, and cuts lie in memory and are hardly felt (the paper
  adds the time to save them). Kills are spread evenly over the interval.

Per kill: samples that were begun twice, the seconds these take the job (by its own undisturbed
rate), the seconds that it lost otherwise (somebody's process starts, or waits for work; the paper
leaves start and pending out), and when all trained again. Prints a table and JSON.
"""

import random
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.jobs.launch import ask
from paceline.wire.client import Done, Kill
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec

SCRIPT = Path(__file__).with_name("jobs") / "recorded.py"
WORKERS, BATCH_SIZE, SAMPLE_S = 4, 128, 0.004
PATIENCE_S = 60.0
RUN_UP_S = 2.0
PER_KILL_S = 4.0
"""Seconds per kill in ASP, with room to spare."""
AFTER_S = 1.5
"""Seconds from the moment when all train again: what a kill disturbs is over by then."""
CUTS = ("cut_valid", "restored")
PAPER = {"ledger": "2 min", "checkpoint every 5 min": "17 min"}

Records = NDArray[np.float64]
"""[samples, 2]: when begun, and which."""


class Window(NamedTuple):
    """Window that one kill disturbed."""

    start_s: float
    killed_s: float
    again_s: float
    """Time at which all train again."""
    end_s: float


def spec_of(out: Path, mode: str, every_s: float, num_samples: int) -> JobSpec:
    flags = {
        "--out": out,
        "--num-samples": num_samples,
        "--batch-size": BATCH_SIZE,
        "--sample-s": SAMPLE_S,
    }
    return JobSpec(
        script=str(SCRIPT),
        args=tuple(word for flag in flags.items() for word in map(str, flag)),
        name="restart-redo",
        mode=mode,  # type: ignore[arg-type]
        solution="none",
        torch_threads=1,
        workers=NodeSpec(count=WORKERS),
        servers=NodeSpec(count=1),
        checkpoint=CheckpointSpec(every_s=every_s, share=1.0),
        restart=RestartSpec(budget=10_000, backoff_max_s=1.0),
    )


def measure(mode: str, every_s: float | None, kills: int) -> list[dict[str, float]]:
    """Kill so many times in one job; None: workers, without going back to a cut."""
    rng = random.Random(kills)
    # In ASP what came back is read at the end of the epoch, so there has to be one.
    run_s = RUN_UP_S + kills * (PER_KILL_S + AFTER_S)
    num_samples = int(run_s * WORKERS / SAMPLE_S) if mode == "asp" else 10**9
    with harness.scratch() as out:
        spec = spec_of(out, mode, every_s or 5.0, num_samples)
        with harness.running(spec) as job:
            wait_for_all(out, 0.0, job)
            begun_s = time.monotonic()
            time.sleep(RUN_UP_S)
            windows = []
            for number in range(kills):
                if every_s is None:
                    time.sleep(rng.random())
                    windows.append(kill(job, out, f"worker-{rng.randrange(WORKERS)}"))
                else:
                    wait_for_phase(job, (number + 0.5) / kills * every_s)
                    windows.append(kill(job, out, "server-0"))
            ended_s = time.monotonic()
            # Until all that was lost has been begun again.
            if mode == "asp":
                harness.finish(job, 2 * run_s + PATIENCE_S)
            else:
                time.sleep(every_s or 0.0)
        return costs(records(out), windows, begun_s, ended_s)


def kill(job: JobDir, out: Path, node: str) -> Window:
    """Kill, and wait until all train again."""
    lives_before, restored_before = len(lives(out)), restored(job)
    start_s = time.monotonic()
    reply = ask(job, Kill(node=node))
    killed_s = time.monotonic()
    assert isinstance(reply, Done), reply
    if reply.error:
        raise harness.failed_job(job, reply.error)

    def is_back() -> bool:
        if node.startswith("worker"):
            return len(lives(out)) > lives_before
        return restored(job) > restored_before

    harness.require(job, is_back, PATIENCE_S, f"{node} did not come back")
    wait_for_all(out, time.monotonic(), job)
    again_s = time.monotonic()
    time.sleep(AFTER_S)
    return Window(start_s, killed_s, again_s, time.monotonic())


def lives(out: Path) -> list[Path]:
    return list(out.glob("worker-*.f64"))


def restored(job: JobDir) -> int:
    """Count how often servers have come back."""
    return sum(event["event"] == "restored" for event in harness.events(job))


def wait_for_all(out: Path, since_s: float, job: JobDir) -> None:
    """Wait until every worker has begun a batch since then."""

    def training() -> bool:
        nodes = {
            path.name.partition(".")[0]
            for path in lives(out)
            if (rows := read(path)).size and rows[-1, 0] > since_s
        }
        return len(nodes) == WORKERS

    harness.require(job, training, PATIENCE_S, "the workers do not train")


def wait_for_phase(job: JobDir, after_s: float) -> None:
    """Wait until so long after a cut, or after the return to one."""

    def seen_s() -> list[float]:
        return [event["at_s"] for event in harness.events(job) if event["event"] in CUTS]

    before_s = seen_s()
    if before_s[-1] + after_s < time.monotonic():
        harness.require(job, lambda: len(seen_s()) > len(before_s), PATIENCE_S, "no cut")
    time.sleep(max(0.0, seen_s()[-1] + after_s - time.monotonic()))


def read(path: Path) -> Records:
    """The whole records of one life."""
    data = path.read_bytes()
    return np.frombuffer(data[: len(data) // 16 * 16]).reshape(-1, 2)


def records(out: Path) -> Records:
    """Read the records of all lives, by time."""
    rows = np.concatenate([read(path) for path in lives(out)])
    return rows[np.argsort(rows[:, 0], kind="stable")]


def costs(
    rows: Records, windows: list[Window], begun_s: float, ended_s: float
) -> list[dict[str, float]]:
    """Return the cost of each kill; the undisturbed rate is that outside of all windows."""
    begun = rows[(rows[:, 0] >= begun_s) & (rows[:, 0] < ended_s), 0]
    inside = [(begun >= one.start_s) & (begun < one.end_s) for one in windows]
    quiet_s = ended_s - begun_s - sum(one.end_s - one.start_s for one in windows)
    rate = (len(begun) - sum(int(which.sum()) for which in inside)) / quiet_s
    kill_no = np.searchsorted([one.killed_s for one in windows], lost(rows))
    # Some were begun just before everybody knew of the last kill.
    redone = np.bincount(np.minimum(kill_no, len(windows) - 1), minlength=len(windows))
    return [
        {
            "samples_twice": int(twice),
            "redo_s": float(twice) / rate,
            "idle_s": window.end_s - window.start_s - float(which.sum()) / rate,
            "all_train_after_s": window.again_s - window.start_s,
            "samples_per_s": rate,
        }
        for window, which, twice in zip(windows, inside, redone, strict=True)
    ]


def lost(rows: Records) -> NDArray[np.float64]:
    """Return when samples were begun that were begun again later: before a kill lost them."""
    by_sample = rows[np.lexsort((rows[:, 0], rows[:, 1]))]
    begun_s: NDArray[np.float64] = by_sample[:-1, 0][np.diff(by_sample[:, 1]) == 0]
    return begun_s


def summed_up(found: list[dict[str, float]]) -> dict[str, Any]:
    """Over the kills of an arm."""
    return {
        "kills": len(found),
        "mean": {key: round(statistics.mean(one[key] for one in found), 3) for key in found[0]},
        "samples_twice": harness.summary([one["samples_twice"] for one in found]),
        "extra_s": harness.summary([one["redo_s"] + one["idle_s"] for one in found]),
    }


def main() -> None:
    parser = harness.parser(__doc__, "1 kill, one interval of 2 s")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--intervals", type=float, nargs="+", default=[2.0, 5.0, 10.0, 20.0])
    options = parser.parse_args()
    kills = 1 if options.quick else options.kills
    intervals = [2.0] if options.quick else options.intervals
    arms: dict[str, tuple[str, float | None]] = {f"ledger, {m}": (m, None) for m in ("bsp", "asp")}
    arms |= {f"checkpoint every {every_s:g} s, bsp": ("bsp", every_s) for every_s in intervals}
    found = {}
    for name, arm in arms.items():
        found[name] = summed_up(measure(*arm, kills))
        print(f"{name}: {found[name]}", flush=True)
    columns = ("samples_twice", "redo_s", "idle_s", "all_train_after_s")
    harness.table(
        ("restart by", *columns, "extra s: redo + idle"),
        [
            (
                name,
                *(round(of["mean"][column], 2) for column in columns),
                round(of["mean"]["redo_s"] + of["mean"]["idle_s"], 2),
            )
            for name, of in found.items()
        ],
    )
    print("the paper, delay without start and pending: " + ", ".join(map(": ".join, PAPER.items())))
    harness.report(
        "restart_redo",
        {
            "workers": WORKERS,
            "batch_size": BATCH_SIZE,
            "compute": f"emulated, {1e3 * SAMPLE_S:g} ms a sample",
            "arms": found,
            "paper": PAPER,
        },
        file=options.json,
    )


if __name__ == "__main__":
    harness.run(main)
