"""Messages of features, in an envelope of the core.

The core carries the body and does not decode it, so that its own unions stay closed. A feature's
part in the master decodes what its parts in a process and in an agent say, by a union of its own.
"""

import msgspec

from paceline.wire.messages.base import LifeMessage, Message


class FeatureSaid(LifeMessage, frozen=True):
    """process -> master: a message of the feature's part in a process."""

    feature: str
    body: msgspec.Raw
    """Message of the feature as msgpack."""


class FeatureTold(LifeMessage, frozen=True):
    """master -> process: a message of the feature's part in the master."""

    feature: str
    body: msgspec.Raw
    """Message of the feature as msgpack."""


class AgentFeatureSaid(Message, frozen=True):
    """agent -> master: a message of the feature's part in an agent."""

    node: str
    feature: str
    body: msgspec.Raw
    """Message of the feature as msgpack."""


class AgentFeatureTold(Message, frozen=True):
    """master -> agent: a message of the feature's part in the master."""

    feature: str
    body: msgspec.Raw
    """Message of the feature as msgpack."""
