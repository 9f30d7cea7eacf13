"""``paceline submit``: a job of Ray's own, which ``ray job list``, ``logs`` and ``stop`` know."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from paceline.backends.ray.submitting import send
from paceline.base.errors import ConfigError

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""What the command does not know is for ``paceline run``."""
SPEC_ENDINGS = (".py", ".yaml", ".yml")


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
    """Run a job on a Ray cluster: `paceline submit --address http://HEAD:8265 train.py`.

    Whatever follows is what you would write after `paceline run`.
    """
    words = list(context.args)
    if not words:
        raise ConfigError(
            "submit: got no script; write e.g. paceline submit --address http://HEAD:8265 train.py"
        )
    folder, words = _packed(words)
    if home is None:
        print(
            "note: the job is kept on the machine that Ray runs it on, and is lost with it; with "
            "--home FOLDER, on storage that all machines share, another `paceline submit ... "
            "--resume JOB` goes on",
            file=sys.stderr,
        )
    backend = [] if "--resume" in words else ["--backend", "ray"]
    name = send(address, shlex.join(["paceline", "run", *backend, *words]), folder, home)
    print(f"submitted as {name}; follow it with: ray job logs --address {address} -f {name}")


def _packed(words: list[str]) -> tuple[Path | None, list[str]]:
    """The folder that travels with the script, and the words with the script's name in it."""
    if "--resume" in words:
        return None, words
    place = next((n for n, word in enumerate(words) if word.endswith(SPEC_ENDINGS)), None)
    if place is None or not Path(words[place]).is_file():
        got = "no script" if place is None else f"{words[place]}, which is no file"
        raise ConfigError(f"submit: got {got}, expected a script (.py) or a job spec (.yaml)")
    script = Path(words[place]).absolute()
    return script.parent, [*words[:place], script.name, *words[place + 1 :]]
