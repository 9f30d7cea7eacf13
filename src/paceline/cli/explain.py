"""``paceline explain`` and ``paceline replay``: what was decided, why, and what came of it.

To a person a straggler and a slow rank of a script are one thing, so ``paceline failslow`` of a job
that paceline steers tells the same story.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from paceline.base.errors import ConfigError
from paceline.base.features import call_parts
from paceline.base.jobdir import JobDir
from paceline.cli.failslow import is_script, tell_script
from paceline.cli.sizing import tell_sizing
from paceline.jobs.decisions import (
    Story,
    name_of,
    name_of_cure,
    num_decisions,
    read_log,
    stories,
)
from paceline.jobs.sharing import read_sharing
from paceline.jobs.wording import clock, counted
from paceline.policy.straggler.actions import AnyAction
from paceline.policy.straggler.decision_log import AnyLine, Begun, CurePlanned, Decided
from paceline.policy.straggler.registry import solution
from paceline.policy.straggler.replay import Replayed, plans, replay
from paceline.policy.straggler.solution import Solution
from paceline.wire import spec as specs
from paceline.wire.strategies import those

PARTS = ("seen", "rule", "expected", "became", "outcome")


def explain(job: JobDir, console: Console) -> None:
    """Tell what was slow in a job, what was decided about it, and why.

    Raises:
        ConfigError: nothing was written, or it cannot be read.
    """
    if job.sharing.exists():
        _tell_sharing(job, console)
    if _tell_features(job, console) or job.sharing.exists():
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
        lines = _log_of(job)
    names = list(dict.fromkeys(line.solution for line in lines if isinstance(line, Begun)))
    decided, acted = num_decisions(lines)
    planned = bool(plans(lines))
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


def _tell_sharing(job: JobDir, console: Console) -> None:
    """Tell what was decided about the device that a job shares."""
    lines, launched_s = read_sharing(job.sharing), job.launched_s()
    head = f"{job.job_id}: shares a device, {counted(len(lines), 'decision')}"
    console.print(head, style="bold", highlight=False, markup=False)
    for line in lines:
        told = f"{line.node}  {line.decision.allowed}: {line.decision.why}"
        text = f"{clock(line.t - launched_s):>7}  {told}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _log_of(job: JobDir) -> list[AnyLine]:
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


def run_replay(
    source: str | None, name: str | None, args: Mapping[str, str], console: Console
) -> bool:
    """Ask for the decisions of a log again, and show where the answers differ.

    Args:
        source: a log, or what `JobDir.find` takes.
        name: the solution to ask; None: the log's own.
        args: its parameters; of the log's own those that are to differ.
        console: to show it on.

    Returns:
        Whether the log's own solution answers as it did; True where it is not installed here and
        another one was asked.

    Raises:
        ConfigError: no such log or solution.
    """
    if source and source.endswith(".jsonl") and not Path(source).is_file():
        raise ConfigError(
            f"{source}: no such file; name a decisions.jsonl, a sizing.jsonl, or a JOB"
        )
    file = Path(source) if source and Path(source).is_file() else None
    lines = _log_of(JobDir.find(source)) if file is None else read_log(file)
    missing = _missing(lines)
    if missing is not None and name is None:
        raise missing
    if name is not None or args:
        asked = _all(lines, lambda begun: _asked(begun, name, args))
        _show(asked, name or "the same, with other parameters", console)
    if missing is not None:
        told = f"not compared with the log's own solution: {missing}"
        console.print(told, style="yellow", highlight=False, markup=False, soft_wrap=True)
        return True
    return _compare(lines, console)


def _missing(lines: Sequence[AnyLine]) -> ConfigError | None:
    """Why a solution of the log cannot be asked here; None: all can."""
    try:
        for line in lines:
            if isinstance(line, Begun):
                solution(line.solution, line.args)
    except ConfigError as refused:
        return refused
    return None


def _compare(lines: Sequence[AnyLine], console: Console) -> bool:
    """Tell where the log's own solution answers otherwise now; whether nowhere."""
    own = _all(lines, lambda begun: solution(begun.solution, begun.args))
    planned = plans(lines)
    differing = [_difference(one) for one in own if not one.same]
    differing += [_other_plan(line) for line in planned if line.acts_now != line.acts]
    for one in differing:
        console.print(one, highlight=False, markup=False, soft_wrap=True)
    verdict = f"differs in {len(differing)} of" if differing else "reproduces all"
    asked = [line.solution for line in lines if isinstance(line, Begun)]
    names = " and ".join(dict.fromkeys(asked + ["the planner"] * bool(planned)))
    number = counted(len(own) + len(planned), "decision")
    console.print(
        f"{names or 'nobody'}: {verdict} {number} of the log",
        style="red" if differing else "green",
        highlight=False,
    )
    return not differing


def _all(lines: Sequence[AnyLine], choose: Callable[[Begun], Solution]) -> list[Replayed]:
    try:
        return list(replay(lines, choose))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the solution fails on the log's observations: {type(error).__name__}: {error}"
        ) from error


def _asked(begun: Begun, name: str | None, args: Mapping[str, str]) -> Solution:
    if name is None or name == begun.solution:
        return solution(begun.solution, {**begun.args, **args})
    return solution(name, args)


def _show(asked: Sequence[Replayed], name: str, console: Console) -> None:
    """Decisions in which anyone acts, the log's beside those of now."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("decision", "step", "the log", name):
        table.add_column(column, overflow="fold")
    for one in asked:
        if one.actions or one.decided.actions:
            log, now = _names(one.decided.actions), _names(one.actions)
            step = f"{one.decided.observation.step:,}"
            table.add_row(str(one.decided.no), step, log, "the same" if one.same else now)
    if table.row_count:
        console.print(table, highlight=False, markup=False)
    acted = sum(bool(one.actions) for one in asked)
    console.print(f"{name}: acts in {acted} of {counted(len(asked), 'decision')}", highlight=False)


def _names(actions: Sequence[AnyAction]) -> str:
    return "\n".join(f"{name_of(action)} ({action.reason})" for action in actions) or "-"


def _other_plan(line: CurePlanned) -> str:
    then, now = (
        "\n".join(f"{name_of_cure(act)} ({act.reason})" for act in acts) or "-"
        for acts in (line.acts, line.acts_now)
    )
    return f"decision {line.no}: was {then}; is now {now}"


def _difference(one: Replayed) -> str:
    decided: Decided = one.decided
    then, now = _names(decided.actions), _names(one.actions)
    if then == now:
        then, now = repr(decided.actions), repr(one.actions)
    return f"decision {decided.no}: was {then}; is now {now}"
