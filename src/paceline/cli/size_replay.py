"""The steps of the loop that finds a job's size, taken again from its log (``sizing.jsonl``)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from paceline.base.errors import ConfigError
from paceline.jobs.sizing import read_sizing
from paceline.jobs.wording import counted
from paceline.policy.resources.plan import Hold
from paceline.policy.resources.planner import ResourcePolicy
from paceline.policy.resources.registry import RESOURCES
from paceline.policy.resources.steering import SteeringLine
from paceline.policy.resources.steering_state import AnySteeringAct, ApplyPlan, JudgePlan, TakeBack


def is_sizing_log(path: Path) -> bool:
    """Whether the file holds steps of that loop; an empty file holds none."""
    with path.open("rb") as file:
        try:
            msgspec.json.decode(file.readline(), type=SteeringLine)
        except msgspec.MsgspecError:
            return False
    return True


def replay_sizes(path: Path, name: str | None, args: Mapping[str, str], console: Console) -> bool:
    """Take the steps of a log again, and show where they differ.

    Args:
        path: of the log.
        name: the policy to ask; None: the log's own.
        args: its parameters; of the log's own those that are to differ.
        console: to show it on.

    Returns:
        Whether the log's own policy acts as it did; True where it is not installed here and another
        one was asked.

    Raises:
        ConfigError: no such policy, or it fails.
    """
    lines = read_sizing(path)
    if name is not None or args:
        again = _again(lines, name, args)
        _show(lines, again, name or "the same, with other parameters", console)
    absent = {line.policy for line in lines} - {*RESOURCES.names()}
    if absent and name is not None:
        told = f"not compared with the log's own policy, which is not here: {', '.join(absent)}"
        console.print(told, style="yellow", highlight=False, markup=False, soft_wrap=True)
        return True
    again = _again(lines, None, {})
    differing = [(line, acts) for line, acts in zip(lines, again, strict=True) if acts != line.acts]
    for line, acts in differing:
        text = f"t {line.t:.0f}: was {_words(line.acts)}; is now {_words(acts)}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    verdict = f"differs in {len(differing)} of" if differing else "reproduces all"
    names = " and ".join(dict.fromkeys(line.policy for line in lines))
    console.print(
        f"{names or 'nobody'}: {verdict} {counted(len(lines), 'step')} of the log of sizes",
        style="red" if differing else "green",
        highlight=False,
    )
    return not differing


def _again(
    lines: Sequence[SteeringLine], name: str | None, args: Mapping[str, str]
) -> list[tuple[AnySteeringAct, ...]]:
    made: dict[str, ResourcePolicy] = {}
    found = []
    for line in lines:
        own = name is None or name == line.policy
        asked = name or line.policy
        key = f"{asked} {line.args if own else ''}"
        if key not in made:
            made[key] = RESOURCES.make(asked, {**line.args, **args} if own else args)
        try:
            found.append(line.acts_now(made[key]))
        except Exception as error:
            raise ConfigError(
                f"policy {asked} fails on what the log has seen: {type(error).__name__}: {error}"
            ) from error
    return found


def _show(
    lines: Sequence[SteeringLine],
    again: Sequence[tuple[AnySteeringAct, ...]],
    name: str,
    console: Console,
) -> None:
    """Steps in which the size was, or would be, changed: the log's beside those of now."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("t", "the log", name):
        table.add_column(column, overflow="fold")
    acted = 0
    for line, acts in zip(lines, again, strict=True):
        acted += any(isinstance(act, ApplyPlan) for act in acts)
        if any(not isinstance(act, Hold) for act in (*line.acts, *acts)):
            now = "the same" if acts == line.acts else _words(acts)
            table.add_row(f"{line.t - lines[0].t:.0f} s", _words(line.acts), now)
    if table.row_count:
        console.print(table, highlight=False, markup=False)
    console.print(f"{name}: plans in {acted} of {counted(len(lines), 'step')}", highlight=False)


def _words(acts: Sequence[AnySteeringAct]) -> str:
    return "; ".join(_word(act) for act in acts) or "-"


def _word(act: AnySteeringAct) -> str:
    match act:
        case ApplyPlan(plan=plan, origin=origin):
            return f"plan: {plan.describe(origin)}"
        case TakeBack():
            return "take back"
        case JudgePlan(verdict=verdict):
            return f"judged {verdict}"
        case Hold():
            return f"keep: {act.describe()}"
