"""Groups of commands, as ``paceline checkpoint``, and the panels in which ``--help`` lists all.

A command names its panel where it is added: ``app.command(rich_help_panel=LOOK)(report)``. One
that names none is listed under `EXPERTS`.
"""

from collections.abc import Mapping
from typing import Any

import typer

EVERY_DAY, LOOK, CHANGE, EXPERTS = "Every day", "Look", "Change", "Experts"
PANELS = (EVERY_DAY, LOOK, CHANGE, EXPERTS)
"""The panels of ``paceline --help``, in their order; one of another name comes after them."""


def by_panel(commands: Mapping[str, Any]) -> list[str]:
    """Return the names of commands in the order of their panels; one without a panel gets one."""
    for command in commands.values():
        command.rich_help_panel = command.rich_help_panel or EXPERTS
    rank = {panel: at for at, panel in enumerate(PANELS)}
    return sorted(commands, key=lambda name: rank.get(commands[name].rich_help_panel, len(rank)))


def group_of(app: typer.Typer, name: str) -> typer.Typer:
    """Return the group of this name; makes one if nobody else has."""
    for group in app.registered_groups:
        if group.name == name and group.typer_instance is not None:
            return group.typer_instance
    made = typer.Typer(no_args_is_help=True)
    app.add_typer(made, name=name)
    return made
