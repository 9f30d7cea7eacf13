"""Which process hangs, by what the agents say of all of them. Pure.

A member of a group that hangs makes all others wait, so a slow step alone says nothing. A member is
treated as hung when every other one waits, and it has been in its part of a step for longer than
the bound. Outside of a step (where it hands over its state or takes over another's) a silent member
is treated as hung; so are a silent worker of a job with servers, and a silent server. Each has a
thread that speaks at least once per second, unless it is stopped, or waits with its lock held.

A member that speaks may be slow: its script reads a cold file, writes images, sleeps. From outside
that looks like a script that waits for ever. Where the user has set no bound, such a member is
named at first, and ended only after minutes (`SlowMembers`). The rejected way, to look at its stack
and its processor time, tells a lock from a computation, but not a slow read from an endless one.
"""

from collections.abc import Collection, Mapping

import msgspec

from paceline.wire.messages.agent import NodeFacts

ALONE_S = 60.0
"""Members of a group of shards wait so long at most for one that has left its loop alone: far below
the time for which that one waits for them (`TOGETHER_S` of its client)."""


SLOW_S = 600.0
"""A member that speaks may stay in its part of a step for so long, unless `hang_s` is set."""


class Hang(msgspec.Struct, frozen=True):
    """A group without progress. ``nodes``: those that all wait for; none: their links are cut."""

    nodes: tuple[str, ...]
    since_s: float
    silent: bool = False
    """True: these processes do not even speak."""


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


class SlowMember(msgspec.Struct, frozen=True):
    """A member that takes longer than a step may, and is waited for."""

    node: str
    since_s: float
    limit_s: float
    """After so many seconds it is treated as hung."""


class SlowMembers:
    """How long the members of a group are waited for that speak, and are in their part of a step.

    A member gets twice what it has needed before, if that is more: a script that writes images for
    eight minutes at each thousandth step is not ended at the next one.
    """

    def __init__(self) -> None:
        #: By node: the longest part that is over, and that in which the member is now.
        self._longest_s: dict[str, float] = {}
        self._now_s: dict[str, float] = {}
        self._named: set[str] = set()

    def judge(
        self, hang: Hang | None, members: Mapping[str, NodeFacts]
    ) -> tuple[Hang | None, list[SlowMember]]:
        """Tell members that hang from slow ones.

        Args:
            hang: what `find_hang` has found.
            members: see there.

        Returns:
            The hang, if it is one, and the members that are to be named as slow, each once.
        """
        for name, one in members.items():
            self._follow(name, one.computing_s)
        if hang is None or not hang.nodes:
            return hang, []
        limits = {name: self.limit_s(name) for name in hang.nodes}
        late_s = {name: members[name].computing_s for name in hang.nodes}
        due = tuple(name for name in hang.nodes if late_s[name] > limits[name])
        fresh = [
            SlowMember(name, late_s[name], limits[name])
            for name in hang.nodes
            if name not in self._named and late_s[name] > self._longest_s.get(name, 0.0)
        ]
        self._named.update(slow.node for slow in fresh)
        if not due:
            return None, fresh
        return Hang(due, max(late_s[name] for name in due)), fresh

    def limit_s(self, node: str) -> float:
        """Seconds that a member has for its part of a step."""
        return max(SLOW_S, 2 * self._longest_s.get(node, 0.0))

    def _follow(self, node: str, computing_s: float) -> None:
        before_s = self._now_s.get(node, 0.0)
        if computing_s < before_s:
            self._named.discard(node)
            self._longest_s[node] = max(before_s, self._longest_s.get(node, 0.0))
        self._now_s[node] = computing_s
