"""Events of sizes: changes of the job's size, and memory of nodes that is raised or short."""

from collections.abc import Iterable

import msgspec

from paceline.base.jobdir import role_of
from paceline.base.sizes import size_of
from paceline.wire.events.base import Event, FeatureEvent, known_by


class _Event(FeatureEvent, frozen=True, kw_only=True):
    """Base of the events here."""

    feature_name = "sizes"


class SizePlannedEvent(_Event, frozen=True):
    """The resource policy has chosen another size, or takes one back."""

    plan: str

    clause_words = "{0.plan}"
    sentence_words = "the job is to change its size: {0.plan}"


class SizeChangedEvent(_Event, frozen=True):
    """A change of the job's size is in effect."""

    size: str
    took_s: float

    clause_words = "{0.size}"
    sentence_words = "the job has another size: {0.size} (after {0.took_s:.1f} s)"


class SizeJudgedEvent(_Event, frozen=True):
    """Verdict on a change of the job's size, measured when it had settled."""

    before_per_s: float
    after_per_s: float
    expected_per_s: float
    found: str
    """Judgement in words, such as: faster."""

    clause_words = (
        "{0.found}: {0.after_per_s:,.0f} samples/s after {0.before_per_s:,.0f}, "
        "{0.expected_per_s:,.0f} were expected"
    )
    sentence_words = "the change of size made the job {0.clause}"


class SizeKeptEvent(_Event, frozen=True):
    """The job trains on with the size that it has."""

    cause: str

    clause_words = "{0.cause}"
    sentence_words = "the job keeps its size: {0.cause}"


class _MemoryEvent(_Event, frozen=True):
    """The memory of a node, and with it of all nodes of its role."""

    limit_bytes: int
    """Limit of each node so far."""
    need_bytes: int
    """Bytes that would be enough, by the forecast; after an end out of memory: twice its limit."""
    used_bytes: int = 0
    """Bytes in use by the node when this was forecast; 0: after an end out of memory."""
    after_oom: bool = False
    """Whether it has ended out of memory."""

    @property
    def cause(self) -> str:
        limit = size_of(self.limit_bytes)
        if self.after_oom:
            return f"{self.node} ran out of {limit}"
        used, need = size_of(self.used_bytes), size_of(self.need_bytes)
        return f"{self.node} uses {used} of {limit}, and is expected to need {need} as tables grow"


class MemoryRaisedEvent(_MemoryEvent, frozen=True):
    """Nodes of a role get more memory, before it runs out or after one has run out of it."""

    given_bytes: int = 0
    """Bytes that each of the nodes gets."""

    clause_words = "{0.cause}; each {0.role} gets {0.given}"
    sentence_words = "{0.clause}"

    @property
    def role(self) -> str:
        return role_of(self.node)

    @property
    def given(self) -> str:
        return size_of(self.given_bytes)


class MemoryShortEvent(_MemoryEvent, frozen=True):
    """A node runs out of memory, or will, and may not get more."""

    why: str = ""
    """Empty: the spec has no `max_memory`."""

    clause_words = "{0.cause}; {0.reason}"
    sentence_words = "{0.clause}"

    @property
    def reason(self) -> str:
        role = role_of(self.node)
        allowed = f"the spec allows no more: set {role}s.max_memory, or use more {role}s"
        return self.why or allowed


class MachineShortEvent(_Event, frozen=True):
    """Servers without a limit will need more memory than their machine has left."""

    need_bytes: int
    """Bytes that all servers together need beyond what they use, by the forecast."""
    left_bytes: int

    clause_words = (
        "the servers are expected to need {0.need} more as tables grow, and their machine has "
        "{0.left} left: train on one with more memory"
    )
    sentence_words = "{0.clause}"

    @property
    def need(self) -> str:
        return size_of(self.need_bytes)

    @property
    def left(self) -> str:
        return size_of(self.left_bytes)


AnySizesEvent = (
    SizePlannedEvent
    | SizeChangedEvent
    | SizeJudgedEvent
    | SizeKeptEvent
    | MemoryRaisedEvent
    | MemoryShortEvent
    | MachineShortEvent
)
"""All kinds of events of the feature."""
_decode = msgspec.json.Decoder(AnySizesEvent).decode


def read(events: Iterable[Event]) -> list[Event]:
    """Return the events of a job, with those of sizes as what they are."""
    return known_by(events, _decode)
