"""The verbs that tell a running job's master to do something, and the one that adds a machine."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.base.errors import ConfigError, PacelineError
from paceline.base.jobdir import JobDir
from paceline.terminal.options import Job, console, whole_number

if TYPE_CHECKING:
    from paceline.jobs.running import RunningJob
    from paceline.wire.client import Call, JobStatus, ResizeNodes
MOST_CORES = 4096
"""Most cores that an order may give a node."""

Worker = Annotated[
    int | None, typer.Option(metavar="N", help="Which worker.", parser=whole_number("--worker"))
]
Server = Annotated[
    int | None, typer.Option(metavar="N", help="Which server.", parser=whole_number("--server"))
]


Cpu = Annotated[
    str | None, typer.Option(metavar="CORES", help="Of each, while it trains; several: in turn.")
]
Memory = Annotated[str | None, typer.Option(metavar="SIZE", help="Of each, e.g. 8GiB.")]


def scale(
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Workers from now on.", parser=whole_number("--workers", least=1)
        ),
    ] = None,
    servers: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Servers from now on.", parser=whole_number("--servers", least=1)
        ),
    ] = None,
    worker_cpu: Cpu = None,
    worker_memory: Memory = None,
    server_cpu: Cpu = None,
    server_memory: Memory = None,
    job: Job = None,
) -> None:
    """Change how many workers or servers a running job has.

    Or change what its nodes may use.
    With backend ray a node of another size gets another place, one node at a time.
    """
    from paceline.jobs.running import find_running
    from paceline.jobs.wording import counted
    from paceline.wire.client import GetStatus, JobStatus, Scale

    sizes = [
        *_sizes("worker", worker_cpu, worker_memory),
        *_sizes("server", server_cpu, server_memory),
    ]
    counts = {"worker": workers, "server": servers}
    if not sizes and not any(counts.values()):
        raise ConfigError(
            "scale: expected --workers N, --servers N, or one of --worker-cpu, --worker-memory, "
            "--server-cpu and --server-memory; write e.g. `paceline scale JOB --workers 4`"
        )
    found = find_running(job)
    before = found.ask(GetStatus())
    for wanted in sizes:
        _order(found, wanted)
        said = f"each {wanted.role} gets {_words(wanted)}; `paceline status` has it"
        print(f"job {found.job_id}: {said}")
    if not any(counts.values()):
        return
    _order(found, Scale(workers=workers, servers=servers))
    told = [counted(count, role) for role, count in counts.items() if count is not None]
    print(f"job {found.job_id}: {' and '.join(told)} from now on")
    assert isinstance(before, JobStatus)
    for role, count in counts.items():
        if count is not None and (short := without_room(before, count, role)):
            why = f" ({before.lacks[role]})" if role in before.lacks else ""
            free, more = short
            print(f"there is room for {free} of {more} more now{why}: the rest wait for a place")


def _sizes(role: str, cpu: str | None, memory: str | None) -> "list[ResizeNodes]":
    """Read what the nodes of a role may use; nothing was said: none."""
    from paceline.jobs.spec_values import parse_cores, parse_size_bytes
    from paceline.wire.client import ResizeNodes

    if cpu is None and memory is None:
        return []
    cores = parse_cores(cpu) if cpu is not None else None
    if cpu is not None and (cores is None or not all(0 < each <= MOST_CORES for each in cores)):
        raise ConfigError(
            f"--{role}-cpu: got {cpu!r}, expected cores above 0, for several nodes with commas; "
            f"write e.g. --{role}-cpu 0.5"
        )
    num_bytes = parse_size_bytes(memory) if memory is not None else None
    if memory is not None and not num_bytes:
        raise ConfigError(
            f"--{role}-memory: got {memory!r}, expected a size; write e.g. --{role}-memory 8GiB"
        )
    return [ResizeNodes(role=role, cpu=cores, memory_bytes=num_bytes)]


def _words(wanted: "ResizeNodes") -> str:
    from paceline.jobs.wording import size

    cores = ", ".join(f"{each:g}" for each in wanted.cpu or ())
    parts = [f"{cores} cores"] if cores else []
    parts += [size(wanted.memory_bytes)] if wanted.memory_bytes else []
    return " and ".join(parts)


def without_room(status: "JobStatus", wanted: int, role: str = "worker") -> tuple[int, int] | None:
    """Places that are free, and the larger number of nodes that need one; None: enough."""
    more = wanted - sum(node.role == role for node in status.nodes)
    room = status.room.get(role)
    return (room, more) if room is not None and room < more else None


def kill(
    job: Job = None,
    worker: Worker = None,
    server: Server = None,
    master: Annotated[
        bool, typer.Option("--master", help="The master; training goes on without it.")
    ] = False,
) -> None:
    """Kill a node's process, or the master, as a crash would.

    It is started again.
    """
    from paceline.jobs.running import NearJob, find_running
    from paceline.wire.client import Kill

    if [worker, server, master or None].count(None) != 2:
        raise ConfigError(
            "kill: expected one of --worker N, --server N and --master; write e.g. `paceline kill "
            f"{job or 'JOB'} --worker 0`"
        )
    node = "the master" if master else _node("kill", worker, server)
    found = find_running(job)
    if not master:
        _order(found, Kill(node=node))
    elif isinstance(found, NearJob):
        _kill_master(found.dir)
    else:
        raise ConfigError("kill --master: got --job; run it on the machine of the master")
    print(f"job {found.job_id}: {node} is killed and will be started again")


def _kill_master(job: JobDir) -> None:
    """End the master of a job with SIGKILL, if it is a process of this machine.

    Raises:
        ConfigError: the job has ended, or its master is elsewhere.
        TransientError: the master does not answer.
    """
    from paceline.base.disk import append_if_possible
    from paceline.base.node_files import MASTER
    from paceline.base.processes import find_job_process, kill_quietly
    from paceline.jobs.launch import ask_running, check_runs
    from paceline.wire.client import GetStatus, JobStatus
    from paceline.wire.events.nodes import KilledEvent

    status = ask_running(job, GetStatus())
    assert isinstance(status, JobStatus)
    found = find_job_process(status.master_pid, job.path)
    check_runs(job, meanwhile=True)  # the master of a job that has ended leaves, and stays away
    if found is None:
        raise ConfigError(
            f"job {job.job_id}: its master, process {status.master_pid}, is not on this machine, "
            "or has just died; run the command where the master is, or try again"
        )
    # Before: the master cannot tell it any more, and nobody else knows that it was an order.
    append_if_possible(job.events, KilledEvent(t=time.time(), node=MASTER).text())
    kill_quietly(status.master_pid)


def replace(job: Job = None, worker: Worker = None, server: Server = None) -> None:
    """Replace a node's process by a fresh one while training goes on."""
    from paceline.jobs.running import find_running
    from paceline.wire.client import Replace

    node, found = _node("replace", worker, server), find_running(job)
    _order(found, Replace(node=node))
    print(f"job {found.job_id}: {node} is being replaced")


def stop(
    job: Job = None,
    now: Annotated[bool, typer.Option("--now", help="At once, without a last cut.")] = False,
) -> None:
    """End a job: the workers finish their step, then one more cut."""
    from paceline.cli import run as running
    from paceline.jobs.outcome import read_outcome
    from paceline.jobs.running import NearJob, find_running
    from paceline.wire.client import StopJob

    found = find_running(job)
    if not isinstance(found, NearJob):
        from paceline.cli.far import await_far_end

        _order(found, StopJob(now=now))
        await_far_end(found, console())
        return
    has_ended = read_outcome(found.dir.outcome) is not None
    try:
        _order(found, StopJob(now=now))
    except PacelineError:
        if has_ended or read_outcome(found.dir.outcome) is None:
            raise
        # It has ended meanwhile, which is what was asked for.
    running.await_end(found.dir, console())


def agent(
    join: Annotated[
        Path,
        typer.Option(
            metavar="TICKET", help="Copy of the job's file `ticket`; -: the standard input."
        ),
    ],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the master is reached from here. Default: the ticket's.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Workers to run here. Default: as many as the job's machines have, else 1.",
            show_default=False,
            parser=whole_number("--workers", 1),
        ),
    ] = None,
) -> None:
    """Add this machine to a running job, with a worker or more.

    They stay until the job ends, or until Ctrl-C.
    """
    from paceline.cli.join import join_job

    join_job(join, at, workers)


def _node(verb: str, worker: int | None, server: int | None) -> str:
    if (worker is None) == (server is None):
        raise ConfigError(
            f"{verb}: expected one of --worker N and --server N; write e.g. `paceline {verb} JOB "
            "--worker 0`"
        )
    return f"server-{server}" if worker is None else f"worker-{worker}"


def _order(job: "RunningJob", call: "Call") -> None:
    """Have the master of a job do something.

    Raises:
        ConfigError: the job has ended, or the master refuses.
        TransientError: the master does not answer.
    """
    from paceline.wire.client import Done

    reply = job.ask(call)
    if isinstance(reply, Done) and reply.error:
        raise ConfigError(f"job {job.job_id}: {reply.error}")
