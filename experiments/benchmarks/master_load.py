"""What a thousand agents cost the master: its cpu time over wall time.

    python benchmarks/master_load.py [--quick] [--agents 1000] [--seconds 15]

The production `Master` in a process of its own; another process plays the agents, each with its own
gRPC stream, a running training process and one full report per second (the heartbeat's facts, from
which the master makes metrics, speeds and status once per second). Prints JSON.
"""

import asyncio
import os
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

from dispatch import NoBackend
from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.master.service import Master
from paceline.wire.client import GetStatus, JobStatus
from paceline.wire.control import ControlClient
from paceline.wire.messages.agent import AgentHello, FromProcess, Heartbeat, NodeFacts, StartProcess
from paceline.wire.messages.node import ProcessUp
from paceline.wire.spec import JobSpec, NodeSpec

REPORT_S = 1.0
START_S, CONNECT_S = 60.0, 0.1
"""Seconds for a master to start, and for an agent to connect."""
CONNECTING = 50
"""Agents that connect at the same time."""


async def run_master(job: JobDir, agents: int) -> None:
    spec = JobSpec(script="/bench", mode="asp", workers=NodeSpec(count=agents - 1))
    master = Master(job, spec, NoBackend())
    await master.run()


async def run_agents(
    job: JobDir, count: int, seconds: float, master: harness.Child
) -> dict[str, Any]:
    """Play them; the figures.

    Raises:
        ArmError: the master ended, or did not start in time.
    """
    what = "its master does not start"
    if not harness.until(lambda: master.has_ended or job.master_socket.exists(), START_S):
        raise harness.failure(master.arm, what, [master.log])
    master.check()
    gate = asyncio.Semaphore(CONNECTING)
    connected = asyncio.Event()
    state = {"up": 0, "sent": 0, "lost": 0}
    names = ["server-0", *(f"worker-{i}" for i in range(count - 1))]
    tasks = [
        asyncio.create_task(play_agent(job, name, gate, state, connected, count)) for name in names
    ]
    try:
        await asyncio.wait_for(connected.wait(), START_S + CONNECT_S * count)
    except TimeoutError:
        master.check()
        told = f"{state['up']} of {count} agents are connected"
        raise harness.failure(master.arm, told, [master.log]) from None
    await asyncio.sleep(min(2.0, seconds))
    cpu_s, own_s, sent, start_s = (
        harness.cpu_s(master.pid),
        time.process_time(),
        state["sent"],
        time.time(),
    )
    await asyncio.sleep(seconds)
    wall_s = time.time() - start_s
    client = ControlClient(job.control_address(), job.secret())
    asked_s = time.perf_counter()
    status = await client.call(GetStatus(), timeout_s=10.0)
    status_ms = 1e3 * (time.perf_counter() - asked_s)
    assert isinstance(status, JobStatus)
    figures = {
        "agents": count,
        "reports_per_s": round((state["sent"] - sent) / wall_s, 1),
        "wall_s": round(wall_s, 2),
        "master_cpu_per_wall": round((harness.cpu_s(master.pid) - cpu_s) / wall_s, 3),
        "generator_cpu_per_wall": round((time.process_time() - own_s) / wall_s, 3),
        "status_ms": round(status_ms, 1),
        "nodes_running": sum(node.state == "running" for node in status.nodes),
        "streams_lost": state["lost"],
        "master_rss_mb": _rss_mb(master.pid),
    }
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return figures


async def play_agent(
    job: JobDir,
    name: str,
    gate: asyncio.Semaphore,
    state: dict[str, int],
    connected: asyncio.Event,
    count: int,
) -> None:
    async with gate:
        address = job.control_address()
        stream = await ControlClient(address, job.secret()).connect_agent(timeout_s=30.0)
        stream.send_nowait(AgentHello(node=name, agent="a", agent_pid=os.getpid(), host="bench"))
        inc = 0
        async for message in stream:
            if isinstance(message, StartProcess):
                inc = message.inc
                break
        role = name.partition("-")[0]
        up = ProcessUp(node=name, inc=inc, pid=1, role=role, address="ipc://none")
        stream.send_nowait(FromProcess(node=name, body=up))
    state["up"] += 1
    if state["up"] == count:
        connected.set()
    step = 0
    # Spread over the second, as independent machines are.
    await asyncio.sleep(hash(name) % 1000 / 1000 * REPORT_S)
    while stream.num_queued < 10:
        step += 10
        facts = NodeFacts(
            inc=inc,
            step=step,
            samples=step * 512,
            steps=10,
            step_samples=512.0,
            compute_s=random.gauss(0.08, 0.004),
            server_s=0.01,
            message_s=0.005,
            bpt_s=0.1,
            cpu_s=step / 10,
            rss_bytes=512 << 20,
        )
        stream.send_nowait(Heartbeat(node=name, facts=facts))
        state["sent"] += 1
        await asyncio.sleep(REPORT_S)
    state["lost"] += 1


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 1e6, 1)


def main() -> None:
    parser = harness.parser(__doc__, "20 agents for 2 s")
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--role")
    parser.add_argument("--job", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.agents, options.seconds = 20, 2.0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 16_384)), hard))
    if options.role == "master":
        asyncio.run(run_master(JobDir(options.job), options.agents))
        return
    with harness.bare_job("load") as job:
        arguments = [sys.executable, __file__, "--role", "master", "--job", str(job.path)]
        command = [*arguments, "--agents", str(options.agents)]
        master = harness.Child(f"{options.agents} agents", command, job.logs / "master.log")
        try:
            figures = asyncio.run(run_agents(job, options.agents, options.seconds, master))
            master.check()
        finally:
            master.kill()
    if figures["nodes_running"] != options.agents or figures["streams_lost"]:
        raise harness.failure(master.arm, f"not all agents stayed: {figures}")
    harness.report("master_load", figures, file=options.json)


if __name__ == "__main__":
    harness.run(main)
