"""``paceline submit``: a job of Ray's own, which ``ray job list``, ``logs`` and ``stop`` know."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from paceline.backends.ray.submitting import send
from paceline.base.errors import ConfigError
from paceline.jobs.kept_command import KEPT
from paceline.terminal.arguments import Own, find_own
from paceline.terminal.command_words import Options
from paceline.terminal.groups import EXPERTS
from paceline.terminal.run_command import options_of

MODULE = frozenset({"-m", "--module"})
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings that pass what the command does not know on to ``paceline run``."""


class SubmitCommand(TyperCommand):
    """Keeps the ``--`` before the script's own words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the flags of this command; the rest stays as it was written."""
        at = args.index("--") if "--" in args else len(args)
        found = super().parse_args(ctx, args[:at])
        ctx.args = [*ctx.args, *args[at:]]
        return found


def submit(
    context: typer.Context,
    address: Annotated[
        str, typer.Option("--address", help="Of Ray's dashboard, as http://HEAD:8265.")
    ],
    home: Annotated[
        str | None,
        typer.Option("--home", help="Where jobs are kept: a folder that all machines share."),
    ] = None,
) -> None:
    """Run a job on a Ray cluster.

    Write e.g. `paceline submit --address http://HEAD:8265 train.py`.
    Whatever follows is what you would write after `paceline run`.
    """
    words = list(context.args)
    if not words:
        raise ConfigError(
            "submit: got no script; write e.g. paceline submit --address http://HEAD:8265 train.py"
        )
    own = find_own(words, _options_of_run(context))
    resumes = "--resume" in own.options.values()
    if own.place is not None and not resumes and MODULE.isdisjoint(own.options.values()):
        folder, words = _packed(words, own.place, "")
    elif resumes:
        folder, words = _packed(words, *_setting(words, own))
    else:
        # Python finds modules from the folder that the command is called in.
        folder = None if own.place is None else Path.cwd()
    if folder is None and not resumes:
        raise ConfigError("submit: got no script, expected one (.py) or a job spec (.yaml)")
    if home is None:
        print(
            "note: the job is kept on the machine that Ray runs it on, and is lost with it; with "
            "--home FOLDER, on storage that all machines share, another `paceline submit ... "
            "--resume JOB` goes on",
            file=sys.stderr,
        )
    backend = [] if resumes else ["--backend", "ray"]
    command = shlex.join(["paceline", "run", *backend, *words])
    name = send(address, f"{KEPT}=1 {command}", folder, home)
    print(f"submitted as {name}; follow it with: ray job logs --address {address} -f {name}")


def _options_of_run(context: typer.Context) -> Options:
    group: Any = context.find_root().command
    return options_of(group.get_command(context, "run").get_params(context))


def _setting(words: list[str], own: Own) -> tuple[int | None, str]:
    """The place of ``--set script=PATH``, which a job at a URL is resumed with, and what it is."""
    for at, name in own.options.items():
        alone = words[at] == name
        at, prefix = (at + 1, "script=") if alone else (at, "--set=script=")
        if name == "--set" and at < len(words) and words[at].startswith(prefix):
            return at, prefix
    return None, ""


def _packed(words: list[str], place: int | None, prefix: str) -> tuple[Path | None, list[str]]:
    """The folder that travels with the script, and the words with the script's name in it."""
    if place is None:
        return None, words
    script = Path(words[place].removeprefix(prefix)).absolute()
    if not script.is_file():
        raise ConfigError(
            f"submit: got {words[place]}, which is no file, expected a script (.py) or a job spec "
            "(.yaml)"
        )
    return script.parent, [*words[:place], prefix + script.name, *words[place + 1 :]]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this backend to those of ``paceline``."""
    app.command(cls=SubmitCommand, context_settings=PASS_ON, rich_help_panel=EXPERTS)(submit)
