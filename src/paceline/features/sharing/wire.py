"""Sharing of devices: modes of a gate, decisions in words, messages, and the event."""

import enum
from typing import Literal, assert_never

import msgspec

from paceline.base.sizes import size_of
from paceline.wire.events.base import FeatureEvent
from paceline.wire.messages.base import Message

FEATURE = "sharing"
"""Name of the feature, as its entry point has it."""


class GateMode(enum.IntEnum):
    """Effect of a gate on its job."""

    OFF = 0
    DUTY = 1
    """The job uses a part of the device's time: the duty."""
    GAP = 2
    """The job uses its duty, and only while the guaranteed job is idle, as far as it can wait for
    that."""
    PAUSE = 3
    """The job waits."""


SharingCause = Literal[
    "arrival", "newcomer", "steady", "measured", "within", "over", "harm", "unstable", "regime",
    "again", "gaps", "departure", "memory",
]  # fmt: skip
"""Reasons for a decision of the device coordinator; memory: that has a cause of its own."""
MemoryCause = Literal[
    "alone", "arrival", "squeeze", "spill", "room", "unused", "climb", "worse", "no room", "return",
]  # fmt: skip
"""Reasons for another limit of a job's memory."""


class MemoryLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limit of what a worker may use of a device's memory from now on, and why."""

    worker: str
    """Job and node of the worker: ``job/worker-0``."""
    limit_bytes: int | None = None
    """Limit in bytes; None: there is none."""
    cause: MemoryCause
    seen_bytes: int = 0
    """Bytes that the cause is about. Spill, room, no room: what was spilled in a mini-batch.
    Unused: what was used at most. Return: what the worker needs at least."""
    by: str = ""
    """The worker whose memory is cared for, if it is another one."""
    room_bytes: int = 0
    """Bytes of the device's memory."""

    @property
    def allowed(self) -> str:
        """The limit in words."""
        if self.cause == "no room":
            return "ends, and starts again when its memory has room"
        if self.limit_bytes is None:
            return "no limit of memory"
        return f"{size_of(self.limit_bytes)} of {size_of(self.room_bytes)} of memory"

    @property
    def why(self) -> str:  # noqa: C901
        """The cause in words."""
        other, seen = self.by or "it", size_of(self.seen_bytes)
        match self.cause:
            case "alone":
                return "no other job shares the device"
            case "arrival":
                return "jobs have come to share the device, or are not steady yet"
            case "squeeze":
                return f"{other} is there, and does not run steadily yet"
            case "spill":
                return f"{other} found no room for {seen} in a mini-batch, and is guaranteed"
            case "room":
                return f"it found no room for {seen} in a mini-batch, and there is some"
            case "unused":
                return f"it used {seen} at most for a while"
            case "climb":
                return f"tried for the sum of speeds, with {other}"
            case "worse":
                return f"the sum of speeds did not rise, with {other}"
            case "no room":
                return (
                    f"{other} is guaranteed, and found no room for {seen} in a mini-batch, though "
                    "all others have their least"
                )
            case "return":
                return f"there is room for the {seen} that it needs"
            case _:
                assert_never(self.cause)


class SharingDecision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Decision on what the opportunistic jobs of a device may do from now on, and why."""

    cause: SharingCause
    mode: GateMode
    duty: float = 1.0
    """The part of the device's time that each of them may use."""
    guaranteed: str = ""
    """The job whose time is kept; empty: there is none."""
    num_others: int = 0
    """Number of opportunistic jobs."""
    step_s: float = 0.0
    """Seconds that a step of the guaranteed job took last."""
    alone_s: float = 0.0
    """Seconds that it takes while all others wait; 0: not measured."""
    budget: float = 0.0
    """Part by which a step may take longer than alone; 0.03: 3 %."""
    memory: MemoryLimit | None = None
    """Change of a worker's limit, if the cause is memory; mode and duty are as before."""

    @property
    def loss(self) -> float:
        """Return the part by which a step takes longer than alone."""
        return self.step_s / self.alone_s - 1.0 if self.alone_s else 0.0

    @property
    def allowed(self) -> str:
        """Words for what the opportunistic jobs may do."""
        if self.memory is not None:
            return f"{self.memory.worker} {self.memory.allowed}"
        match self.mode:
            case GateMode.OFF:
                return "no limit"
            case GateMode.DUTY:
                return f"{self.duty:.0%} of the device"
            case GateMode.GAP:
                return f"{self.duty:.0%} of the device, in the gaps"
            case GateMode.PAUSE:
                return "paused"
            case _:
                assert_never(self.mode)

    @property
    def why(self) -> str:  # noqa: C901
        """The cause in words."""
        name, alone = self.guaranteed, f"{self.alone_s * 1e3:.3g} ms alone"
        now = (
            f"a step of {name} takes {self.step_s * 1e3:.3g} ms ({alone}, {self.loss:+.1%}, "
            f"budget {self.budget:.0%})"
        )
        match self.cause:
            case "arrival":
                return f"{name} is there, and does not run steadily yet"
            case "newcomer":
                return f"another job has come to share what {name} leaves"
            case "steady":
                return f"{name} runs steadily: it is measured alone"
            case "measured":
                return f"a step of {name} takes {alone}"
            case "within" | "over" | "harm":
                return now
            case "unstable":
                return f"steps of {name} vary: nothing is raised"
            case "regime":
                return f"{now}, which sharing does not explain: it is measured alone again"
            case "again":
                return f"{name} was measured long ago: it is measured alone again"
            case "gaps":
                gap = "says when it is idle" if self.mode is GateMode.GAP else "no longer says so"
                return f"{name} {gap}"
            case "departure":
                return "no guaranteed job shares the device"
            case "memory":
                return self.memory.why if self.memory is not None else ""
            case _:
                assert_never(self.cause)


class SharingTold(Message, frozen=True):
    """agent -> master: what was decided about the jobs of a device that its node shares."""

    decision: SharingDecision


class UpgradeNode(Message, frozen=True):
    """master -> agent: your job is the guaranteed one of its device; sent at each reconnect."""


class UpgradeShare(Message, frozen=True):
    """Call: make the job the guaranteed one of the devices that it shares, for good.

    Answer: whether it shares any.
    """


class SharingEvent(FeatureEvent, frozen=True):
    """Another set of jobs shares the device, or the guaranteed one has changed."""

    feature_name = FEATURE
    device: str
    decision: SharingDecision

    sentence_words = "{0.node} shares {0.clause}"

    @property
    def clause(self) -> str:
        told = self.decision
        return f"{self.device}: {told.why}; opportunistic jobs: {told.allowed}"
