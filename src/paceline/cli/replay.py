"""``paceline replay``: decisions made again from a log, told where they differ.

One frame for all logs; what is a log's own is a `ToldLog`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.jobs.replayed import ReplayedLog, ToldLog, logs_of_features, why_no_log
from paceline.jobs.wording import counted
from paceline.policy.decisions.past import Again, Decider, Line, replay

THE_SAME = "the same, with other parameters"


def replay_logs(
    source: str | None, name: str | None, args: Mapping[str, str], console: Console
) -> bool:
    """Replay the log that is named, or those of a job.

    Args:
        source: a log, or what `JobDir.find` takes.
        name: who is to decide; None: the log's own. Of a job, it says about which log.
        args: parameters; of the log's own those that are to differ. Of a job with several logs they
            are those of the named policy.
        console: to show it on.

    Returns:
        Whether the logs' own policies decide as they did; True where they are not installed here
        and others were asked.

    Raises:
        ConfigError: no such log or policy, or one fails.
    """
    file = Path(source) if source else None
    if file is not None and file.is_file():
        return _replay(_read(file), name, args, console)
    if file is not None and file.suffix == ".jsonl":
        names = "".join(f"a {log.file}, " for log in logs_of_features())
        raise ConfigError(f"{source}: no such file; name {names}or a JOB")
    job = JobDir.find(source)
    present = [log for log in logs_of_features() if log.place(job).exists()]
    if not present:
        raise why_no_log(job)
    asked = _asked(present, name, args)
    read = [(log, told) for log in present if (told := log.read(log.place(job))) is not None]
    if not read:
        raise why_no_log(job)
    same = True
    for log, told in read:
        other = (name, args) if log is asked else (None, {})
        same = _replay(told, *other, console) and same
    return same


def _read(file: Path) -> ToldLog[Any]:
    """Read a file of any kind of log."""
    refused: list[ConfigError] = []
    for log in logs_of_features():
        try:
            told = log.read(file)
        except ConfigError as error:
            refused.append(error)
            continue
        if told is not None:
            return told
    raise refused[0] if refused else ConfigError(f"{file}: no log of decisions of this version")


def _asked(
    present: Sequence[ReplayedLog], name: str | None, args: Mapping[str, str]
) -> ReplayedLog | None:
    """Which log another policy, or other parameters, are for; None: nothing else is asked.

    Raises:
        ConfigError: parameters without a name could be for several.
    """
    if name is None and not args:
        return None
    able = [log for log in present if log.policies is not None]
    for log in able:
        if log.policies is not None and name in log.policies.names():
            return log
    if len(able) > 1 and name is None:
        raise ConfigError(
            f"--set {next(iter(args))}=...: this job has several logs; name the policy that has "
            f"the parameter with --solution ({_listed(able)})"
        )
    return able[-1] if able else present[-1]


def _listed(logs: Sequence[ReplayedLog]) -> str:
    """Name the policies that may be asked about logs, by log."""
    named = ((log.file, log.policies.names()) for log in logs if log.policies is not None)
    return "; ".join(f"{file}: {', '.join(names)}" for file, names in named)


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
