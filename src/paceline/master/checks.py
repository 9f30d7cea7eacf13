"""What nodes can do, as their checks have measured it: the job's baseline. Pure.

Kept in the journal, so that each node is checked once in a job, whatever dies.
"""

from collections.abc import Iterable

from paceline.base.jobdir import role_of
from paceline.policy.failslow.preflight import Slow, find_slow
from paceline.protocol.records import Record
from paceline.wire.messages.checks import Checked, NodeSpeed


class NodeChecked(Record, frozen=True):
    """A node's check; replaces an earlier one."""

    node: str
    speed: NodeSpeed


class Checks:
    """By node; ``wanted``: workers are checked."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self.speeds: dict[str, NodeSpeed] = {}
        #: What was found, and so told.
        self._found: set[tuple[tuple[str, ...], str]] = set()
        #: Lives that have said that their check failed.
        self._failed: set[int] = set()

    def apply(self, record: NodeChecked) -> None:
        """The only way that a check is added."""
        self.speeds[record.node] = record.speed

    def records(self) -> list[NodeChecked]:
        """All of it."""
        return [NodeChecked(node=node, speed=speed) for node, speed in self.speeds.items()]

    def is_due(self, node: str) -> bool:
        """Whether the node's next life is to measure it."""
        return self._wanted and role_of(node) == "worker" and node not in self.speeds

    def failed(self, message: Checked) -> bool:
        """Whether a check failed and that was not said before."""
        fresh = bool(message.error) and message.inc not in self._failed
        if fresh:
            self._failed.add(message.inc)
        return fresh

    def judge(self, workers: Iterable[str]) -> list[Slow]:
        """What is slow and was not said before, once all ``workers`` have been measured."""
        if not self.speeds or not self.speeds.keys() >= set(workers):
            return []
        fresh = [
            slow for slow in find_slow(self.speeds) if (slow.nodes, slow.what) not in self._found
        ]
        self._found.update((slow.nodes, slow.what) for slow in fresh)
        return fresh
