"""``paceline strategies``: the row of each strategy, for people and for programs."""

import sys

import msgspec
from rich.console import Console
from rich.table import Table

from paceline.wire.strategies import STRATEGIES, Traits

_SCALES = {"freely": "to any number", "evenly": "to a divisor of the batch", "never": "no"}


def show_strategies(console: Console, *, as_json: bool) -> None:
    """Print all strategies."""
    if as_json:
        text = msgspec.json.format(msgspec.json.encode(dict(STRATEGIES)), indent=2)
        sys.stdout.write(text.decode() + "\n")
        return
    table = Table(box=None, pad_edge=False)
    columns = ("strategy", "", "modes", "workers restart", "scales", "solutions", "deterministic")
    for title in columns:
        table.add_column(title)
    for name, row in STRATEGIES.items():
        table.add_row(name, *_cells(row))
    console.print(table)


def _cells(row: Traits) -> tuple[str, ...]:
    return (
        row.summary,
        ", ".join(row.modes) if row.trains else "-",
        "one by one" if row.lives == "singly" else "together",
        _SCALES[row.scales],
        "none" if row.uneven_shares else "all",
        f"in {', '.join(row.deterministic)}" if row.deterministic else "-",
    )
