"""Options: how a JOB, a setting, a time and --json are typed, and where commands print."""

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 160


def job_ids() -> list[str]:
    """Return the ids of all jobs, the newest first, for a shell that completes a JOB."""
    return [job.job_id for job in reversed(JobDir.all())]


Job = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="Id, its beginning, or a path. Default: the newest.",
        autocompletion=job_ids,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs; its names stay.")]


def parse_settings(settings: list[str]) -> dict[str, str]:
    """Read ``--set KEY=VALUE``.

    Raises:
        ConfigError: no ``=``.
    """
    pairs = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ConfigError(f"--set: got {text!r}, expected KEY=VALUE; write e.g. --set seed=1")
        pairs[key] = value
    return pairs


def whole_number(
    option: str, least: int = 0, most: int | None = None
) -> Callable[[str | int], int]:
    """Make the parser of an option that takes a number from ``least`` to ``most``.

    The parser raises ConfigError if it gets anything else.
    """

    def parse(given: str | int) -> int:
        text = str(given)  # a default comes as it is
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            span = f"from {least} on" if most is None else f"from {least} to {most}"
            raise ConfigError(
                f"{option}: got {text!r}, expected a number {span}; write e.g. {option} {least + 1}"
            )
        return int(text)

    return parse


def real_number(option: str, least: float) -> Callable[[str | float], float]:
    """Make the parser of an option that takes a number from ``least`` on, whole or not.

    The parser raises ConfigError if it gets anything else.
    """

    def parse(given: str | float) -> float:
        text = str(given)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            raise ConfigError(
                f"{option}: got {text!r}, expected a number from {least:g} on; "
                f"write e.g. {option} {10 * least:g}"
            )
        return value

    return parse


CutNumber = Annotated[
    int | None,
    typer.Option(
        "--cut",
        metavar="N",
        help="Which cut. Default: the newest.",
        show_default=False,
        parser=whole_number("--cut"),
    ),
]


def console() -> "Console":
    """Make the console that commands print to."""
    from rich.console import Console

    # What is piped into a file or a pager is not cut at 80 columns.
    is_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: it is closed
    return Console(width=None if is_terminal else PIPE_WIDTH)


def print_json(value: object) -> None:
    """Print a value for programs."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
