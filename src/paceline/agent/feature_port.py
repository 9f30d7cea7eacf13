"""The port of features in an agent: what a feature's part hears of the node, and what it may say.

A feature declares its part as the ``agent`` of its `paceline.base.features.Feature`: a callable
that takes an `AgentHere` and returns an `AgentPart`, or None where the feature has nothing to do on
this node. All methods of a part are called in the agent's event loop, one after the other, and must
not wait. An error that a part raises ends the part, and not the agent.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from paceline.base.jobdir import JobDir
from paceline.wire.spec import JobSpec


class AgentHere(NamedTuple):
    """The node that a part belongs to."""

    job: JobDir
    spec: JobSpec
    node: str
    send: Callable[[Any], None]
    """Sends a message, a msgspec struct, to the feature's part in the master; without a master it
    is lost."""


class AgentPart:
    """A feature's part in an agent; each method may be left out."""

    def connected(self) -> None:
        """Act on a new stream to a master, which may know nothing of this node."""

    def told(self, body: msgspec.Raw) -> None:
        """Take in a message, as msgpack, of the feature's part in the master."""

    def began(self) -> None:
        """Act on a new life of the node's process, which exists and has not begun its work."""

    def must_end(self) -> None:
        """Let go of the node's process: it was told to end. Called again with each such order."""

    def tick(self, now_s: float) -> None:
        """Do what is due; called about ten times a second with a monotonic time."""

    def has_room(self) -> bool:
        """Say whether the process may run here now; without room it ends, and waits for room."""
        return True

    def holds(self) -> bool:
        """Say whether the process makes no progress since the part holds it back."""
        return False

    def close(self) -> None:
        """Give back what the part holds: the node is no more, or the part has failed."""
