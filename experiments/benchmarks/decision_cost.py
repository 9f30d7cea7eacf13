"""What one decision costs the master, and its log: observation, solution, line.

    python benchmarks/decision_cost.py [--quick] [--workers 1000] [--servers 50] [--repeat 30]

A `Monitor` that every node has reported to until its windows were full, one worker twice as slow;
then, repeated: build the observation, have each solution decide, encode the line that is written.
Prints JSON: processor time in milliseconds (median and worst), and the size of the line.
"""

import random
import statistics
import time
from collections.abc import Callable

import msgspec
from paceline_experiments import harness

from paceline.features.stragglers.policy.decision_log import Decided
from paceline.features.stragglers.policy.registry import solution
from paceline.master.jobnow import JobNow
from paceline.master.monitor import Monitor
from paceline.policy.actions import Share
from paceline.wire.messages.agent import NodeFacts

REPORTS = 40
STEPS = 10
"""Steps of one report."""
BATCH = 512
SOLUTIONS = ("none", "nd", "lb_bsp", "auto", "falcon")


def fill(monitor: Monitor, workers: list[str], servers: list[str]) -> None:
    rng = random.Random(1)
    monitor.trains(len(workers))
    for tick in range(1, REPORTS + 1):
        for index, name in enumerate(workers):
            compute_s = rng.gauss(0.2 if index == 7 else 0.1, 0.003)
            facts = NodeFacts(
                inc=index + 1,
                samples=tick * STEPS * BATCH,
                steps=STEPS,
                step_samples=BATCH,
                compute_s=compute_s,
                server_s=0.01,
                message_s=0.005,
                bpt_s=0.2,
            )
            monitor.heartbeat(name, facts, 2.0 * tick)
        for index, name in enumerate(servers):
            pulls = STEPS * len(workers)
            facts = NodeFacts(inc=10_000 + index, steps=pulls, server_s=rng.gauss(0.01, 0.0005))
            monitor.heartbeat(name, facts, 2.0 * tick)


def timed(work: Callable[[], object], repeat: int) -> dict[str, float]:
    took_ms = []
    for _ in range(repeat):
        start_s = time.thread_time()
        work()
        took_ms.append(1e3 * (time.thread_time() - start_s))
    return {"median_ms": round(statistics.median(took_ms), 2), "max_ms": round(max(took_ms), 2)}


def main() -> None:
    parser = harness.parser(__doc__, "20 workers, 2 servers, 3 repeats")
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--servers", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=30)
    options = parser.parse_args()
    if options.quick:
        options.workers, options.servers, options.repeat = 20, 2, 3
    workers = [f"worker-{i}" for i in range(options.workers)]
    servers = [f"server-{i}" for i in range(options.servers)]
    monitor = Monitor()
    start_s = time.thread_time()
    fill(monitor, workers, servers)
    reports = REPORTS * (len(workers) + len(servers))
    now = JobNow(
        step=400,
        mode="bsp",
        global_batch=BATCH * len(workers),
        steps_left=1_000,
        shares={name: Share(BATCH) for name in workers},
        servers=tuple(servers),
        restarts={},
    )
    report: dict[str, object] = {
        "workers": len(workers),
        "servers": len(servers),
        "report_us": round(1e6 * (time.thread_time() - start_s) / reports, 1),
        "observe": timed(lambda: monitor.observe(80.0, now), options.repeat),
    }
    seen = monitor.observe(80.0, now)
    for name in SOLUTIONS:
        chosen = solution(name)
        report[name] = timed(lambda: chosen.decide(seen), options.repeat)  # noqa: B023 - called now
    line = Decided(t=0.0, no=1, observation=seen, actions=tuple(solution("nd").decide(seen)))
    report["encode"] = timed(lambda: msgspec.json.encode(line), options.repeat)
    report["line_bytes"] = len(msgspec.json.encode(line))
    harness.report("decision_cost", report, file=options.json)


if __name__ == "__main__":
    harness.run(main)
