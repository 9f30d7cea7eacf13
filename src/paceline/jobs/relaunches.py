"""The ends of each node after which it, or all workers, were started again.

Also ends by order, which the master's own count leaves out, since they cost no budget.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from paceline.wire.client import JobStatus
from paceline.wire.events.base import Event
from paceline.wire.events.nodes import RelaunchEvent, RestartAllEvent


def count_relaunches(events: Iterable[Event]) -> Counter[str]:
    """Count them by node."""
    return Counter(e.node for e in events if isinstance(e, RelaunchEvent | RestartAllEvent))


def with_relaunches(status: JobStatus, counts: Mapping[str, int]) -> JobStatus:
    """A status whose nodes have these counts."""
    nodes = (replace(node, restarts=counts.get(node.node, 0)) for node in status.nodes)
    return replace(status, nodes=tuple(nodes))
