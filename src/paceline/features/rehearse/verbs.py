"""The verbs ``rehearse`` and ``check``: flags in, a report and an exit code out."""

import signal
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from paceline.base.errors import ConfigError
from paceline.terminal.groups import EVERY_DAY, EXPERTS
from paceline.terminal.options import real_number, whole_number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from paceline.features.rehearse.findings import ActVerdict

STRATEGIES = ("allreduce", "ps", "fsdp")
NOT_EQUAL = 1
"""Exit code of a rehearsal that found a fault."""
INTERRUPTED = 130

Script = Annotated[Path, typer.Argument(metavar="SCRIPT", help="A script (.py).")]
Args = Annotated[
    list[str] | None, typer.Argument(metavar="-- ARGS", help="Arguments of the script.")
]
Page = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write the report as a page, too.")
]
ForPrograms = Annotated[bool, typer.Option("--json", help="For programs; its names stay.")]


def rehearse(
    script: Script,
    args: Args = None,
    *,
    strategy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"{', '.join(STRATEGIES)}; again for more of them."),
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", help="Of each job.", parser=whole_number("--workers", 2, 16))
    ] = 2,
    batches: Annotated[
        int,
        typer.Option(
            metavar="N", help="Of each epoch, at most.", parser=whole_number("--batches", 2)
        ),
    ] = 8,
    epochs: Annotated[
        int, typer.Option(metavar="N", help="At most.", parser=whole_number("--epochs", 1))
    ] = 2,
    minutes: Annotated[
        float,
        typer.Option(
            metavar="X", help="When all must be over.", parser=real_number("--minutes", 0.1)
        ),
    ] = 5.0,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Run jobs so, and compare exactly.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the jobs' spec."),
    ] = None,
    html: Page = None,
    as_json: ForPrograms = False,
) -> None:
    """Disturb short jobs of a script; say what comes out otherwise.

    They run on a copy of its folder.
    """
    from paceline.features.rehearse.rehearsal import RehearsalRequest, Rehearsing
    from paceline.features.rehearse.report import conditions, details, line_of, page_of, verdict_of

    strategies = _known(strategy or ["allreduce"])
    _check_page(html)
    asked = RehearsalRequest(
        script=script,
        args=tuple(args or ()),
        strategies=strategies,
        workers=workers,
        batches=batches,
        epochs=epochs,
        minutes=minutes,
        deterministic=deterministic,
        settings=tuple(settings or ()),
    )
    out = _console(as_json)

    def tell(verdict: "ActVerdict") -> None:
        for line in (line_of(verdict), *details(verdict)):
            _tell(out, line)

    with _Progress(out) as progress:
        try:
            found = Rehearsing(asked, progress.begin, tell, progress.tick).run()
        except KeyboardInterrupt:
            _tell(out, "interrupted; nothing of the rehearsal is left")
            raise typer.Exit(INTERRUPTED) from None
    for line in conditions(found):
        _tell(out, line)
    _tell(out, verdict_of(found))
    if as_json:
        print(msgspec.json.encode({"equal": found.passes, **msgspec.to_builtins(found)}).decode())
    if html is not None:
        html.write_text(page_of(found))
    raise typer.Exit(0 if found.passes else NOT_EQUAL)


def check(
    script: Script,
    args: Args = None,
    *,
    strategy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="It must take the script; again for more of them."),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(metavar="X", help="When it must be over.", parser=real_number("--seconds", 1)),
    ] = 60.0,
    html: Page = None,
    as_json: ForPrograms = False,
) -> None:
    """Run one batch of a script; say what each strategy would refuse.

    No service is started. The exit code is 0 if the script runs, and each named strategy (without
    any: one of them) takes it.
    """
    from paceline.features.rehearse.checking import check_script
    from paceline.features.rehearse.report import check_lines, page_of_check

    needed = _known(strategy or [])
    _check_page(html)
    out = _console(as_json)
    with _Progress(out) as progress:
        progress.begin("one batch", "check")
        try:
            found = check_script(script, tuple(args or ()), seconds, progress.tick)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    for line in check_lines(found):
        _tell(out, line)
    passes = found.passes(needed)
    if as_json:
        print(msgspec.json.encode({"passes": passes, **msgspec.to_builtins(found)}).decode())
    if html is not None:
        html.write_text(page_of_check(found))
    raise typer.Exit(0 if passes else NOT_EQUAL)


def _known(strategies: list[str]) -> tuple[str, ...]:
    """Raises ConfigError: one of them is no strategy that can be rehearsed."""
    for one in strategies:
        if one not in STRATEGIES:
            raise ConfigError(f"--strategy: got {one!r}, expected one of {', '.join(STRATEGIES)}")
    return tuple(strategies)


def _check_page(html: Path | None) -> None:
    """Raises ConfigError: the page could not be written."""
    if html is not None and not html.parent.is_dir():
        raise ConfigError(f"--html: got {html}, expected a file in a folder that is there")
    if html is not None:
        with suppress(OSError):
            html.touch()
            return
        raise ConfigError(f"--html: got {html}, expected a file that can be written")


def _console(as_json: bool) -> "Console":
    """Return the console where people read: not where programs do."""
    from rich.console import Console

    file = sys.stderr if as_json else sys.stdout
    return Console(file=file, width=None if file.isatty() else 160)


def _tell(console: "Console", text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


class _Progress:
    """Says which act runs, and for how long, on a terminal."""

    def __init__(self, console: "Console") -> None:
        self._console, self._what, self._since_s = console, "", monotonic()
        self._status: Status | None = None

    def __enter__(self) -> "_Progress":
        signal.signal(signal.SIGTERM, _interrupt)  # as a CI ends what takes too long
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, act: str, strategy: str) -> None:
        """An act begins."""
        self._what = act if act == strategy else f"{strategy}, {act}"
        self._since_s = monotonic()

    def tick(self) -> None:
        """Time passes."""
        if self._status is not None:
            self._status.update(f"{self._what}: {monotonic() - self._since_s:.0f} s")


def add_to(app: typer.Typer) -> None:
    """Add the commands ``rehearse`` and ``check``."""
    app.command(rich_help_panel=EXPERTS)(rehearse)
    app.command(rich_help_panel=EVERY_DAY)(check)
