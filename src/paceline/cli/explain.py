"""``paceline explain``: what was decided, why, and what came of it."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from paceline.base.errors import ConfigError
from paceline.base.features import parts_of, say_failed
from paceline.base.jobdir import JobDir
from paceline.jobs.replayed import why_no_log

Told = Sequence[str | tuple[str, str]]
"""A heading, and what follows: lines of text, or the names of parts with their texts."""


def explain(job: JobDir, console: Console) -> None:
    """Tell what was slow in a job, what was decided about it, and why.

    Raises:
        ConfigError: nothing was written, or it cannot be read.
    """
    explanations = Explanations(console)
    refused: list[ConfigError] = []
    for name, part in parts_of("explained", say_failed):
        try:
            part(job, explanations.tell)
        except ConfigError as error:
            refused.append(error)
        except Exception as error:  # noqa: BLE001 - a feature may be of any package
            say_failed(name, error)
    if refused:
        raise refused[0]
    if not explanations.begun:
        raise why_no_log(job)


class Explanations:
    """Explanations of a job, printed one after the other with an empty line between two."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.begun = False

    def space(self) -> None:
        """Begin an explanation."""
        if self.begun:
            self._console.print()
        self.begun = True

    def tell(self, told: Told) -> None:
        """Print an explanation."""
        self.space()
        head, *following = told
        self._console.print(head, style="bold", highlight=False, markup=False)
        parts = [one for one in following if not isinstance(one, str)]
        for line in following:
            if isinstance(line, str):
                self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        if parts:
            self._tell_parts(parts)

    def _tell_parts(self, parts: Sequence[tuple[str, str]]) -> None:
        """Print names and texts: in columns on a terminal, else each in one line."""
        if not self._console.is_terminal:
            for name, text in parts:
                line = f"         {name:<10}{text}"
                self._console.print(line, highlight=False, markup=False, soft_wrap=True)
            return
        grid = Table.grid(padding=(0, 2))
        for name, text in parts:
            grid.add_row(f"         {name}", text)
        self._console.print(grid, highlight=False, markup=False)
