"""Which process hangs, by what the agents say of all of them. Pure.

A member of a group that hangs makes all others wait, so a slow step alone says nothing. A member is
treated as hung when every other one waits, and it has been in its part of a step for longer than
the bound. Outside of a step (where it hands over its state or takes over another's) a silent member
is treated as hung; so are a silent worker of a job with servers, and a silent server. Each has a
thread that speaks at least once per second, unless it is stopped, or waits with its lock held.
"""

from collections.abc import Collection, Mapping

import msgspec

from paceline.wire.messages.agent import NodeFacts

ALONE_S = 60.0
"""Members of a group of shards wait so long at most for one that has left its loop alone: far below
the time for which that one waits for them (`TOGETHER_S` of its client)."""


class Hang(msgspec.Struct, frozen=True):
    """A group without progress. ``nodes``: those that all wait for; none: their links are cut."""

    nodes: tuple[str, ...]
    since_s: float
    silent: bool = False
    """They do not even speak."""


def find_hang(members: Mapping[str, NodeFacts], bound_s: float) -> Hang | None:
    """Find the members that all others wait for.

    Args:
        members: node -> its newest report.
        bound_s: as long as a step may take.
    """
    late = {name: one.computing_s for name, one in members.items() if one.computing_s > bound_s}
    waiting = [one.waiting_s for one in members.values() if one.waiting_s > bound_s]
    if not waiting or len(late) + len(waiting) < len(members):
        return None
    if late:
        return Hang(tuple(sorted(late)), max(late.values()))
    return Hang((), min(waiting)) if len(members) > 1 else None


def find_left_alone(
    members: Mapping[str, NodeFacts], leavers: Collection[str], bound_s: float
) -> list[str]:
    """Find the members that wait in a step which others, through with their loop, do not do.

    Args:
        members: node -> its newest report; they hold shards, so a step needs all of them.
        leavers: those of them whose scripts have returned.
        bound_s: as long as a step may take; they wait for at most `ALONE_S`.
    """
    others = [name for name in members if name not in leavers]
    waits = all(members[name].waiting_s > min(bound_s, ALONE_S) for name in others)
    return others if waits and len(others) < len(members) else []


def find_silent(members: Mapping[str, NodeFacts], bound_s: float) -> Hang | None:
    """Find the processes that neither speak nor work, whether or not others wait for them."""
    silent = {name: one.silent_s for name, one in members.items() if one.silent_s > bound_s}
    return Hang(tuple(sorted(silent)), max(silent.values()), silent=True) if silent else None
