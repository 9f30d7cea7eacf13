"""Whom `Profile` is waited for, as a pure state machine; nothing of it is durable.

A worker that was asked is asked again until it has said what its batches took, or is gone; what is
still open when another `Profile` comes is given up. A master that is started again has asked
nobody: its solution asks again, and workers say at once what they have measured.
"""

from collections.abc import Mapping

from paceline.base.errors import ConfigError
from paceline.base.numbering import Inc
from paceline.policy.actions import Profile
from paceline.protocol.acts import Send
from paceline.wire.messages.group import ProfileBatches, Profiled


class Profiling:
    """The machine."""

    def __init__(self) -> None:
        self._asked: dict[Inc, ProfileBatches] = {}

    @property
    def is_over(self) -> bool:
        """Whether nobody is waited for."""
        return not self._asked

    def ask(self, action: Profile, workers: Mapping[Inc, str]) -> list[Send]:
        """Have these workers (incarnation to node) measure what the action says.

        Raises:
            ConfigError: it says nothing that they could measure.
        """
        if action.steps < 1 or min(action.sizes.values(), default=0) < 1:
            raise ConfigError(f"Profile is of at least 1 batch of 1 sample, got {action}")
        asked = {
            inc: ProfileBatches(inc=inc, size=action.sizes[node], batches=action.steps)
            for inc, node in workers.items()
            if node in action.sizes
        }
        if not asked:
            raise ConfigError(f"Profile: none of {sorted(action.sizes)} trains any more")
        self._asked = asked
        return self.resend()

    def heard(self, message: Profiled) -> None:
        """A worker has said what its batches took."""
        asked = self._asked.get(message.inc)
        if asked and asked.size == message.size and asked.batches <= message.batches:
            del self._asked[message.inc]

    def lost(self, inc: Inc) -> None:
        """A worker is gone, with what it has measured."""
        self._asked.pop(inc, None)

    def resend(self) -> list[Send]:
        """Everything that is unanswered, once more."""
        return [Send(inc, message) for inc, message in self._asked.items()]
