"""What managing a job takes, by number of workers: AntDT's Figure 18 from real masters.

    python benchmarks/management_cost.py [--quick] [--workers 8 16 30] [--seconds 4] [--switches 12]

For each number of workers:

- *ledger calls*: a production master in a process of its own, journal on disk; another process
  plays n workers and the leading server of a job in BSP, each on its own gRPC stream, all asking as
  fast as they are answered. Of a grant (journalled before it leaves), a return (samples given back,
  journalled) and a report of what is committed: processor time of the master, and how long the
  answer takes while all n ask at once (a report has none);
- *actions*: a real job in BSP (steps of emulated compute) that is given another plan every few
  steps: from the question to the commit (all workers have given back what the plan will deal), from
  there until all n are granted their parts by it, and the extra wait at the step that switches,
  above the median of ordinary steps. The first two pass while workers train;
- *decisions*: observation, solution and log line, processor time of the master.

``simulator`` has, by number of workers, what ``paceline sim stragglers fig18`` takes:
``ledger_call_us`` (``CallCosts.ledger_call_s``: a grant, the dearest of a step's calls, at the
master) and ``action_ms`` (``CallCosts.action_s``: the median extra wait of all workers when a plan
takes effect). Prints tables and JSON.
"""

import asyncio
import itertools
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import decision_cost
import msgspec
import numpy as np
import plan_switch
from dispatch import FEED, Client, NoBackend
from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.base.samples import Span
from paceline.features.stragglers.policy.decision_log import Decided
from paceline.features.stragglers.policy.registry import solution
from paceline.master.jobnow import JobNow
from paceline.master.monitor import Monitor
from paceline.master.service import Master
from paceline.policy.actions import Share
from paceline.wire.client import GetStatus
from paceline.wire.control import ControlClient
from paceline.wire.messages.node import (
    Committed,
    GiveBack,
    GivenBack,
    Grant,
    LeaseRequest,
    Restore,
    Restored,
)
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec

STEP_S = 0.4
PLAY_S = 300.0
BURST = 500
"""Reports of the leader before the master is asked whether it has them all."""
PAPER = "0.44 to 0.46 % of the JCT at 30, 60 and 90 workers; 55 % ledger, 45 % synchronisation"


# ---------------------------------------------------------------------------- ledger calls


class Players:
    """The workers and the leader of a job, of which only the messages are real."""

    def __init__(self, job: JobDir, count: int, master_pid: int) -> None:
        self._job, self._count, self._pid = job, count, master_pid
        self.workers: list[Client] = []
        self.leader: Client
        self.epoch_no = self.number = self.returns = self.step = 0
        self.grants: list[Grant] = []

    async def connect(self) -> None:
        """Connect, and wait until all are in the epoch."""
        names = ["server-0", *(f"worker-{index}" for index in range(self._count))]
        connecting = (Client.connect(self._job, name) for name in names)
        self.leader, *self.workers = await asyncio.gather(*connecting)
        _, *joined = await asyncio.gather(
            self._restore(), *(worker.join() for worker in self.workers)
        )
        self.epoch_no = joined[0]

    async def _restore(self) -> None:
        restore = await self.leader.wait(Restore)
        assert isinstance(restore, Restore)
        self.leader.say(Restored(epoch_no=restore.epoch_no, inc=self.leader.inc))

    async def grant(self, index: int) -> None:
        """Ask for samples, until they are there."""
        worker = self.workers[index]
        worker.say(LeaseRequest(epoch_no=self.epoch_no, inc=worker.inc, n=self.number, feed=0))
        grant = await worker.wait(Grant)
        assert isinstance(grant, Grant)
        assert grant.spans, "an empty grant"
        self.grants[index] = grant

    async def give_back(self, index: int) -> None:
        """Give back all of the last grant, and wait until it is journalled."""
        worker = self.workers[index]
        spans = self.grants[index].spans
        worker.say(GiveBack(epoch_no=self.epoch_no, inc=worker.inc, r=self.returns, spans=spans))
        await worker.wait(GivenBack)

    def commit(self, step: int) -> None:
        """Report that this step and all before it are in the model."""
        self.step = step
        self.leader.say(
            Committed(
                epoch_no=self.epoch_no,
                inc=self.leader.inc,
                step=step,
                committed=(Span(0, 0, step * FEED.batch_size),),
            )
        )

    async def all(self, call: Callable[[int], Awaitable[None]], waits_s: list[float]) -> float:
        """Have all workers call at once; return the master's processor time."""

        async def timed(index: int) -> None:
            start_s = time.perf_counter()
            await call(index)
            waits_s.append(time.perf_counter() - start_s)

        before_s = harness.cpu_s(self._pid)
        await asyncio.gather(*(timed(index) for index in range(self._count)))
        return harness.cpu_s(self._pid) - before_s

    async def caught_up(self) -> None:
        """The master has handled the leader's last report."""
        client = ControlClient(self._job.control_address(), self._job.secret())
        while True:
            status = await client.call(GetStatus(), timeout_s=30.0)
            if getattr(status, "step", 0) >= self.step:
                return


async def play(job: JobDir, count: int, seconds: float, master_pid: int) -> dict[str, Any]:
    """Grants and returns in turn, then reports."""
    players = Players(job, count, master_pid)
    await players.connect()
    players.grants = [Grant(epoch_no=0, inc=0, n=0, feed=0)] * count
    spent_s: dict[str, float] = {"grant": 0.0, "return": 0.0}
    waits_s: dict[str, list[float]] = {"grant": [], "return": []}
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        players.number += 1
        spent_s["grant"] += await players.all(players.grant, waits_s["grant"])
        players.returns += 1
        spent_s["return"] += await players.all(players.give_back, waits_s["return"])
    before_s = harness.cpu_s(master_pid)
    for _ in range(BURST):
        players.commit(players.step + 1)
    await players.caught_up()
    reports_s = harness.cpu_s(master_pid) - before_s
    found: dict[str, Any] = {
        name: {
            "calls": len(waits),
            "master_us": round(1e6 * spent_s[name] / len(waits), 1),
            "answer_p50_ms": round(1e3 * statistics.median(waits), 3),
            "answer_p95_ms": round(1e3 * float(np.percentile(waits, 95)), 3),
        }
        for name, waits in waits_s.items()
    }
    found["committed"] = {"calls": BURST, "master_us": round(1e6 * reports_s / BURST, 1)}
    return found


async def run_master(job: JobDir, workers: int) -> None:
    spec = JobSpec(
        script="/bench",
        mode="bsp",
        solution="none",
        workers=NodeSpec(count=workers),
        checkpoint=CheckpointSpec(every_s=10_000),
    )
    await Master(job, spec, NoBackend()).run()


def ledger_calls(workers: int, seconds: float) -> dict[str, Any]:
    """A master in a process of its own, and players in this one."""
    with harness.bare_job(f"management-{workers}") as job:
        arguments = ["--role", "master", "--job", str(job.path), "--workers", str(workers)]
        command = [sys.executable, __file__, *arguments]
        master = harness.Child(f"{workers} workers", command, job.logs / "master.log")
        try:
            return asyncio.run(asyncio.wait_for(play(job, workers, seconds, master.pid), PLAY_S))
        except TimeoutError:
            master.check()
            raise harness.failure(master.arm, "the master is too slow", [master.log]) from None
        except SystemExit:  # of a client whose stream was closed
            master.check()
            raise
        finally:
            master.kill()


# ---------------------------------------------------------------------------- actions, decisions


def actions(workers: int, switches: int, step_s: float) -> dict[str, Any]:
    """A real job whose plans switch."""
    run = plan_switch.run(switches, step_s, workers)
    commit_ms, granted_ms = 1e3 * np.diff(run.phases, axis=1).T
    switching_s, ordinary_s = run.times[run.switched], run.times[~run.switched]
    usual_s = float(np.median(ordinary_s))
    return {
        "plans": run.plans,
        "asked_to_committed_ms": harness.summary(commit_ms.tolist()),
        "committed_to_all_granted_ms": harness.summary(granted_ms.tolist()),
        "step_ms": round(1e3 * usual_s, 2),
        "switching_extra_ms": harness.summary((1e3 * (switching_s - usual_s)).tolist()),
        "ordinary_extra_p95_ms": round(1e3 * float(np.percentile(ordinary_s - usual_s, 95)), 2),
    }


def decisions(workers: int, servers: int) -> dict[str, Any]:
    """Milliseconds of processor time, as in `decision_cost`."""
    names = [f"worker-{i}" for i in range(workers)]
    serving = [f"server-{i}" for i in range(servers)]
    monitor = Monitor()
    decision_cost.fill(monitor, names, serving)
    now = JobNow(
        step=400,
        mode="bsp",
        global_batch=decision_cost.BATCH * workers,
        steps_left=1_000,
        shares={name: Share(decision_cost.BATCH) for name in names},
        servers=tuple(serving),
        restarts={},
    )
    seen = monitor.observe(80.0, now)
    costs = {"observe": decision_cost.timed(lambda: monitor.observe(80.0, now), 30)}
    for name in ("nd", "auto"):
        chosen = solution(name)
        costs[name] = decision_cost.timed(lambda: chosen.decide(seen), 30)  # noqa: B023 - now
    line = Decided(t=0.0, no=1, observation=seen, actions=tuple(solution("nd").decide(seen)))
    costs["write"] = decision_cost.timed(lambda: msgspec.json.encode(line), 30)
    return costs


# ---------------------------------------------------------------------------- the whole


def measure(workers: int, seconds: float, switches: int, step_s: float) -> dict[str, Any]:
    """Measure everything for one size."""
    found = {
        "ledger_calls": ledger_calls(workers, seconds),
        "actions": actions(workers, switches, step_s),
        "decisions": decisions(workers, servers=max(1, workers // 3)),
    }
    extra_ms = found["actions"]["switching_extra_ms"]["median"]
    found["simulator"] = {
        "ledger_call_us": found["ledger_calls"]["grant"]["master_us"],
        "action_ms": round(max(0.0, extra_ms), 3),
    }
    print(f"{workers} workers: {json.dumps(found)}", flush=True)
    return found


def rows_of(workers: int, found: dict[str, Any]) -> list[tuple[object, ...]]:
    """Make the rows of the table."""
    calls, acts, made = found["ledger_calls"], found["actions"], found["decisions"]
    answers = {name: of.get("answer_p50_ms", "") for name, of in calls.items()}
    rows: list[tuple[object, ...]] = [
        (workers, name, f"{of['master_us']:.0f} us", answers[name]) for name, of in calls.items()
    ]
    for name in ("asked_to_committed_ms", "committed_to_all_granted_ms", "switching_extra_ms"):
        rows.append((workers, f"action, {name[:-3]}", "", acts[name]["median"]))
    rows += [(workers, f"decision, {n}", f"{of['median_ms']} ms", "") for n, of in made.items()]
    return rows


def main() -> None:
    parser = harness.parser(__doc__, "2 workers, half a second, 5 switches of short steps")
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 16, 30], help="even")
    parser.add_argument("--seconds", type=float, default=4.0, help="of ledger calls")
    parser.add_argument("--switches", type=int, default=12)
    parser.add_argument("--role", choices=["master"])
    parser.add_argument("--job", type=Path)
    options = parser.parse_args()
    if options.role == "master":
        asyncio.run(run_master(JobDir(options.job), options.workers[0]))
        return
    step_s = STEP_S
    if options.quick:
        options.workers, options.seconds, options.switches, step_s = [2], 0.5, 5, 0.1
    found = {
        workers: measure(workers, options.seconds, options.switches, step_s)
        for workers in options.workers
    }
    harness.table(
        ("workers", "what", "master's processor", "until answered or done, ms"),
        list(itertools.chain.from_iterable(rows_of(*one) for one in found.items())),
    )
    for workers, of in found.items():
        flags = " ".join(f"--{k.replace('_', '-')} {v:g}" for k, v in of["simulator"].items())
        print(f"{workers} workers: paceline sim stragglers fig18 {flags}")
    print(f"the paper: {PAPER}")
    harness.report("management_cost", {"sizes": found, "paper": PAPER}, file=options.json)


if __name__ == "__main__":
    harness.run(main)
