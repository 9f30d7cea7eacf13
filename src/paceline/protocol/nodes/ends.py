"""How an agent has ended, and what that says about its node: in a closed set of kinds.

A platform knows more than an exit code: that it took the place away, that memory was short, that
the machine is gone. `paceline.protocol.nodes.exits` judges the end of a training process with it.
"""

import signal as signals
from enum import StrEnum

import msgspec


class EndKind(StrEnum):
    """Cause of an agent's end, as far as its platform knows it."""

    OOM = "oom"
    """The kernel, or the platform, ended it since memory was short."""
    EVICTED = "evicted"
    """The platform took its place away, to use it otherwise."""
    PREEMPTED = "preempted"
    """The platform announced that the machine goes away, as a spot machine does."""
    NODE_LOST = "node_lost"
    """The platform calls its machine dead."""
    IMAGE = "image"
    """The image that it was to run cannot be had."""
    EXIT = "exit"
    """It ended by itself, or somebody ended it."""


TAKEN_AWAY = frozenset({EndKind.EVICTED, EndKind.PREEMPTED, EndKind.NODE_LOST})
"""Kinds of ends that are no fault of the node: they never cost a restart."""
_WORDS = {
    EndKind.OOM: "out of memory",
    EndKind.EVICTED: "the platform took its place away",
    EndKind.PREEMPTED: "its machine was taken away",
    EndKind.NODE_LOST: "its machine is lost",
    EndKind.IMAGE: "its image cannot be had",
}


class AgentEnd(msgspec.Struct, frozen=True, kw_only=True):
    """End of an agent, as its platform saw it."""

    code: int | None = None
    """Exit code; None: a signal ended it, or nobody saw how."""
    signal: int | None = None
    kind: EndKind = EndKind.EXIT
    why: str = ""
    """Its own last words, or those of the platform."""
    whole: bool = False
    """Whether all that ran of the node has ended with it, as in a container."""

    @property
    def words(self) -> str:
        """The end in words: its cause, as far as it is known; empty: nobody saw how."""
        said = _WORDS.get(self.kind, "")
        return ": ".join(filter(None, (said, self.why or self._how)))

    @property
    def _how(self) -> str:
        if self.signal is not None:
            known = self.signal in signals.valid_signals()
            return f"signal {signals.Signals(self.signal).name if known else self.signal}"
        return "" if self.code is None else f"exit code {self.code}"


def end_of(code: int | None, why: str = "", *, oom_kills: int = 0) -> AgentEnd:
    """Return the end of an agent's process.

    Args:
        code: as `subprocess` has it: below 0, a signal; None: nobody saw it.
        why: its last words.
        oom_kills: processes that the kernel killed for memory while it ran.
    """
    number = -code if code is not None and code < 0 else None
    for_memory = number == signals.SIGKILL and oom_kills > 0
    kind = EndKind.OOM if for_memory else EndKind.EXIT
    return AgentEnd(code=code if number is None else None, signal=number, kind=kind, why=why)
