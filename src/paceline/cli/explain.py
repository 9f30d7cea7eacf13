"""``paceline explain``: what was decided, why, and what came of it.

To a person a straggler and a slow rank of a script are one thing, so ``paceline failslow`` of a job
that paceline steers tells the same story.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from paceline.base.errors import ConfigError
from paceline.base.features import call_parts
from paceline.base.jobdir import JobDir
from paceline.cli.failslow import is_script, tell_script
from paceline.cli.sizing import tell_sizing
from paceline.jobs.decisions import (
    Story,
    num_decisions,
    read_log,
    stories,
)
from paceline.jobs.wording import clock, counted
from paceline.policy.straggler.decision_log import AnyLine, Begun, CurePlanned
from paceline.wire import spec as specs
from paceline.wire.strategies import those

PARTS = ("seen", "rule", "expected", "became", "outcome")


def explain(job: JobDir, console: Console) -> None:
    """Tell what was slow in a job, what was decided about it, and why.

    Raises:
        ConfigError: nothing was written, or it cannot be read.
    """
    if _tell_features(job, console):
        if not job.decisions.exists():
            return
        console.print()
    if job.sizing.exists():
        tell_sizing(job, console)
        if not job.decisions.exists():
            return
        console.print()
    if is_script(job):
        tell_script(job, console)
        if not job.decisions.exists() or not (lines := read_log(job.decisions)):
            return
        console.print()
    else:
        lines = log_of(job)
    names = list(dict.fromkeys(line.solution for line in lines if isinstance(line, Begun)))
    decided, acted = num_decisions(lines)
    planned = any(isinstance(line, CurePlanned) for line in lines)
    name = ", then ".join(names) or ("the planner for scripts" if planned else "no solution")
    console.print(f"{job.job_id}: {name}", style="bold", highlight=False, markup=False)
    written = f"{counted(decided, 'decision')} written"
    if not planned:
        written += f", {acted or 'none'} with actions (of the others, one in a while is written)"
    console.print(f"  {written}", highlight=False)
    launched_s = job.launched_s()
    for story in stories(lines):
        _tell(story, launched_s, console)


def _tell_features(job: JobDir, console: Console) -> bool:
    """Tell what features decided; whether there was anything."""
    told: list[Sequence[str]] = []
    call_parts("explained", job, told.append)
    for head, *lines in told:
        console.print(head, style="bold", highlight=False, markup=False)
        for line in lines:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    return bool(told)


def log_of(job: JobDir) -> list[AnyLine]:
    """Read the log of a job.

    Raises:
        ConfigError: there is none, or it is of another version.
    """
    spec = None if job.decisions.exists() else specs.load(job.spec)
    if spec is not None and spec.traits.uneven_shares:
        raise ConfigError(
            f"job {job.job_id}: got strategy {spec.strategy}, {spec.traits.uneven_shares}, so that "
            f"nothing is decided; expected strategy {those(lambda row: not row.uneven_shares)}; "
            "start a job of such a strategy with a solution, e.g. --solution nd"
        )
    return read_log(job.decisions)


def _tell(story: Story, launched_s: float, console: Console) -> None:
    console.print()
    head = f"{clock(story.t - launched_s):>7}  decision {story.no}: {story.what}"
    console.print(head, style="bold", highlight=False, markup=False)
    rows = [(part, text) for part in PARTS if (text := getattr(story, part))]
    if not console.is_terminal:
        for part, text in rows:
            line = f"         {part:<10}{text}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2))
    for part, text in rows:
        grid.add_row(f"         {part}", text)
    console.print(grid, highlight=False, markup=False)
