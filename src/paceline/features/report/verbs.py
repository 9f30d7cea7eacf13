"""The verbs ``report`` and ``ui``: flags in; text, a page, or a server of pages out."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.terminal.groups import EVERY_DAY, LOOK
from paceline.terminal.options import Job, console, print_json, whole_number


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
    from paceline.features.report.following import log_tails
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
        write_report(facts, found, log_tails(found))
    else:
        try:
            write_page(facts, html, log_tails(found))
        except OSError as error:
            raise ConfigError(
                f"report: got --html {html}, expected a file to write to ({error.strerror}); "
                "name another"
            ) from error
    page = html or found.report
    print(f"page: {page}")
    if open_:
        typer.launch(str(page))


def ui(
    job: Job = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Default: 8300, or the next free one.",
            parser=whole_number("--port"),
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Where it listens; elsewhere than here: in clear."),
    ] = "127.0.0.1",
    open_: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
) -> None:
    """Show jobs in a browser, also while they run."""
    from paceline.features.report.serving import UiServer, listen

    job_id = JobDir.find(job).job_id if job is not None else ""
    server = UiServer(listen(host, port))
    print(f"{server.address(job_id)}\nCtrl-C ends the page, and no job", flush=True)
    if open_:
        typer.launch(server.address(job_id))
    server.serve()


def add_to(app: typer.Typer) -> None:
    """Add the commands ``report`` and ``ui``."""
    app.command(rich_help_panel=LOOK)(report)
    app.command(rich_help_panel=EVERY_DAY)(ui)
