"""Division of a step's samples among members, and into batches: the same in all of them."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from paceline.base.samples import LEAST, Span, between, merged, num_samples
from paceline.wire.messages.feeds import Slice
from paceline.wire.messages.group import Division


class Sharing(NamedTuple):
    """Shares of any slice, as runs of its *units*.

    ``blocks``: of a whole batch these are so many blocks of samples, however many members there
    are, each a batch of its own; 0: single samples.
    ``per_worker``: ``batch_size`` is of each member.
    """

    batch_size: int
    """Samples of a whole batch, or of each member's with ``per_worker``."""
    blocks: int = 0
    per_worker: bool = False

    def num_units(self, whole: Slice) -> int:
        """Return the units of a slice: a smaller one has fewer blocks, of which none is larger."""
        size = num_samples(whole)
        if not (self.blocks and size):
            return size
        return min(size, -(-self.blocks * size // self.batch_size))

    def runs(
        self, whole: Slice, num_members: int, division: Division, absent: Sequence[int] = ()
    ) -> list[range]:
        """The units of each member, side by side; those of ``absent`` ranks have none.

        Where a batch has enough for all, nobody gets a single sample, also of a slice that is
        smaller, but for one of one sample: then fewer members compute it.
        """
        sizes = [part.size for part in division.parts] or [1] * num_members
        sizes = [0 if rank in absent else size for rank, size in enumerate(sizes)]
        units, total = self.num_units(whole), sum(sizes)
        edges = [units * edge // total for edge in accumulate(sizes, initial=0)]
        if self._least(sum(map(bool, sizes))) == LEAST:
            edges = merged(edges, LEAST)
        return [range(low, high) for low, high in pairwise(edges)]

    def _least(self, num_sharing: int) -> int:
        """So many samples a batch has at least, if its slice has as many."""
        each = self.batch_size if self.per_worker else self.batch_size // max(num_sharing, 1)
        return LEAST if each >= LEAST and not self.blocks else 1

    def stand_in(self, whole: Slice) -> range:
        """Return the units that a member without any computes instead, and which do not count."""
        return range(1 if self.blocks else self.num_units(whole))

    def samples(self, whole: Slice, run: range) -> list[Span]:
        """The samples of a run."""
        size, units = num_samples(whole), self.num_units(whole)
        return between(whole, size * run.start // units, size * run.stop // units) if run else []

    def batches(self, whole: Slice, run: range, accumulation: int) -> list[Slice]:
        """The same in batches; by samples in at most ``accumulation`` of them."""
        if self.blocks:
            return [tuple(self.samples(whole, range(unit, unit + 1))) for unit in run]
        few = self.batch_size < LEAST * accumulation
        count = min(accumulation, len(run) if few else max(len(run) // LEAST, 1)) if run else 0
        edges = [run.start + len(run) * k // count for k in range(count + 1)] if run else []
        return [tuple(between(whole, low, high)) for low, high in pairwise(edges)]
