"""Batches that are timed and not applied (`Profile`): which ones are due, and what they took.

Pure. The loop computes them before its own part of a step, with weight 0: the script's forward and
backward run as usual, nothing of them is summed, and no optimizer steps. What is measured is kept
for the life of the process, so an order that comes again is answered again.
"""

import math
from collections.abc import Sequence

from paceline.base.numbering import Inc
from paceline.base.samples import Span, between, num_samples
from paceline.wire.messages.group import ProfileBatches, Profiled

LEAST_S = 0.5
"""Seconds for which a size is measured, in more batches than were asked for if need be. A cpu quota
is for 10 to 100 ms at a time: a few batches that take less are throttled, or not, by chance."""


class MemberProfiling:
    """The profiled batches of one member."""

    def __init__(self, inc: Inc) -> None:
        self._inc = inc
        self._order: ProfileBatches | None = None
        self._times_s: list[float] = []
        self._known: dict[int, Profiled] = {}

    def asked(self, order: ProfileBatches) -> Profiled | None:
        """Take the newest order, in place of one not done; return the answer, if it is known."""
        known = self._known.get(order.size)
        if known is not None and known.batches >= order.batches:
            return known
        if order != self._order:
            self._order, self._times_s = order, []
        return None

    @property
    def due(self) -> tuple[int, int]:
        """Size and number of the batches that are still to be computed."""
        order = self._order
        if order is None:
            return 0, 0
        missing = order.batches - len(self._times_s)
        if missing <= 0:
            warm_s = _warm(self._times_s)
            mean_s = sum(warm_s) / len(warm_s)
            missing = min(order.batches, math.ceil((LEAST_S - sum(warm_s)) / mean_s))
        return order.size, missing

    def took(self, size: int, batch_s: float, peak_bytes: int) -> Profiled | None:
        """Note that a batch was computed; return the answer, if it was the last of its order.

        Args:
            size: of the batch.
            batch_s: since the one before was over, or its data ready.
            peak_bytes: the most memory that the process had since the first of its step.
        """
        order = self._order
        if order is None or order.size != size:
            return None  # another one has come meanwhile
        self._times_s.append(batch_s)
        warm_s = _warm(self._times_s)
        if len(self._times_s) < order.batches or sum(warm_s) < LEAST_S:
            return None
        done = self._known[size] = Profiled(
            inc=self._inc,
            size=size,
            batches=len(self._times_s),
            batch_s=sum(warm_s) / len(warm_s),
            peak_bytes=peak_bytes,
        )
        self._order, self._times_s = None, []
        return done


def _warm(times_s: Sequence[float]) -> Sequence[float]:
    """Leave out the first batch of a size, which finds neither memory nor kernels made for it."""
    return times_s[1:] or times_s


def samples_of(size: int, mine: Sequence[Span], whole: Sequence[Span]) -> tuple[Span, ...]:
    """Return so many samples of a step: our own first, then any, repeated if there are too few."""
    times = -(-size // num_samples(whole))
    return tuple(between([*mine, *(times * [*whole])], 0, size))
