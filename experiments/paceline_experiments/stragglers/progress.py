"""Progress that is seen while experiments run: a line per run, and how many are left."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paceline_experiments.stragglers.results import Run


class ProgressLine:
    """Progress on stderr, so that the table can be piped."""

    def __init__(self, total: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("runs", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def ran(self, run: Run) -> None:
        """A run is over."""
        self._progress.advance(self._task)
        self._progress.console.print(
            f"{run.scenario + ', ' + run.mode:26} {run.method:16} seed {run.seed:<5} "
            f"{run.outcome.jct_s:9,.0f} s  "
            f"{run.outcome.jct_s / run.clairvoyant_s:5.2f} x clairvoyant  "
            f"[dim]in {run.took_s:.1f} s[/]",
            highlight=False,
            soft_wrap=True,
        )
