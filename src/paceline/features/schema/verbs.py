"""The verb ``schema``: the job spec as JSON Schema, on stdout."""

import typer

from paceline.terminal.groups import EXPERTS


def schema() -> None:
    """Print the JSON Schema of a job spec, for editors of YAML files."""
    from paceline.features.schema.making import json_schema
    from paceline.terminal.options import print_json

    print_json(json_schema())


def add_to(app: typer.Typer) -> None:
    """Add the command ``schema``."""
    app.command(rich_help_panel=EXPERTS)(schema)
