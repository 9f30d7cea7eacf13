"""What nodes can do, as their checks have measured it: the job's baseline. Pure.

Kept in the journal, so that each node is checked once in a job, whatever dies.
"""

from collections.abc import Iterable

from paceline.base.jobdir import role_of
from paceline.features.failslow.events import CheckedEvent, CheckFailedEvent
from paceline.features.failslow.policy.node_checks import Slow, find_slow, found_slow
from paceline.features.failslow.wire import Checked, NodeChecked, NodeSpeed
from paceline.wire.events.base import Event


class Checks:
    """The checks of a job's nodes; ``wanted``: workers are checked."""

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

    def heard(
        self, node: str, message: Checked, workers: Iterable[str]
    ) -> list[NodeChecked | Event]:
        """Take in a node's check: what to journal of it, and what to tell.

        Args:
            node: which has measured itself.
            message: what it has measured, or why nothing.
            workers: all that the job wants.
        """
        done: list[NodeChecked | Event] = []
        if message.error and message.inc not in self._failed:
            self._failed.add(message.inc)
            done.append(CheckFailedEvent(node=node, inc=message.inc, reason=message.error))
        speed = message.speed
        if speed is not None and self.speeds.get(node) != speed:
            record = NodeChecked(node=node, speed=speed)
            self.apply(record)
            done += [record, CheckedEvent(node=node, inc=message.inc, speed=speed)]
            done += [found_slow(slow, self.speeds) for slow in self.judge(workers)]
        return done

    def judge(self, workers: Iterable[str]) -> list[Slow]:
        """What is slow and was not said before, once all ``workers`` have been measured."""
        if not self.speeds or not self.speeds.keys() >= set(workers):
            return []
        fresh = [
            slow for slow in find_slow(self.speeds) if (slow.nodes, slow.what) not in self._found
        ]
        self._found.update((slow.nodes, slow.what) for slow in fresh)
        return fresh
