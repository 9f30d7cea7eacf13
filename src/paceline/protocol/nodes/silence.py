"""Machines that lose their power: their agents are silent, and the machine answers no probe. Pure.

A process that is killed closes its connections, and its node is given up at once
(`paceline.protocol.nodes.platform`). A machine without power, or without its cable, closes nothing.
Its agents may also be silent because the machine is busy. So it is probed: the kernel of a living
machine refuses a connection at once, however busy its processes are. One that answered before, and
does not now, is gone for the job; nobody else can say so sooner.

What would only be a guess is left to the time after which any silence counts: a machine that never
answered a probe (a firewall drops them), one of whose agents speaks, a job that trains on, and
several machines that are all silent at once, since then it may be our own cable.
"""

import msgspec

from paceline.protocol.nodes.lives import Presence
from paceline.protocol.nodes.node import Node
from paceline.protocol.nodes.roster import Roster

MISSED = 1.3
"""Heartbeats after which a silent agent has missed one."""
AGAIN_S = 30.0
"""Seconds after which a machine whose agents speak is probed again: it must still answer."""


class MachineKnown(msgspec.Struct):
    """Outcome of the probes of one machine."""

    answers: bool = False
    """Whether it answered the newest probe of a time in which it was heard."""
    probed_s: float | None = None
    """Time of the newest probe; None: none was made."""
    waits: bool = False
    """Whether a probe is under way."""


class SilentMachines:
    """The machines of a job's agents, as far as they are others than the master's.

    Args:
        roster: the nodes.
        report_s: seconds between an agent's words.
    """

    def __init__(self, roster: Roster, report_s: float) -> None:
        self._roster, self._missed_s = roster, MISSED * report_s
        self._known: dict[str, MachineKnown] = {}

    def due(self, now_s: float) -> list[str]:
        """Return the machines to probe now; the answer is for `probed`."""
        nodes = self._nodes()
        self._known = {name: self._known.get(name, MachineKnown()) for name in nodes}
        found = []
        for name, known in self._known.items():
            silent = self._is_silent(nodes[name], now_s)
            last_s = known.probed_s
            fresh = last_s is None or now_s - last_s >= AGAIN_S
            if not known.waits and (known.answers if silent else fresh):
                known.waits, known.probed_s = True, now_s
                found.append(name)
        return found

    def probed(self, machine: str, now_s: float, *, answered: bool, stands: bool) -> list[Node]:
        """Take in the outcome of a probe; return the nodes that are gone with the machine.

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
        since_s = known.probed_s if known.probed_s is not None else now_s
        silent = all(node.agent.heard_s < since_s for node in nodes[machine])
        if answered or not silent:
            known.answers = answered
            return []
        if not (known.answers and stands and self._is_silent(nodes[machine], now_s)):
            return []
        others = [one for name, one in nodes.items() if name != machine]
        if len(others) > 0 and all(self._is_silent(one, now_s) for one in others):
            return []  # our own cable, more likely
        return [node for node in nodes[machine] if node.life.is_alive]

    def _nodes(self) -> dict[str, list[Node]]:
        """Return the connected nodes of each machine that is another than the master's."""
        found: dict[str, list[Node]] = {}
        for node in self._roster.nodes.values():
            if node.agent.is_remote and node.agent.presence is Presence.CONNECTED:
                found.setdefault(node.agent.machine, []).append(node)
        return found

    def _is_silent(self, nodes: list[Node], now_s: float) -> bool:
        return all(now_s - node.agent.heard_s >= self._missed_s for node in nodes)
