"""``paceline features``: what is installed beside the core."""

from rich.console import Console
from rich.table import Table

from paceline.base.features import installed


def features() -> None:
    """List the features that are installed, and what each does."""
    table = Table(box=None, pad_edge=False)
    for title in ("feature", "package", "what it does"):
        table.add_column(title)
    for one in installed():
        about = one.feature.about if one.feature is not None else f"cannot be loaded: {one.fault}"
        table.add_row(one.name, one.package, about)
    Console().print(table)
