"""The verbs about what is slow: what was found out, what was decided, and what came of it."""

from typing import Annotated

import typer

from paceline.base.jobdir import JobDir
from paceline.terminal.options import AsJson, Job, console, parse_settings


def why(job: Job = None, as_json: AsJson = False) -> None:
    """Say why a job is slow, waits, has its size, or ended."""
    from paceline.cli.why import show_why

    show_why(job, console(), as_json=as_json)


def explain(job: Job = None) -> None:
    """Tell what was slow, what was decided, why, and what came of it."""
    from paceline.cli.explain import explain as tell

    tell(JobDir.find(job), console())


def replay(
    log: Annotated[
        str | None,
        typer.Argument(metavar="LOG", help="A log of decisions, or a JOB."),
    ] = None,
    solution: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Who is to decide: a solution, or a resource policy. Default: the log's own.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the solution."),
    ] = None,
) -> None:
    """Make a job's decisions again, offline.

    Exit code 1: the job's own solution now decides otherwise.
    """
    from paceline.cli.replay import replay_logs

    same = replay_logs(log, solution, parse_settings(settings or []), console())
    raise typer.Exit(0 if same else 1)
