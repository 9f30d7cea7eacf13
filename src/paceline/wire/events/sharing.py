"""Events of a job that shares a device with others."""

from paceline.wire.events.base import Event
from paceline.wire.sharing import SharingDecision


class SharingEvent(Event, frozen=True):
    """Another set of jobs shares the device, or the guaranteed one has changed."""

    device: str
    decision: SharingDecision

    sentence_words = "{0.node} shares {0.clause}"

    @property
    def clause(self) -> str:
        told = self.decision
        return f"{self.device}: {told.why}; opportunistic jobs: {told.allowed}"
