"""What `paceline status JOB` takes of a processor, as a command, by the number of nodes.

    python benchmarks/status_command.py [--quick] [--sizes 2 1000] [--rounds 9] [--json FILE]

A listener answers as a master does, of a job of so many nodes; the command is a process of its own,
over the unix socket and, with `--job TICKET`, over TLS. ``cpu_s``: seconds of a processor, user and
system, from the start of the process to its end: the least of the rounds, since other work on the
machine makes it longer. ``empty_s``: `paceline --version`. Prints a table, then JSON.
"""

import asyncio
import os
import resource
import subprocess
import sys
import time
from typing import Any

from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.base.numbering import EpochNo, Inc, StepNo
from paceline.base.processes import try_lock
from paceline.jobs.authority import make_authority
from paceline.jobs.tickets import write_ticket
from paceline.master.job_files import JobFiles
from paceline.wire.client import (
    Call,
    Done,
    FileCall,
    GetSpec,
    GetStatus,
    JobInfo,
    JobStatus,
    NodeStatus,
    Reply,
)
from paceline.wire.control import ControlServer
from paceline.wire.spec import JobSpec, save

HOST = "127.0.0.1"
FLOOR_S = 0.5
"""Seconds of a processor at 1,000 nodes."""


def status_of(job: JobDir, size: int) -> JobStatus:
    """Return the status of a job that trains on so many nodes."""
    nodes = tuple(
        NodeStatus(
            node=f"worker-{number}",
            role="worker",
            state="running",
            inc=Inc(number + 1),
            pid=1_000 + number,
            agent_pid=100_000 + number,
            step=900,
            samples=64_000 + number,
            bpt_s=0.1 + number * 1e-5,
            compute_s=0.06,
            message_s=0.02,
            data_s=0.005,
            rss_bytes=1 << 30,
            cpu_s=90.0,
        )
        for number in range(size)
    )
    return JobStatus(
        job_id=job.job_id,
        state="training",
        master_pid=os.getpid(),
        epoch_no=EpochNo(1),
        step=StepNo(900),
        committed=64_000 * size,
        total=100_000 * size,
        samples_per_s=640.0 * size,
        eta_s=60.0,
        started_s=time.time() - 100,
        valid_cuts=(),
        nodes=nodes,
        num_events=1,
    )


async def serve(job: JobDir, size: int) -> ControlServer:
    """Listen as the master of such a job does."""
    files, status, spec = JobFiles(job), status_of(job, size), JobSpec(script="/train.py")
    save(spec, job.spec)
    make_authority(job, HOST)

    async def nobody(_: object) -> None: ...

    async def answer(call: Call) -> Reply:
        match call:
            case GetStatus():
                return status
            case GetSpec():
                return JobInfo(job.job_id, spec)
            case _ if isinstance(call, FileCall):
                return await files.answer(call)
            case _:
                return Done(error="not here")

    server = ControlServer(job.secret(), nobody, answer)
    port = await server.start(
        path=job.master_socket, host=HOST, identity=job.master_identity.read_bytes()
    )
    job.master_address.write_text(f"{HOST}:{port}")
    write_ticket(job)
    return server


async def cpu_s(rounds: int, *words: str) -> float:
    """Return the least processor time of a command."""
    found = []
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "paceline", *words]
        one = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
        if await one.wait():
            raise harness.ArmError(" ".join(words), f"ended with {one.returncode}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return round(min(found), 3)


async def measure(sizes: list[int], rounds: int) -> list[dict[str, float]]:
    """Measure all sizes."""
    empty_s, rows = await cpu_s(rounds, "--version"), []
    for size in sizes:
        with harness.bare_job(f"status-{size}") as job:
            lock = try_lock(job.supervisor_lock)
            server = await serve(job, size)
            try:
                here = await cpu_s(rounds, "status", str(job.path))
                afar = await cpu_s(rounds, "--job", str(job.ticket), "status")
            finally:
                await server.stop()
                if lock is not None:
                    os.close(lock)
        rows.append({"nodes": size, "cpu_s": here, "by_ticket_s": afar, "empty_s": empty_s})
    return rows


def main() -> int:
    parser = harness.parser(__doc__, "2 and 20 nodes, one round")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 100, 1_000])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.rounds = [2, 20], 1
    rows: list[dict[str, Any]] = asyncio.run(measure(options.sizes, options.rounds))
    harness.table(list(rows[0]), [[f"{value:g}" for value in row.values()] for row in rows])
    harness.report("status_command", {"rows": rows}, file=options.json)
    met = all(row["cpu_s"] <= FLOOR_S for row in rows if row["nodes"] == 1_000)
    return 0 if met or options.quick else 1


if __name__ == "__main__":
    harness.run(main)
