"""Machines that lose their power: their agents are silent, and the machine answers no probe. Pure.

A process that is killed closes its connections, and its node is given up at once
(`paceline.protocol.nodes.platform`). A machine without power, or without its cable, closes nothing.
Its agents may also be silent because the machine is busy. So it is probed: the kernel of a living
machine refuses a connection at once, however busy its processes are. One that answered before, and
does not now, is gone for the job; nobody else can say so sooner.

Members may reach a machine that the master does not reach. So agents of other machines are asked as
well, the *witnesses*, and it is gone when none of them was answered. Where there is no witness, or
none speaks in time, the job must stand.

What would only be a guess is left to the time after which any silence counts: a machine that never
answered a probe (a firewall drops them), one of whose agents speaks, and several machines that are
all silent at once, since then it may be our own cable.
"""

import math
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec

from paceline.protocol.nodes.lives import Presence
from paceline.protocol.nodes.node import Node
from paceline.protocol.nodes.roster import Roster

MISSED = 1.05
"""Heartbeats after which a silent agent has missed one."""
EARLY = 0.7
"""Heartbeats of silence after which a machine is probed while the job makes no progress: the answer
is there when one has been missed."""
AGAIN_S = 30.0
"""Seconds after which a machine whose agents speak is probed again: it must still answer."""


NUM_WITNESSES = 2
MOST_PROBED = 16
"""Machines that are probed at the same time: a master that is late finds all of them silent, and
hundreds of connections would make it later still."""


class ProbeOrder(msgspec.Struct, frozen=True):
    """Order to probe a machine: the master does, and so do agents of other machines."""

    machine: str
    witnesses: tuple[str, ...] = ()
    """Nodes whose agents are to probe it, too."""


class MachineKnown(msgspec.Struct):
    """Outcome of the probes of one machine."""

    answers: bool = False
    """Whether it answered the newest probe of a time in which it was heard."""
    probed_s: float | None = None
    """Time of the newest probe; None: none was made."""
    waits: bool = False
    """Whether a probe of the master is under way."""
    unanswered: bool = False
    """Whether the newest probe of the master has ended without an answer."""
    asked: frozenset[str] = frozenset()
    """Nodes whose agents probe it at the same time."""
    seen: frozenset[str] = frozenset()
    """Those of them that were answered."""
    unseen: frozenset[str] = frozenset()
    """Those that were not."""


class SilentMachines:
    """The machines of a job's agents, as far as they are others than the master's.

    Args:
        roster: the nodes.
        report_s: seconds between an agent's words.
        here: address of the master's machine; agents that joined from there are no witnesses.
    """

    def __init__(self, roster: Roster, report_s: float, here: str = "") -> None:
        self._roster, self._report_s, self._here = roster, report_s, here
        self._known: dict[str, MachineKnown] = {}

    def due(self, now_s: float, *, stands: bool = False) -> list[ProbeOrder]:
        """Return the probes to make now; outcomes are for `probed` and `witnessed`.

        Args:
            now_s: of the master's clock.
            stands: whether the job makes no progress.
        """
        nodes = self._nodes()
        self._known = {name: self._known.get(name, MachineKnown()) for name in nodes}
        places = MOST_PROBED - sum(known.waits for known in self._known.values())
        if places <= 0:
            return []
        wanted: list[tuple[bool, float, str]] = []
        for name, known in self._known.items():
            silent = self._is_silent(nodes[name], now_s, EARLY if stands else MISSED)
            last_s = -math.inf if known.probed_s is None else known.probed_s
            if not known.waits and (known.answers if silent else now_s - last_s >= AGAIN_S):
                wanted.append((not silent, last_s, name))
        found = []
        for is_heard, _, name in sorted(wanted)[:places]:
            witnesses = () if is_heard else self._witnesses(name, nodes, now_s)
            self._known[name] = MachineKnown(
                answers=self._known[name].answers,
                probed_s=now_s,
                waits=True,
                asked=frozenset(witnesses),
            )
            found.append(ProbeOrder(name, witnesses))
        return found

    def probed(self, machine: str, now_s: float, *, answered: bool, stands: bool) -> list[Node]:
        """Take in the outcome of the master's probe; return the nodes that are gone with it.

        Args:
            machine: that was probed.
            now_s: of the master's clock.
            answered: whether it answered.
            stands: whether the job makes no progress.
        """
        nodes, known = self._nodes(), self._known.get(machine)
        if known is None or machine not in nodes:
            return []
        known.waits = False
        if answered or not self._unheard(nodes[machine], known, now_s):
            known.answers = answered
            return []
        known.unanswered = True
        return self._gone(machine, nodes, now_s, stands=stands)

    def witnessed(
        self, machine: str, witness: str, now_s: float, *, answered: bool, stands: bool
    ) -> list[Node]:
        """Take in what a witness has seen; see `probed`."""
        nodes, known = self._nodes(), self._known.get(machine)
        if known is None or machine not in nodes or witness not in known.asked:
            return []
        if answered:
            known.seen |= {witness}
        else:
            known.unseen |= {witness}
        return self._gone(machine, nodes, now_s, stands=stands)

    def _gone(
        self, machine: str, nodes: dict[str, list[Node]], now_s: float, *, stands: bool
    ) -> list[Node]:
        known = self._known[machine]
        agreed = bool(known.unseen) and not known.seen
        if not (known.answers and known.unanswered and (stands or agreed)):
            return []
        here = nodes[machine]
        if not (self._unheard(here, known, now_s) and self._is_silent(here, now_s)):
            return []
        others = [one for name, one in nodes.items() if name != machine]
        if len(others) > 0 and all(self._is_silent(one, now_s) for one in others):
            return []  # our own cable, more likely
        return [node for node in nodes[machine] if node.life.is_alive]

    def _unheard(self, nodes: list[Node], known: MachineKnown, now_s: float) -> bool:
        """Tell whether no agent of a machine has spoken since its newest probe."""
        since_s = known.probed_s if known.probed_s is not None else now_s
        return all(node.agent.heard_s < since_s for node in nodes)

    def _witnesses(
        self, machine: str, nodes: dict[str, list[Node]], now_s: float
    ) -> tuple[str, ...]:
        """Choose a node that was heard lately on each of some other machines."""
        found = []
        for name, here in nodes.items():
            newest = max(here, key=lambda node: node.agent.heard_s)
            if name != machine and not self._is_silent([newest], now_s, EARLY):
                found.append(newest.name)
        return tuple(found[:NUM_WITNESSES])

    def _nodes(self) -> dict[str, list[Node]]:
        """Return the connected nodes of each machine that is another than the master's."""
        found: dict[str, list[Node]] = {}
        for node in self._roster.nodes.values():
            is_other = node.agent.is_remote and not self._is_here(node)
            if is_other and node.agent.presence is Presence.CONNECTED:
                found.setdefault(node.agent.machine, []).append(node)
        return found

    def _is_here(self, node: Node) -> bool:
        return bool(self._here) and _host_of(node.agent.machine) == self._here

    def _is_silent(self, nodes: list[Node], now_s: float, beats: float = MISSED) -> bool:
        return all(now_s - node.agent.heard_s >= beats * self._report_s for node in nodes)


@lru_cache(maxsize=16_384)
def _host_of(machine: str) -> str:
    """Return the host of a machine's address; each tick asks for all of them."""
    return urlsplit(machine).hostname or machine
