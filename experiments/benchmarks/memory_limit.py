"""Tables that grow under a real limit of memory: ends out of memory, with the forecast and without.

    python benchmarks/memory_limit.py [--runs 20] [--without 6] [--quick]

Prints JSON. A job of one worker and one server, whose limit does not do for the rows that come:
all keys new, half of them, or a burst of new ones after half of the data. With ``max_memory`` the
limit may be raised to 2 GiB; without it stays. Floor: no end out of memory with it. Needs control
groups; where they are not permitted it is skipped.
"""

import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from paceline_experiments import harness

from paceline.base.cgroups import create_node_group, remove_job
from paceline.features.sizes.events import MemoryRaisedEvent, read
from paceline.jobs.history import read_events
from paceline.jobs.launch import launch
from paceline.jobs.outcome import read_outcome
from paceline.wire.events.nodes import (
    NodeResizedEvent,
    ProcessExitedEvent,
    Verdict,
)
from paceline.wire.spec import CheckpointSpec, DataSpec, JobSpec, NodeSpec, RestartSpec

SCRIPT = Path(__file__).with_name("jobs") / "growing.py"
SAMPLES = 250_000
PAUSE_S = 0.04
"""Seconds after each of 489 steps, so that the table grows for half a minute."""
MIB = 1 << 20
LIMITS = {"all": 200 * MIB, "half": 160 * MIB, "burst": 150 * MIB}
"""Limits by the kind of keys: without the forecast, the kernel kills the server."""
MOST = 2048 * MIB
RUN_S = 150.0


class Seen(NamedTuple):
    """One run."""

    keys: str
    state: str
    out_of_memory: int
    raised: int
    reached: float
    """The largest part of a limit that was in use when it was raised; 0: it was not."""
    jct_s: float


def run(keys: str, *, most: int | None) -> Seen:
    spec = JobSpec(
        script=str(SCRIPT),
        args=("--samples", str(SAMPLES), "--keys", keys, "--pause-s", str(PAUSE_S)),
        mode="asp",
        data=DataSpec(shuffle=False),
        servers=NodeSpec(memory_bytes=LIMITS[keys], max_memory_bytes=most),
        checkpoint=CheckpointSpec(every_s=2.0),
        restart=RestartSpec(backoff_s=0.1, budget=2),
        solution="none",
        preflight=False,
        history="off",
    )
    job = launch(spec)
    harness.until(job.outcome.exists, RUN_S)
    harness.stop(job)  # one that ran out of memory has failed, which is what is measured
    outcome, events = read_outcome(job.outcome), read(read_events(job.events))
    shutil.rmtree(job.path)
    ends = [one for one in events if isinstance(one, ProcessExitedEvent)]
    raised = [one for one in events if isinstance(one, MemoryRaisedEvent)]
    assert len(raised) == sum(isinstance(one, NodeResizedEvent) for one in events)
    return Seen(
        keys,
        outcome.state if outcome else "not ended",
        sum(one.verdict is Verdict.OOM for one in ends),
        len(raised),
        max((one.used_bytes / one.limit_bytes for one in raised), default=0.0),
        outcome.jct_s if outcome else 0.0,
    )


def summed(runs: list[Seen]) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "runs": len(runs),
        "finished": sum(one.state == "finished" for one in runs),
        "runs_out_of_memory": sum(one.out_of_memory > 0 for one in runs),
        "ends_out_of_memory": sum(one.out_of_memory for one in runs),
    }
    if any(one.raised for one in runs):
        figures["raised"] = harness.summary([float(one.raised) for one in runs])
        figures["in_use_when_raised"] = harness.summary([one.reached for one in runs])
    return figures


def main() -> int:
    """Measure, print, hold against the floor; 1: it does not hold."""
    parser = harness.parser(__doc__, "one run of each kind")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--without", type=int, default=6)
    parser.add_argument("--together", type=int, default=1, help="jobs at one time")
    options = parser.parse_args()
    _, note = create_node_group("probe", "server-0", None, LIMITS["all"])
    remove_job("probe")
    if note:
        harness.skipped("memory_limit", note)
        return 0
    counts = {"with": 1 if options.quick else options.runs}
    counts["without"] = 1 if options.quick else options.without
    figures = {}
    with harness.scratch():
        for arm, count in counts.items():
            kinds = itertools.islice(itertools.cycle(LIMITS), count)
            most = MOST if arm == "with" else None
            with ThreadPoolExecutor(options.together) as pool:
                runs = list(pool.map(partial(run, most=most), kinds))
            figures[arm] = summed(runs) | {
                keys: summed([one for one in runs if one.keys == keys])
                for keys in LIMITS
                if any(one.keys == keys for one in runs)
            }
    harness.report("memory_limit", figures, file=options.json)
    killed = figures["with"]["ends_out_of_memory"]
    held = not killed and figures["with"]["finished"] == counts["with"]
    if not held:
        print(f"ends out of memory with the forecast: {killed}")
    return int(not held)


if __name__ == "__main__":
    harness.run(main)
