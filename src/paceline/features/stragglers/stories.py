"""A job's decision log as stories: what was seen, decided, expected, and what came of it.

Numbers are those of the log, which the master has measured; what is estimated is called so.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import assert_never

import msgspec

from paceline.base.errors import ConfigError
from paceline.features.stragglers.policy.decision_log import (
    ActionRefused,
    Aftermath,
    AnyLine,
    Begun,
    Decided,
    Failed,
    Helped,
    Measured,
    TookEffect,
    decode,
    describe_cost,
)
from paceline.features.stragglers.policy.registry import solution
from paceline.features.stragglers.policy.solution import Compared, Solution
from paceline.jobs.history import Tail
from paceline.jobs.wording import counted, milliseconds, seconds, speed
from paceline.policy.actions import (
    AdjustBatch,
    AdjustRate,
    AnyAction,
    BackupWorkers,
    KillRestart,
    Partial,
    Profile,
    Share,
)
from paceline.policy.observation import Observation

WAIT_SHARE = 0.05
"""A wait that is a smaller part of a batch's time is not told."""
MAX_SHARES = 6
"""Most shares of an ADJUST_BS that are named one by one."""


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """One action, or what else there is to tell; ``t`` in Unix time."""

    t: float
    no: int
    what: str
    """The action, with whom it concerns."""
    seen: str = ""
    """The node that was slow and those it was compared with, in words."""
    rule: str = ""
    """The solution, and its rule with the numbers that the rule looked at."""
    expected: str = ""
    """Gain and cost."""
    became: str = ""
    """Refused, on its way, or in effect."""
    outcome: str = ""
    """Measurements afterwards, in words."""


def none_written(path: Path) -> ConfigError:
    """Say that there is no decision log, and what writes one."""
    return ConfigError(
        f"{path}: no decisions were written; start the job with a solution, e.g. --solution nd"
    )


def read_log(path: Path) -> list[AnyLine]:
    """All whole lines of a decision log.

    Raises:
        ConfigError: there is none, or it is of another version.
    """
    if not path.exists():
        raise none_written(path)
    try:
        return list(decode(Tail(path).lines()))
    except ValueError as error:
        raise ConfigError(f"{path}: not a decision log of this version: {error}") from error


def stories(lines: Sequence[AnyLine]) -> list[Story]:
    """What there is to tell, in order; decisions without actions are not."""
    told: list[Story] = []
    after = defaultdict[tuple[int, int], list[Aftermath]](list)
    for line in lines:
        if isinstance(line, Aftermath):
            after[line.no, line.index].append(line)
    name, asked = "", Solution()
    for line in lines:
        match line:
            case Begun():
                name, asked = line.solution, _installed(line)
            case Failed():
                last = line.traceback.strip().rpartition("\n")[2] or line.kind
                told.append(Story(t=line.t, no=line.no, what=f"{name} failed", rule=last))
            case Decided():
                for index, action in enumerate(line.actions):
                    seen = seen_of(asked, action, line.observation)
                    told.append(_story(name, seen, line, action, after[line.no, index]))
            case ActionRefused() | TookEffect() | Measured() | Helped():
                pass  # parts of the story of their decision
            case _:
                assert_never(line)
    return told


def _installed(begun: Begun) -> Solution:
    """The solution of a log, to be asked what it looked at; where it is not here, any."""
    try:
        return solution(begun.solution, begun.args)
    except ConfigError:
        return Solution()


def _story(
    name: str, seen: str, decided: Decided, action: AnyAction, after: Sequence[Aftermath]
) -> Story:
    return Story(
        t=decided.t,
        no=decided.no,
        what=name_of(action),
        seen=seen,
        rule=f"{name}: {action.reason}",
        expected=expected_of(action, decided.observation),
        became=_became(decided, after),
        outcome="; ".join(
            [_helped(line) for line in after if isinstance(line, Helped)]
            + [_speeds(line) for line in after if isinstance(line, Measured)]
        ),
    )


def num_decisions(lines: Iterable[AnyLine]) -> tuple[int, int]:
    """Decisions in the log, and those of them with actions."""
    decided = [line for line in lines if isinstance(line, Decided)]
    acted = sum(bool(line.actions) for line in decided)
    return len(decided), acted


def name_of(action: AnyAction) -> str:
    """The action as AntDT names it, and what it does."""
    match action:
        case KillRestart(node=node):
            return f"KILL_RESTART {node}"
        case AdjustBatch(shares=shares):
            named = list(shares.items())[:MAX_SHARES]
            more = len(shares) - MAX_SHARES
            told = ", ".join(f"{node} {_size(share)}" for node, share in named)
            return f"ADJUST_BS {told}" + (f" and {more} more" if more > 0 else "")
        case BackupWorkers(count=count):
            return f"BACKUP_WORKERS {count}"
        case Partial():
            return f"PARTIAL, {_lacking(action)}"
        case AdjustRate(factors=factors):
            return f"ADJUST_LR of {counted(len(factors), 'worker')}"
        case Profile(sizes=sizes):
            return f"PROFILE of {counted(len(sizes), 'worker')}"
        case _:
            assert_never(action)


def _lacking(partial: Partial) -> str:
    told = f"up to {counted(partial.left_out, 'sample')}"
    if partial.late > partial.left_out:
        after = f"{partial.late:,}" if partial.left_out else counted(partial.late, "sample")
        told = f"{told}, or {after}" if partial.left_out else f"up to {after}"
        told += f" after {partial.grace_s:.3g} s"
    return told + (f" in {partial.chunks} chunks" if partial.chunks > 1 else "")


def _size(share: Share) -> str:
    size = f"{share.batch_size:,}"
    return f"{size} x {share.accumulation}" if share.accumulation > 1 else size


# --------------------------------------------------------------------------- parts of a story


def seen_of(asked: Solution, action: AnyAction, seen: Observation) -> str:
    """Return which node was slow against which, by the times that the rule looked at.

    The slow one is the node of the action, or else the slowest worker. If the solution (it may be
    a user's) raises here, the usual times are shown.
    """
    try:
        return _seen_by(asked.compared(seen, action), action, seen)
    except Exception:  # noqa: BLE001 - the code of a user
        return _seen_by(Solution().compared(seen, action), action, seen)


def _seen_by(compared: Compared, action: AnyAction, seen: Observation) -> str:
    times_s = compared.times_s
    slowest = max(times_s, key=lambda name: times_s[name], default="")
    node = action.node if isinstance(action, KillRestart) else slowest
    waits = "" if node.startswith("server") else _waits(seen)
    return "; ".join(filter(None, [_compared(node, compared), waits]))


def _waits(seen: Observation) -> str:
    """Say which node waits longest for data, and which for a processor; empty: not for long."""
    paces = {worker.node: worker.short or worker.long for worker in seen.workers}
    known = {node: pace for node, pace in paces.items() if pace is not None and pace.bpt_s}
    told = []
    for what, times_s in (
        ("its data", {node: pace.data_s for node, pace in known.items()}),
        (
            "a processor (others used it, or its quota was used up)",
            {node: pace.stolen_s for node, pace in known.items()},
        ),
    ):
        node = max(times_s, key=lambda name: times_s[name], default="")
        if node and times_s[node] >= WAIT_SHARE * known[node].bpt_s:
            told.append(f"{node} waited {milliseconds(times_s[node])} of each batch for {what}")
    return "; ".join(told)


def _compared(node: str, compared: Compared) -> str:
    times_s, usual_s = compared.times_s, compared.usual_s
    others = [time_s for name, time_s in times_s.items() if name != node]
    if node not in times_s:
        return ""
    own_s = times_s[node]
    told = f"{node} {compared.verb} {milliseconds(own_s)}"
    if usual_s:
        return f"{told}, {own_s / usual_s:.1f} times the usual {milliseconds(usual_s)}"
    if not others:
        return told
    mean_s = sum(others) / len(others)
    times = f", {own_s / mean_s:.1f} times as long" if mean_s > 0 else ""
    if len(others) == 1:
        return f"{told}, the other {milliseconds(mean_s)}{times}"
    return f"{told}, the {len(others)} others {milliseconds(mean_s)} on average{times}"


def expected_of(action: AnyAction, seen: Observation) -> str:
    """What the solution expected; a restart's cost also where it did not say."""
    parts = [f"gain {seconds(action.gain_s)}"] if action.gain_s else []
    if action.cost_s:
        parts.append(f"cost {seconds(action.cost_s)}")
    if isinstance(action, KillRestart):
        on_server = action.node.startswith("server")
        cost = seen.server_restart if on_server else seen.worker_restart
        parts.append(f"a restart takes {describe_cost(cost)}")
        pending = "not known" if seen.pending_s is None else seconds(seen.pending_s)
        parts.append(f"waiting for a place {pending}")
    return "; ".join(parts)


def _became(decided: Decided, after: Sequence[Aftermath]) -> str:
    for line in after:
        if isinstance(line, ActionRefused):
            return f"not carried out: {line.reason}"
        if isinstance(line, TookEffect):
            cost = f"; its start took {describe_cost(line.cost)}" if line.cost else ""
            return f"in effect after {seconds(line.t - decided.t)}{cost}"
    return "not known to have taken effect"


def _helped(helped: Helped) -> str:
    outcome = helped.outcome
    verdict = "cured" if outcome.cured else "not cured"
    return f"{verdict}: {outcome.before:.2f} times the usual before, {outcome.after:.2f} after"


def _speeds(measured: Measured) -> str:
    if measured.before is None or measured.after is None:
        return "the speeds before and after cannot be compared"
    told = (
        f"{speed(measured.before)} before, {speed(measured.after)} in the "
        f"{seconds(measured.seconds)} after"
    )
    if measured.gain_s is not None:
        less = "less" if measured.gain_s >= 0 else "more"
        told += f"; the rest takes {seconds(abs(measured.gain_s))} {less} at that speed (estimate)"
    if measured.others:
        told += f"; together with {counted(measured.others, 'other action')}"
    return told
