"""The commands ``paceline history`` and ``paceline history show JOB``: jobs that have ended."""

import time
from typing import Annotated

import typer

from paceline.base.errors import ConfigError
from paceline.base.features import is_installed
from paceline.terminal.groups import LOOK
from paceline.terminal.options import AsJson, console, parse_settings, whole_number

LISTED = 20

group = typer.Typer(
    no_args_is_help=False,
    invoke_without_command=True,
    help="Show what later jobs learn from: jobs that have ended.",
)
Url = Annotated[
    str | None,
    typer.Option(
        "--history", metavar="URL", help="The database. Default: PACELINE_HISTORY, or the home's."
    ),
]


@group.callback()
def history(
    context: typer.Context,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            metavar="N",
            help="So many at most. Default: 20.",
            parser=whole_number("--limit", 1),
        ),
    ] = None,
    user: Annotated[str | None, typer.Option(help="Whose jobs.")] = None,
    script: Annotated[
        str | None, typer.Option(help="Of this script: its path, or its name.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="Of this strategy.")] = None,
    mode: Annotated[str | None, typer.Option(help="Of this mode.")] = None,
    end: Annotated[str | None, typer.Option(help="That ended so, e.g. finished, failed.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List jobs that have ended, the newest first, also removed ones."""
    if context.invoked_subcommand is not None:
        return
    from paceline.features.history.book import JobFilter
    from paceline.features.history.shown import open_history, show_past

    wanted = JobFilter(user=user, script=script, strategy=strategy, mode=mode, end=end)
    jobs = open_history(url).newest(limit or LISTED, wanted)
    show_past(jobs, console(), now_s=time.time(), as_json=as_json)


@group.command()
def show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its id, or the beginning of it.")],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show one job: what it was like, its sizes, what it came to."""
    from paceline.features.history.shown import open_history, show_past_job

    show_past_job(open_history(url).find(job), console(), as_json=as_json)


@group.command()
def suggest(
    target: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A script (.py) or a job spec (.yaml).")
    ],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Arguments of the script.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of a spec.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the size with which a job would begin, and why.

    The earlier jobs are named from which it comes.
    """
    if not is_installed("sizes"):
        raise ConfigError("history suggest needs the feature sizes, which is not installed")
    from paceline.features.history.beginning import first_size
    from paceline.features.history.shown import show_suggestion, usual_place
    from paceline.jobs.spec_file import resolve

    spec = resolve(target, parse_settings(settings or []), args or [])
    found = first_size(spec, usual_place(url, spec))
    show_suggestion(found, console(), as_json=as_json)


def add_to(app: typer.Typer) -> None:
    """Add the group ``history``."""
    app.add_typer(group, name="history", rich_help_panel=LOOK)
