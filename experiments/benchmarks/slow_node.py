"""A node that has 3 % of its cores left: the job's time with nothing done, restarted, and healed.

    python benchmarks/slow_node.py [--quick] [--roles server worker] [--rounds 3] [--cores 0.5]
                                   [--rows 200000 300000] [--at-once 1]

Real jobs (Wide & Deep on a click log, mode asp, two workers and two servers with ``--cores`` each).
When a fifth of the samples are in the model, the machine gives one node 3 % of its cores: the quota
of its control group, behind paceline's back. Arms, in turn:

    nothing   no policy against stragglers; a worker's part of the samples is fixed
    leases    (worker) no policy, but who is faster does more, as always in paceline
    restart   as `nothing`; 10 s after the fault the job is stopped with a last cut, and resumed
    healed    policy auto: another process takes the node's place, or the others do its work

Printed for each: the time from the fault to the last sample (median over rounds), and how much
shorter `healed` is. DLRover-RM: -36.4 % against nothing and -27.6 % against a restart for a server;
-48.5 % and -37 % for a worker. What such figures are depends on how long the job is: the longer,
the more it gains.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from paceline_experiments import harness

from paceline.base.cgroups import find_node_group
from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.features.data.ctr import CtrSettings
from paceline.features.data.make_ctr import make_ctr
from paceline.jobs.launch import AS_BEFORE, ask, resume
from paceline.jobs.outcome import read_outcome
from paceline.wire.client import StopJob
from paceline.wire.spec import JobSpec, NodeSpec

SCRIPT = Path(__file__).parents[2] / "examples" / "02_wide_deep.py"
LEFT, FAULT_AT, NOTICED_S = 0.03, 0.2, 10.0
ARMS = {
    "server": ("nothing", "restart", "healed"),
    "worker": ("nothing", "leases", "restart", "healed"),
}
ROWS = {"server": 200_000, "worker": 300_000}
ACTIONS = {"replacing", "plan", "rates", "kill_restart"}
START_S, PATIENCE_S = 120.0, 900.0


def spec_of(data: Path, role: str, arm: str, cores: float) -> JobSpec:
    fixed = "even" if role == "worker" else "none"
    return JobSpec(
        script=str(SCRIPT),
        args=("--data", str(data)),
        name=arm,
        mode="asp",
        solution={"healed": "auto", "leases": "none"}.get(arm, fixed),
        history="off",
        workers=NodeSpec(count=2, cpu=(cores,)),
        servers=NodeSpec(count=2, cpu=(cores,)),
    )


def run(data: Path, role: str, arm: str, cores: float) -> float:
    """Seconds from the fault to the last sample."""
    with harness.running(spec_of(data, role, arm, cores)) as job:
        harness.require(job, lambda: harness.status(job).committed > 0, START_S, "no step")
        total = harness.status(job).total or 0
        is_there: Callable[[], bool] = lambda: harness.status(job).committed >= FAULT_AT * total  # noqa: E731
        harness.require(job, is_there, START_S, "a fifth of the samples")
        find_node_group(job.job_id, f"{role}-1").set_cpu(cores * LEFT)
        fault_s = time.monotonic()
        restarted = arm != "restart"
        while not job.outcome.exists() and harness.status(job).committed < total:
            if time.monotonic() - fault_s > PATIENCE_S:
                raise harness.failed_job(job, f"not within {PATIENCE_S:.0f} s")
            if not restarted and time.monotonic() - fault_s > NOTICED_S:
                restart(job)
                restarted = True
            time.sleep(0.2)
        took_s = time.monotonic() - fault_s
        acts = [one["event"] for one in harness.events(job) if one["event"] in ACTIONS]
        print(f"  {role} {arm}: {took_s:.1f} s {acts}", flush=True)
        return took_s


def restart(job: JobDir) -> None:
    """Stop with a last cut, and go on as ``paceline run --resume`` does."""
    ask(job, StopJob())
    harness.until(lambda: read_outcome(job.outcome) is not None, PATIENCE_S)
    if not harness.until(lambda: not job.run_dir.exists(), PATIENCE_S):
        raise harness.failed_job(job, "it does not stop")
    resume(job, AS_BEFORE)
    harness.require(job, lambda: not job.outcome.exists(), START_S, "it does not begin again")
    harness.until(lambda: _answers(job), START_S)


def _answers(job: JobDir) -> bool:
    try:
        return harness.status(job).committed > 0
    except (PacelineError, OSError):  # its master has not begun
        return False


def main() -> int:
    parser = harness.parser(__doc__, "one round of few samples and one role, no figures")
    parser.add_argument("--roles", nargs="+", choices=[*ARMS], default=[*ARMS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=float, default=0.5)
    parser.add_argument("--rows", type=int, nargs=2, default=[*ROWS.values()])
    parser.add_argument("--at-once", type=int, default=1, help="jobs")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.rows, options.roles = 1, [60_000, 60_000], ["server"]
    with harness.scratch() as out:
        rows = dict(zip(ARMS, options.rows, strict=True))
        for role in options.roles:
            make_ctr(out / role, rows[role], CtrSettings())
        # Each round of all arms before the next; the longest first.
        arms = [(role, arm) for role in options.roles for arm in ARMS[role]] * options.rounds
        calls = [partial(run, out / role, role, arm, options.cores) for role, arm in arms]
        came = [*zip(arms, harness.side_by_side(calls, options.at_once), strict=True)]
    found: dict[str, Any] = {}
    for role in options.roles:
        took = {
            arm: median(one for which, one in came if which == (role, arm)) for arm in ARMS[role]
        }
        found[role] = {f"{arm}_s": one for arm, one in took.items()} | {
            f"less_than_{arm}": 1.0 - took["healed"] / one
            for arm, one in took.items()
            if arm != "healed"
        }
    harness.report("slow_node", found, file=options.json)
    gains = [each["less_than_nothing"] for each in found.values()]
    return int(min(gains) <= 0.0 and not options.quick)


if __name__ == "__main__":
    harness.run(main)
