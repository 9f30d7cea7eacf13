"""The verbs that look at jobs, and remove them: ``status`` to ``prune``."""

import time
from typing import Annotated

import typer

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.terminal.options import AsJson, Job, console, job_ids, whole_number


def status(
    job: Job = None,
    observation: Annotated[
        bool, typer.Option("--observation", help="JSON: what a solution sees of it now.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show all jobs, the newest first, or one in detail."""
    from paceline.cli import show
    from paceline.jobs.from_afar import TICKET
    from paceline.jobs.listing import JobSelection
    from paceline.jobs.running import NearJob, find_running

    if observation:
        show.show_observation(find_running(job))
    elif TICKET.get() is not None:
        from paceline.cli.far import show_far_job

        found = find_running(job)
        assert not isinstance(found, NearJob)
        show_far_job(found, console(), as_json=as_json)
    elif job is None:
        show.show_jobs(console(), JobSelection(), as_json=as_json)
    elif as_json:
        show.show_job_json(JobDir.find(job))
    else:
        show.show_job(JobDir.find(job), console())


def ps(
    state: Annotated[
        str | None,
        typer.Option(metavar="STATE", help="Only those; running: whatever has not ended."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those whose name begins so.")
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last", "-n", metavar="N", help="The newest N.", parser=whole_number("--last")
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first: all, or by state and name."""
    from paceline.cli import show
    from paceline.jobs.listing import JobSelection

    show.show_jobs(console(), JobSelection(state=state, name=name, last=last), as_json=as_json)


def logs(
    job: Job = None,
    node: Annotated[
        str | None, typer.Option(help="worker-1, server-0, master, …; default: all.")
    ] = None,
    worker: Annotated[
        int | None, typer.Option(metavar="N", help="That one.", parser=whole_number("--worker"))
    ] = None,
    server: Annotated[
        int | None, typer.Option(metavar="N", help="That one.", parser=whole_number("--server"))
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail",
            "-n",
            metavar="N",
            help="The last N lines of each log.",
            parser=whole_number("--tail"),
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="T", help="What was printed in the last 10m, or since 2026-11-25T15:27."
        ),
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", "-t", help="When each line was printed.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object for each line: node, line, time_s.")
    ] = False,
) -> None:
    """Print what a job's processes have printed."""
    from paceline.cli.logs import LogFilter, parse_since, show_logs
    from paceline.jobs.log_files import FarLogs, NearLogs
    from paceline.jobs.running import NearJob, find_running

    numbered = [("worker", worker), ("server", server)]
    named = [node, *(f"{role}-{n}" for role, n in numbered if n is not None)]
    nodes = [each for each in named if each is not None]
    if len(nodes) > 1:
        raise ConfigError("logs: expected one of --node, --worker and --server")
    wanted = LogFilter(
        node=nodes[0] if nodes else None,
        tail=tail,
        since_s=None if since is None else parse_since(since, time.time()),
        as_json=as_json,
        timestamps=timestamps,
        follow=follow,
    )
    found = find_running(job)
    show_logs(NearLogs(found.dir) if isinstance(found, NearJob) else FarLogs(found), wanted)


def rm(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", autocompletion=job_ids)],
) -> None:
    """Remove jobs that are over: logs, cuts, reports.

    They cannot be resumed.
    """
    from paceline.cli import removal

    found = {job.path: job for job in map(JobDir.find, jobs)}.values()
    removal.check_removable(found)
    for line in removal.remove_all([(job, "") for job in found], dry_run=False):
        print(line)


def prune(
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Over for so long, e.g. 7d or 12h.")
    ] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="Only what ended well: others can be resumed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go.")] = False,
) -> None:
    """Remove jobs that are over, by age and end.

    A job of which a process lives is never removed.
    """
    from paceline.cli import removal
    from paceline.jobs.listing import read_rows
    from paceline.jobs.spec_values import parse_ago_s

    older_than_s = None if older_than is None else parse_ago_s(older_than)
    if older_than is not None and older_than_s is None:
        raise ConfigError(f"--older-than: got {older_than!r}, expected a time; write e.g. 7d")
    if older_than is None and not finished:
        raise ConfigError(
            "prune: expected --older-than TIME, --finished, or both; write e.g. `paceline prune "
            "--older-than 7d --dry-run`"
        )
    wanted = removal.Filter(older_than_s=older_than_s, finished=finished)
    jobs = JobDir.all()
    rows = zip(jobs, read_rows(jobs), strict=True)
    going = removal.to_prune(rows, wanted, time.time())
    for line in removal.remove_all(going, dry_run=dry_run):
        print(line)


def strategies(as_json: AsJson = False) -> None:
    """Show what each strategy allows, and who holds the model."""
    from paceline.cli.strategies import show_strategies

    show_strategies(console(), as_json=as_json)
