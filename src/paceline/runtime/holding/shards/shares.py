"""Shares of the members: of a step equal ones, of an evaluation batches in turn."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from paceline.base.samples import Span
from paceline.protocol.holding.group.division import Sharing
from paceline.runtime.data.reader import Reader
from paceline.runtime.data.work import Array, Work
from paceline.runtime.script.strategy import Evaluation, Results
from paceline.wire.messages.feeds import Feed, Slice
from paceline.wire.messages.group import Division


class Evenly(Sharing):
    """Equal shares; of a slice that cannot be divided so, all of it for everybody.

    The mean of equal gradients is the gradient: exact, for some work done more than once.
    """

    __slots__ = ()

    def runs(
        self, whole: Slice, num_members: int, division: Division, absent: Sequence[int] = ()
    ) -> list[range]:
        units = self.num_units(whole)
        if units % num_members or units < self._least(num_members) * num_members:
            return [range(units)] * num_members
        return super().runs(whole, num_members, division, absent)


def evaluate_in_turn(fn: Evaluation, feed: Feed, reader: Reader, rank: int, size: int) -> Results:
    """Evaluate a feed in rounds of one batch for each of ``size`` members.

    A member without a batch in the last round computes the last batch again, for nothing.
    """
    spans = _batches_of(feed)
    found: dict[str, list[Array]] = {}
    for first in range(0, len(spans), size):
        span = spans[min(first + rank, len(spans) - 1)]
        values = fn(reader.get(Work(feed.feed, (span,), len(span))), len(span))
        of_round = spans[first : first + size]
        for name, mine in sorted(values.items()):
            found.setdefault(name, []).extend(_all_gather(mine, of_round, size))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _batches_of(feed: Feed) -> list[Span]:
    """An evaluation's batches, in order."""
    total = feed.num_samples or 0
    starts = range(0, total, feed.batch_size)
    return [Span(feed.line(), start, min(start + feed.batch_size, total)) for start in starts]


def _all_gather(mine: Array, spans: Sequence[Span], size: int) -> list[Array]:
    """Gather what each member computed, ``[len(span), ...]``; as bytes: gloo lacks some dtypes."""
    longest = max(map(len, spans))
    padded = np.zeros((longest, *mine.shape[1:]), mine.dtype)
    padded[: len(mine)] = mine
    ours = torch.from_numpy(padded.reshape(-1).view(np.uint8))
    all_of_them = [torch.empty_like(ours) for _ in range(size)]
    dist.all_gather(all_of_them, ours)
    return [
        one.numpy().view(mine.dtype).reshape(padded.shape)[: len(span)]
        for one, span in zip(all_of_them, spans, strict=False)
    ]
