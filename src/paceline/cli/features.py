"""``paceline features``: what is installed beside the core."""

from collections.abc import Callable, Iterable

import typer
from rich.console import Console
from rich.table import Table
from typer.main import get_command_name
from typer.models import CommandInfo

from paceline.base import backends
from paceline.base.features import OWN, Feature, installed

PARTS = {
    "verbs": "commands",
    "master": "master",
    "agent": "agents",
    "process": "workers",
    "shown": "status",
    "explained": "explain",
    "reasons": "why",
    "lacks": "checks",
    "checked": "checks of the spec",
    "completed": "the spec",
    "replayed": "replay",
    "prepared": "start",
    "ended": "end",
    "sections": "report",
}
"""Field of a `Feature` -> what people call the place where that part is."""


def features() -> None:
    """List what is installed beside the core, and what switches it on."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for one in installed():
        if one.feature is None:
            table.add_row(one.name, f"cannot be loaded: {one.fault} (package {one.package})")
            continue
        on = one.feature.switch or ("its commands" if one.feature.verbs else "every job")
        table.add_row(one.name, one.feature.about)
        package = "" if one.package == OWN else f"; package {one.package}"
        detail = f"on with {on}; has {parts_of(one.feature) or 'no parts'}{package}"
        table.add_row("", detail, style="dim")
    for kind in backends.installed().values():
        table.add_row(f"backend {kind.name}", f"runs nodes as {kind.about}")
        detail = f"on with --backend {kind.name}"
        detail += f"; not installed here: {kind.lacks}" if kind.lacks else ""
        table.add_row("", detail, style="dim")
    Console(highlight=False).print(table)


def parts_of(feature: Feature) -> str:
    """Name the places where a feature has a part."""
    return ", ".join(place for field, place in PARTS.items() if getattr(feature, field))


def add_verbs(app: typer.Typer, _name: str, add: Callable[[typer.Typer], object]) -> None:
    """Add the commands of a feature or a backend to those of ``paceline``: all, or none.

    Args:
        app: of ``paceline``.
        _name: of it.
        add: takes a `typer.Typer`, and adds the commands to it.

    Raises:
        ValueError: ``paceline`` has a command of that name already.
    """
    before = [*app.registered_commands]
    try:
        add(app)
        if clash := _names(before) & _names(app.registered_commands[len(before) :]):
            raise ValueError(f"paceline has a command {min(clash)} already")
    except Exception:
        app.registered_commands = before
        raise


def _names(commands: Iterable[CommandInfo]) -> set[str]:
    return {
        one.name or get_command_name(one.callback.__name__)
        for one in commands
        if one.callback is not None
    }
