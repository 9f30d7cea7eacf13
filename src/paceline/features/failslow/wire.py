"""Messages and records of fail-slow: checks of nodes, and the watch over scripts."""

import msgspec

from paceline.base.numbering import Inc
from paceline.features.failslow.call_ring import RingContents
from paceline.protocol.records import Record
from paceline.wire.messages.base import LifeMessage, Link, Message

FEATURE = "failslow"
"""Name of the feature, as its entry point has it."""

# ------------------------------------------------------------------ checks of nodes


class NodeSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """One node, measured under the limits of its training process."""

    device: str = "cpu"
    """Torch's device that multiplied and copied."""
    threads: int
    """Number of torch's threads."""
    matmul_flops: float
    """Floating point operations of a product of float32 matrices, per second that it ran."""
    copy_bytes_per_s: float
    """Bytes read and written by a copy in the device's memory, per second that it ran."""
    cpu_share: float = 1.0
    """Part of the time that the threads ran meanwhile: others, or a quota, had the rest. 1 where
    the device is no CPU."""
    cpu_quota: float | None = None
    """Cores that its control groups allow; None: all of the machine."""
    links: tuple[Link, ...] = ()
    """All-reduce: to the peers that it was paired with. On servers: to each that tcp leads to."""

    def with_links(self, links: tuple[Link, ...]) -> "NodeSpeed":
        """The same, with what its links carry."""
        return msgspec.structs.replace(self, links=links)


class CheckNode(Message, frozen=True):
    """master -> worker, before its script runs: measure your node before the first step."""


class Checked(LifeMessage, frozen=True):
    """worker -> master: what its node can do; resent until `CheckKept`."""

    speed: NodeSpeed | None = None
    error: str = ""
    """Why it, or a part of it, is not known."""


class CheckKept(Message, frozen=True):
    """master -> worker: its `Checked` is kept."""


class NodeChecked(Record, frozen=True):
    """Record: a node's check; replaces an earlier one."""

    node: str
    speed: NodeSpeed


# ------------------------------------------------------------------ the watch over scripts


class MeetAt(LifeMessage, frozen=True):
    """master -> process: wait for `Measure` or `GoOn` when this step is done.

    Of a meeting that is over, or of a step that is past: the process says so, and does not wait.
    """

    meeting: int
    """No two meetings of a job have the same number."""
    step: int


class AtMeeting(LifeMessage, frozen=True):
    """process -> master: it has done this step, and waits; ``late``: it does not."""

    meeting: int
    step: int
    late: bool = False


class Measure(LifeMessage, frozen=True):
    """master -> process: all have come; measure what you compute, and the links of these pairs."""

    meeting: int
    names: tuple[str, ...]
    """Rank -> node."""
    passes: tuple[tuple[tuple[int, int], ...], ...]
    """Pairs of ranks, no rank twice in a pass; the lower one first."""


class RankMeasured(LifeMessage, frozen=True):
    """process -> master: what it has measured, or why nothing; then it waits for `GoOn`."""

    meeting: int
    speed: NodeSpeed | None = None
    error: str = ""


class GoOn(LifeMessage, frozen=True):
    """master -> process: train on."""

    meeting: int


class TellCalls(Message, frozen=True):
    """master -> agent: which collective calls its process has noted since this step."""

    inc: Inc
    """Life of the process that is meant."""
    asked: int
    """Running number of the question; a new one replaces it."""
    from_step: int


class CallsTold(Message, frozen=True):
    """agent -> master: those that its ring still has, the newest `MOST_CALLS` at most."""

    node: str
    inc: Inc
    asked: int
    noted: RingContents


ToRank = CheckNode | CheckKept | MeetAt | Measure | GoOn
"""Messages of the master to a process."""
