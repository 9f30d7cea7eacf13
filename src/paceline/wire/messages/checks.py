"""Abilities of a node, as its check has measured them before the first step."""

import msgspec

from paceline.wire.messages.base import LifeMessage


class Link(msgspec.Struct, frozen=True, array_like=True):
    """The connection to a peer, both ways at once: bytes per second each way, and round trip, s."""

    node: str
    bytes_per_s: float
    rtt_s: float


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


class Checked(LifeMessage, frozen=True):
    """worker -> master: what its node can do; resent until `CheckKept`."""

    speed: NodeSpeed | None = None
    error: str = ""
    """Why it, or a part of it, is not known."""


class CheckKept(LifeMessage, frozen=True):
    """master -> worker: its `Checked` is kept."""
