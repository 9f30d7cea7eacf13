"""``paceline replay``: decisions made again from a log, told where they differ.

One frame for all logs; what is a log's own is a `ToldLog`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic

import msgspec
from rich.console import Console
from rich.table import Table

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.cli.explain import log_of
from paceline.jobs.decisions import name_of, read_log
from paceline.jobs.sizing import read_sizing
from paceline.jobs.wording import counted
from paceline.policy.decisions.past import Again, Decider, Line, replay
from paceline.policy.plugins import Plugins
from paceline.policy.resources.plan import Hold
from paceline.policy.resources.registry import RESOURCES
from paceline.policy.resources.steering import SteeringLine
from paceline.policy.resources.steering_state import AnySteeringAct, ApplyPlan, JudgePlan, TakeBack
from paceline.policy.straggler.decision_log import AnyLine, Begun, CurePlanned, Decided, asked
from paceline.policy.straggler.registry import SOLUTIONS

THE_SAME = "the same, with other parameters"


class ToldLog(msgspec.Struct, Generic[Line], frozen=True, kw_only=True):
    """A log of decisions, and the words in which `paceline replay` tells of it."""

    policies: Plugins[Any]
    what: str
    """Word for a policy of this log."""
    unit: str
    """Word for a line of this log."""
    name: str
    """Name of the log for people."""
    by: tuple[Decider, ...]
    """The policies that were asked, in order."""
    log: tuple[tuple[Decider, Line], ...]
    own: tuple[Again[CurePlanned], ...] = ()
    """Lines that are paceline's own code, which no policy stands in for, made again."""
    columns: tuple[str, ...]
    cells: Callable[[Line], tuple[str, ...]]
    head: Callable[[Any], str]
    """Which line it is."""
    words: Callable[[Sequence[Any]], str]
    does: str
    """Verb for the policy in a line that counts decisions."""
    silent: tuple[type, ...] = ()
    """Acts that are not worth a row."""
    counts: type = object
    """Acts that count."""


def replay_logs(
    source: str | None, name: str | None, args: Mapping[str, str], console: Console
) -> bool:
    """Replay the log that is named, or those of a job.

    Args:
        source: a log, or what `JobDir.find` takes.
        name: who is to decide; None: the log's own. Of a job, its kind says about which log.
        args: parameters; of the log's own those that are to differ. Of a job and without a name,
            those of the solution.
        console: to show it on.

    Returns:
        Whether the logs' own solution and policy decide as they did; True where they are not
        installed here and others were asked.

    Raises:
        ConfigError: no such log, solution or policy, or one fails.
    """
    file = Path(source) if source else None
    if file is not None and file.is_file():
        if sizes := read_sizing(file):
            return _replay(_sizes(sizes), name, args, console)
        return _replay(_stragglers(read_log(file)), name, args, console)
    if file is not None and file.suffix == ".jsonl":
        raise ConfigError(
            f"{source}: no such file; name a decisions.jsonl, a sizing.jsonl, or a JOB"
        )
    job = JobDir.find(source)
    if not job.sizing.exists():
        return _replay(_stragglers(log_of(job)), name, args, console)
    for_sizes = name in RESOURCES.names() and name not in SOLUTIONS.names()
    of_sizes, of_rest = ((name, args), (None, {})) if for_sizes else ((None, {}), (name, args))
    same = _replay(_sizes(read_sizing(job.sizing)), *of_sizes, console)
    if job.decisions.exists():
        return _replay(_stragglers(read_log(job.decisions)), *of_rest, console) and same
    return same


def _replay(
    told: ToldLog[Line], name: str | None, args: Mapping[str, str], console: Console
) -> bool:
    missing = _missing(told)
    if missing is not None and name is None:
        raise missing
    if name is not None or args:
        again = _again(told, lambda by: _other(by, name, args))
        _show(told, again, name or THE_SAME, console)
    if missing is not None:
        absent = f"not compared with the log's own {told.what}: {missing}"
        console.print(absent, style="yellow", highlight=False, markup=False, soft_wrap=True)
        return True
    return _compare(told, console)


def _other(by: Decider, name: str | None, args: Mapping[str, str]) -> Decider:
    """Name of the policy that is asked instead of the log's own."""
    if name is None or name == by.name:
        return Decider(by.name, {**by.args, **args})
    return Decider(name, args)


def _missing(told: ToldLog[Line]) -> ConfigError | None:
    """Why a policy of the log cannot be asked here; None: all can."""
    try:
        for by in told.by:
            told.policies.make(*by)
    except ConfigError as refused:
        return refused
    return None


def _again(told: ToldLog[Line], other: Callable[[Decider], Decider]) -> list[Again[Line]]:
    try:
        return replay(told.log, lambda by: told.policies.make(*other(by)))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the {told.what} fails on the log's observations: {type(error).__name__}: {error}"
        ) from error


def _compare(told: ToldLog[Line], console: Console) -> bool:
    """Tell where the log's own policy acts otherwise now; whether nowhere."""
    again: list[Again[Any]] = [*_again(told, lambda by: by), *told.own]
    differing = [one for one in again if not one.same]
    for one in differing:
        then, now = told.words(one.line.acts), told.words(one.acts)
        if then == now:
            then, now = repr(one.line.acts), repr(one.acts)
        text = f"{told.head(one.line)}: was {then}; is now {now}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    verdict = f"differs in {len(differing)} of" if differing else "reproduces all"
    names = dict.fromkeys([*(by.name for by in told.by), *["the planner"] * bool(told.own)])
    console.print(
        f"{' and '.join(names) or 'nobody'}: {verdict} {counted(len(again), told.unit)} of "
        f"{told.name}",
        style="red" if differing else "green",
        highlight=False,
    )
    return not differing


def _show(told: ToldLog[Line], again: Sequence[Again[Line]], name: str, console: Console) -> None:
    """Lines in which anyone acts, the log's beside those of now."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in (*told.columns, "the log", name):
        table.add_column(column, overflow="fold")
    for one in again:
        if any(not isinstance(act, told.silent) for act in (*one.line.acts, *one.acts)):
            now = "the same" if one.same else told.words(one.acts)
            table.add_row(*told.cells(one.line), told.words(one.line.acts), now)
    if table.row_count:
        console.print(table, highlight=False, markup=False)
    acted = sum(any(isinstance(act, told.counts) for act in one.acts) for one in again)
    number = counted(len(again), told.unit)
    console.print(f"{name}: {told.does} in {acted} of {number}", highlight=False)


# --------------------------------------------------------------------------- stragglers


def _stragglers(lines: Sequence[AnyLine]) -> ToldLog[Decided]:
    return ToldLog(
        policies=SOLUTIONS,
        what="solution",
        unit="decision",
        name="the log",
        by=tuple(Decider(line.solution, line.args) for line in lines if isinstance(line, Begun)),
        log=tuple(asked(lines)),
        own=tuple(Again(line, line.acts_now()) for line in lines if isinstance(line, CurePlanned)),
        columns=("decision", "step"),
        cells=lambda line: (str(line.no), f"{line.observation.step:,}"),
        head=lambda line: f"decision {line.no}",
        words=lambda acts: "\n".join(f"{name_of(act)} ({act.reason})" for act in acts) or "-",
        does="acts",
    )


# --------------------------------------------------------------------------- sizes


def _sizes(lines: Sequence[SteeringLine]) -> ToldLog[SteeringLine]:
    log = tuple((Decider(line.policy, line.args), line) for line in lines)
    begun_s = lines[0].t if lines else 0.0
    return ToldLog(
        policies=RESOURCES,
        what="policy",
        unit="step",
        name="the log of sizes",
        by=tuple(by for by, _ in log),
        log=log,
        columns=("t",),
        cells=lambda line: (f"{line.t - begun_s:.0f} s",),
        head=lambda line: f"t {line.t:.0f}",
        words=lambda acts: "; ".join(map(_size_act, acts)) or "-",
        does="plans",
        silent=(Hold,),
        counts=ApplyPlan,
    )


def _size_act(act: AnySteeringAct) -> str:
    match act:
        case ApplyPlan(plan=plan, origin=origin):
            return f"plan: {plan.describe(origin)}"
        case TakeBack():
            return "take back"
        case JudgePlan(verdict=verdict):
            return f"judged {verdict}"
        case Hold():
            return f"keep: {act.describe()}"
