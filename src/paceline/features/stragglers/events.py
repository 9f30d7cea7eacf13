"""Events about stragglers: a node is slower than the others, and is as fast as they are again.

The master tells them when they have lasted for some seconds, so that what is read later (`paceline
why`, the report) is what was shown while the job ran.
"""

from collections.abc import Iterable

import msgspec

from paceline.wire.events.base import Event, FeatureEvent, known_by


class _Event(FeatureEvent, frozen=True, kw_only=True):
    """Base of the events here."""

    feature_name = "stragglers"
    is_usual = True


class NodesComparedEvent(_Event, frozen=True):
    """From now on the nodes' times are compared with each other."""

    count: int
    """Nodes that are compared."""

    clause_words = "{0.count} nodes"
    sentence_words = "the times of {0.count} nodes are compared with each other"


class StragglerFoundEvent(_Event, frozen=True):
    """A node is slower than the others, or something else is done about it now."""

    ratio: float
    """Time of the node as a multiple of the usual one."""
    since_s: float
    """Unix time since which it is slow."""
    done: str
    """Measure that is taken against it, in words."""

    clause_words = "{0.ratio:.2f} times as long ({0.done})"
    sentence_words = "{0.node} is slow: it takes {0.clause}"


class StragglerGoneEvent(_Event, frozen=True):
    """A node that was slow is as fast as the others again, or has left."""

    since_s: float
    """Unix time since which it was slow."""
    left: bool = False
    """Whether it has left the job, and nobody saw it faster."""

    sentence_words = "{0.clause}"

    @property
    def clause(self) -> str:
        if self.left:
            return f"{self.node}, which was slow, has left"
        return f"{self.node} is as fast as the others again"


AnyStragglersEvent = NodesComparedEvent | StragglerFoundEvent | StragglerGoneEvent
"""Kinds of events that tell who was slow."""
_decode = msgspec.json.Decoder(AnyStragglersEvent).decode


def read(events: Iterable[Event]) -> list[Event]:
    """Return the events of a job, with those about stragglers as what they are."""
    return known_by(events, _decode)
