"""The verbs that tell a running job's master to do something, and the one that adds a machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.cli.shared_options import Job, console, whole_number

if TYPE_CHECKING:
    from paceline.wire.client import Call, JobStatus

Worker = Annotated[
    int | None, typer.Option(metavar="N", help="Which worker.", parser=whole_number("--worker"))
]
Server = Annotated[
    int | None, typer.Option(metavar="N", help="Which server.", parser=whole_number("--server"))
]


def scale(
    workers: Annotated[
        int,
        typer.Option(
            metavar="N", help="Workers from now on.", parser=whole_number("--workers", least=1)
        ),
    ],
    job: Job = None,
) -> None:
    """Change the number of workers of a running job."""
    from paceline.jobs.launch import ask_running
    from paceline.jobs.wording import counted
    from paceline.wire.client import GetStatus, JobStatus, Scale

    before = ask_running(JobDir.find(job), GetStatus())
    job_id = _order(job, Scale(workers=workers))
    print(f"job {job_id}: {counted(workers, 'worker')} from now on")
    if isinstance(before, JobStatus) and (short := without_room(before, workers)):
        print(f"there is room for {short[0]} of {short[1]} more now: the rest wait for a place")


def without_room(status: "JobStatus", workers: int) -> tuple[int, int] | None:
    """Places that are free, and the larger number of workers that need one; None: enough."""
    more = workers - sum(node.role == "worker" for node in status.nodes)
    room = status.room.get("worker")
    return (room, more) if room is not None and room < more else None


def kill(job: Job = None, worker: Worker = None, server: Server = None) -> None:
    """Kill a node's training process, as a crash would; it is started again."""
    from paceline.wire.client import Kill

    node = _node("kill", worker, server)
    job_id = _order(job, Kill(node=node))
    print(f"job {job_id}: {node} is killed and will be started again")


def replace(job: Job = None, worker: Worker = None, server: Server = None) -> None:
    """Have a fresh process take a node's place while training goes on."""
    from paceline.wire.client import Replace

    node = _node("replace", worker, server)
    job_id = _order(job, Replace(node=node))
    print(f"job {job_id}: {node} is being replaced")


def stop(
    job: Job = None,
    now: Annotated[bool, typer.Option("--now", help="At once, without a last cut.")] = False,
) -> None:
    """End a job: the workers finish their step, then one more cut."""
    from paceline.cli import run as running
    from paceline.wire.client import StopJob

    job_id = _order(job, StopJob(now=now))
    running.await_end(JobDir.find(job_id), console())


def agent(
    join: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the master listens.")],
    secret_file: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The job's secret. Default: that of the newest job."),
    ] = None,
) -> None:
    """Add this machine to a running job as one more worker, until the job ends or Ctrl-C."""
    from paceline.cli.join import join_job

    join_job(join, secret_file)


def _node(verb: str, worker: int | None, server: int | None) -> str:
    if (worker is None) == (server is None):
        raise ConfigError(f"{verb}: expected one of --worker N and --server N")
    return f"server-{server}" if worker is None else f"worker-{worker}"


def _order(name: str | None, call: "Call") -> str:
    """Ask the master of a job for something; the job's id.

    Raises:
        ConfigError: the job has ended, or the master refuses.
        TransientError: the master does not answer.
    """
    from paceline.jobs.launch import ask_running
    from paceline.wire.client import Done

    job = JobDir.find(name)
    reply = ask_running(job, call)
    if isinstance(reply, Done) and reply.error:
        raise ConfigError(f"job {job.job_id}: {reply.error}")
    return job.job_id
