"""Groups of commands, as ``paceline checkpoint``, to which features add commands of theirs."""

import typer


def group_of(app: typer.Typer, name: str) -> typer.Typer:
    """Return the group of this name; makes one if nobody else has."""
    for group in app.registered_groups:
        if group.name == name and group.typer_instance is not None:
            return group.typer_instance
    made = typer.Typer(no_args_is_help=True)
    app.add_typer(made, name=name)
    return made
