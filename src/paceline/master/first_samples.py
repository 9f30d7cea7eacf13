"""Workers that the first samples of a job wait for.

A worker of another machine may find that it cannot read the data, or a server: that must be said
before anything is trained. Pure.
"""

from collections.abc import Iterable

from paceline.master.holding.edge import GATHER_S
from paceline.protocol.nodes.lives import Backing
from paceline.protocol.nodes.node import Node


class FirstSamples:
    """The workers that have opened their data, and how long the others are waited for."""

    def __init__(self) -> None:
        self.readers: set[str] = set()
        self._since_s: float | None = None

    def await_any(self, workers: Iterable[Node], now_s: float) -> bool:
        """Tell whether some worker elsewhere may still come to its data within `GATHER_S`."""
        self._since_s = now_s if self._since_s is None else self._since_s
        missing = (node for node in workers if node.name not in self.readers)
        return now_s - self._since_s < GATHER_S and any(map(_is_coming, missing))


def _is_coming(node: Node) -> bool:
    """Tell whether a worker is on another machine, and not only pending there."""
    has_place = node.place.backing not in (Backing.UNKNOWN, Backing.PENDING, Backing.REFUSED)
    return node.agent.is_remote or (has_place and bool(node.place.host))
