"""The verb ``failslow``."""

import typer

from paceline.base.jobdir import JobDir
from paceline.terminal.groups import LOOK
from paceline.terminal.options import Job, console


def failslow(context: typer.Context, job: Job = None) -> None:
    """Tell whether a job is slow, since when, and what is to blame."""
    from paceline.features.failslow.telling import is_script, tell_script

    found = JobDir.find(job)
    if is_script(found):
        tell_script(found, console())
    else:  # to a person a straggler and a slow rank of a script are one thing
        explain = context.find_root().command.commands["explain"]  # type: ignore[attr-defined]
        context.invoke(explain.callback, job=job)


def add_to(app: typer.Typer) -> None:
    """Add the command ``failslow``."""
    app.command(rich_help_panel=LOOK)(failslow)
