"""The verb ``report``: flags in, text and a page out."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.terminal.groups import LOOK
from paceline.terminal.options import Job, console, print_json


def report(
    job: Job = None,
    html: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write the page there instead.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Only the numbers, for programs; their names stay.")
    ] = False,
) -> None:
    """Print what became of a job, and draw it as a page (report.html)."""
    from paceline.features.report.page import write_page, write_report
    from paceline.features.report.text import show
    from paceline.jobs.facts import read_facts

    found = JobDir.find(job)
    facts = read_facts(found)
    if as_json:
        from paceline.features.report.numbers import numbers

        if html is not None or open_:
            raise ConfigError("report: --json draws no page; leave out --html and --open")
        print_json(numbers(facts))
        return
    show(facts, console())
    if html is None:
        write_report(facts, found)
    else:
        try:
            write_page(facts, html)
        except OSError as error:
            raise ConfigError(
                f"report: got --html {html}, expected a file to write to ({error.strerror}); "
                "name another"
            ) from error
    page = html or found.report
    print(f"page: {page}")
    if open_:
        typer.launch(str(page))


def add_to(app: typer.Typer) -> None:
    """Add the command ``report``."""
    app.command(rich_help_panel=LOOK)(report)
