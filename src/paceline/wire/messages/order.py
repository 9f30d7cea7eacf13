"""Entries of the order that the leader decides and all servers follow, and what it is allowed."""

from typing import NamedTuple

import msgspec

from paceline.base.numbering import START, CutNo, Inc, StepNo
from paceline.wire.messages.base import EpochMessage, Message, ServerMap


class Included(msgspec.Struct, frozen=True, array_like=True):
    """All contributions of ``inc`` up to ``seq`` (BSP: those tagged with the entry's step)."""

    inc: Inc
    seq: int


class Update(Message, frozen=True):
    """Apply these contributions; ``step`` > 0: as one synchronous step."""

    included: tuple[Included, ...]
    step: StepNo = START


class Cut(Message, frozen=True):
    """Copy the state at this position."""

    cut_no: CutNo


class Lacking(NamedTuple):
    """Samples that a step may lack when it is decided."""

    left_out: int = 0
    """Most samples that a step may lack at once."""
    late: int = 0
    """Most samples that a step may lack when no more have been missing for the grace."""
    grace_s: float = 0.0
    of: int = 0
    """Global batch that these numbers are of, if it follows the workers."""

    def of_slice(self, size: int, batch_size: int) -> "Lacking":
        """Scale to a slice smaller than the global batch; never all of it."""
        whole = self.of or batch_size
        left_out, late = (min(n * size // whole, size - 1) for n in (self.left_out, self.late))
        return Lacking(left_out, late, self.grace_s)


class Allow(EpochMessage, frozen=True):
    """master -> leader: from ``step`` on decide a slice while a share of it is missing.

    ``left_out`` samples of ``of``, the global batch, or ``late`` when no more have been missing for
    ``grace_s``; of a smaller slice as much less.
    """

    no: int
    """Number of the plan; a newer one replaces it."""
    step: StepNo
    left_out: int
    of: int
    late: int = 0
    grace_s: float = 0.0


class Remap(Message, frozen=True):
    """The map from here on. With copies: owners set these buckets aside and send them.

    ``fenced``, ``clocks`` (inc, clock, base) and ``allowed`` are what a next leader goes on from.
    """

    map: ServerMap
    fenced: tuple[Inc, ...] = ()
    clocks: tuple[tuple[Inc, int, int], ...] = ()
    allowed: tuple[Allow, ...] = ()


Entry = Update | Cut | Remap
