"""What a job takes of a processor while its script computes nothing: each of its processes.

    python benchmarks/idle_job.py [--quick] [--seconds 60] [--step-s 1.0] [--workers 4]
                                  [--arms allreduce servers]

Workers make a step each second, of a tiny model and a sleep, so what is counted is all that waits,
looks and tells. ``servers``: with one server, asp. *percent*: of one core, of all processes that
have this part. Floor 5 %, goal 2 % for four workers in all. Prints a table, then JSON.
"""

import contextlib
import time
from pathlib import Path

from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.base.processes import FoundProcess, find_job_processes
from paceline.wire.spec import JobSpec, NodeSpec

FLOOR, GOAL = 5.0, 2.0
START_S, SETTLE_S = 120.0, 10.0
PARTS = ("supervisor", "master", "agent")


def part_of(one: FoundProcess) -> str:
    """What a process is for; with a worker's or server's goes its zygote."""
    part = next((name for name in PARTS if one.runs(f"paceline.{name}")), "")
    return part or one.node.partition("-")[0] or "template"


def taken(job: JobDir) -> dict[int, tuple[str, float]]:
    """Processor seconds so far of each process of the job, and what it is for."""
    found = {}
    for one in find_job_processes(job.path):
        with contextlib.suppress(OSError):  # it has ended
            found[one.pid] = part_of(one), harness.cpu_s(one.pid)
    return found


def percent(spec: JobSpec, out: Path, seconds: float, num_workers: int) -> dict[str, float]:
    """Percent of a core that each part of a job takes."""
    with harness.running(spec) as job:
        num_stamps = 3 * 8 * num_workers
        trains = f"{num_workers} workers train"
        harness.require(
            job,
            lambda: sum(one.stat().st_size for one in out.glob("*.f64")) >= num_stamps,
            START_S,
            trains,
        )
        time.sleep(SETTLE_S)
        before, begun_s = taken(job), time.monotonic()
        time.sleep(seconds)
        after, took_s = taken(job), time.monotonic() - begun_s
    found: dict[str, float] = {}
    for pid, (part, cpu_s) in after.items():
        more_s = cpu_s - before.get(pid, (part, 0.0))[1]
        found[part] = found.get(part, 0.0) + 100 * more_s / took_s
    return {part: round(value, 2) for part, value in sorted(found.items())}


def main() -> None:
    """Measure, and print a table."""
    parser = harness.parser(__doc__, "two workers for five seconds, steps of 0.2 s")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--step-s", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--arms", nargs="+", choices=("allreduce", "servers"))
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.step_s, options.workers = 5.0, 0.2, 2
    rows = {}
    with harness.scratch() as folder:
        for arm in options.arms or ("allreduce", "servers"):
            out = folder / arm
            out.mkdir()
            spec = JobSpec(
                name=f"idle-{arm}",
                script=str(harness.TINY),
                args=("--out", str(out), "--step-s", str(options.step_s), "--dense"),
                workers=NodeSpec(count=options.workers),
                strategy="allreduce" if arm == "allreduce" else "ps",
                mode="asp" if arm == "servers" else "bsp",
            )
            parts = percent(spec, out, options.seconds, options.workers)
            rows[arm] = {**parts, "all": round(sum(parts.values()), 2)}
    columns = sorted({part for row in rows.values() for part in row} - {"all"})
    harness.table(
        ("arm", *columns, "all"),
        [(arm, *(row.get(part, "") for part in columns), row["all"]) for arm, row in rows.items()],
    )
    figures = {"percent": rows, "floor": FLOOR, "goal": GOAL}
    harness.report("idle_job", figures, file=options.json)


if __name__ == "__main__":
    harness.run(main)
