"""The command ``paceline``: flags in, calls out. What a command does is imported when it runs."""

import contextlib
import gc
import io
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from paceline.base import backends
from paceline.base.disk import describe, is_refusal
from paceline.base.errors import ConfigError, InternalError, PacelineError
from paceline.base.features import call_each
from paceline.base.optional import missing_line
from paceline.cli import (
    checkpoint,
    decision_verbs,
    features,
    job_verbs,
    order_verbs,
    run_verbs,
)
from paceline.cli.features import add_verbs
from paceline.cli.hints import hint_about
from paceline.jobs.from_afar import TICKET
from paceline.jobs.leftovers import clear_leftovers
from paceline.jobs.outcome import End, code_of
from paceline.terminal.groups import CHANGE, EVERY_DAY, EXPERTS, LOOK, by_panel
from paceline.terminal.plain_values import check_late
from paceline.terminal.run_command import RunCommand


class _Group(TyperGroup):
    """Prints errors of ours as messages, and lists commands by their panels."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return by_panel(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command; of a word that is none, say what it means here."""
        if args[0] not in self.commands and (hint := hint_about(args)):
            raise ConfigError(hint)
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            check_late(command, ctx)
        return name, command, rest

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what stands before the command."""
        check_late(self, ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                stream.reconfigure(errors="backslashreplace")  # a locale may lack a letter
        try:
            return super().invoke(ctx)
        except PacelineError as error:
            ours = " (a bug of paceline: please report it)" if _is_bug(error) else ""
            print(f"paceline: {error}{ours}", file=sys.stderr)
            raise typer.Exit(code_of(End.REFUSED)) from error
        except ModuleNotFoundError as error:
            line = missing_line("this command", error)
            if not line:
                raise
            print(f"paceline: {line}", file=sys.stderr)
            raise typer.Exit(code_of(End.REFUSED)) from error
        except OSError as error:
            if not (is_refusal(error) or isinstance(error, PermissionError)):
                raise
            print(f"paceline: {describe(error, error.filename or 'a file')}", file=sys.stderr)
            raise typer.Exit(code_of(End.REFUSED)) from error
        finally:
            # Afterwards: a command that removes a job must not find it locked by its cleaner.
            with contextlib.suppress(OSError):
                clear_leftovers()


def _is_bug(error: PacelineError) -> bool:
    return isinstance(error, InternalError)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Elastic training of PyTorch models, every sample accounted for.",
)
app.add_typer(checkpoint.app, name="checkpoint", rich_help_panel=LOOK)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"paceline {version('paceline')}")
        raise typer.Exit


FAR_VERBS = ("kill", "logs", "replace", "scale", "status", "stop")
"""Commands that need a job's master alone, and so work on any machine that reaches it."""


@app.callback()
def paceline(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="TICKET",
            help="A job of another machine, by its ticket: a file, -, or HOST:PORT with "
            "PACELINE_TICKET.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="HOST:PORT", help="With --job: where its master is reached from here."
        ),
    ] = None,
) -> None:
    """Elastic training of PyTorch models, every sample accounted for."""
    if job is None and at is not None:
        raise ConfigError("--at: expected it with --job TICKET")
    if job is None or context.resilient_parsing:
        TICKET.set(None)
        return
    verb = context.invoked_subcommand or ""
    if verb not in FAR_VERBS:
        raise ConfigError(
            f"{verb}: got --job, but it reads the job's files; run `paceline {verb}` on the "
            f"machine of its master. From here work: {', '.join(FAR_VERBS)}"
        )
    from paceline.jobs.far import ticket_of_option

    TICKET.set(ticket_of_option(job, at))


app.command(
    cls=RunCommand,
    context_settings=run_verbs.AS_TORCHRUN,
    epilog=run_verbs.exit_codes(),
    rich_help_panel=EVERY_DAY,
)(run_verbs.run)
VERBS: dict[str, tuple[Callable[..., None], ...]] = {
    EVERY_DAY: (
        job_verbs.status,
        decision_verbs.why,
        run_verbs.attach,
        job_verbs.logs,
        order_verbs.stop,
    ),
    LOOK: (job_verbs.ps, decision_verbs.explain, job_verbs.strategies, features.features),
    CHANGE: (
        order_verbs.scale,
        order_verbs.kill,
        order_verbs.replace,
        order_verbs.agent,
        job_verbs.rm,
        job_verbs.prune,
    ),
    EXPERTS: (decision_verbs.replay,),
}
"""Commands by the panel of ``paceline --help`` that lists them."""
for panel, verbs in VERBS.items():
    for verb in verbs:
        app.command(rich_help_panel=panel)(verb)
backends.call_verbs(partial(add_verbs, app))
call_each("verbs", partial(add_verbs, app))
gc.freeze()  # nothing that modules made is garbage: what comes next need not look for some there
