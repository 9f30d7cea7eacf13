"""The commands ``paceline sim`` and ``paceline bench``."""

import typer

from paceline.terminal.groups import EXPERTS
from paceline_experiments.verbs import bench, sim


def add_to(app: typer.Typer) -> None:
    """Add the commands ``sim ...`` and ``bench ...``."""
    app.add_typer(bench.app, name="bench", rich_help_panel=EXPERTS)
    app.add_typer(sim.app, name="sim", rich_help_panel=EXPERTS)
