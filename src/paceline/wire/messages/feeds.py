"""Feeds: what is read in which order, in which steps, and how a worker computes its share."""

import sys
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import msgspec

from paceline.base.samples import Intervals, Span, between

Slice = tuple[Span, ...]
"""Samples of which one synchronous step consists, in order."""


ScriptPlace = tuple[int, ...]
"""Place of a script in its course: loops over ``job.epochs`` that are over, the epoch in hand (-1:
in none), and the number of feeds opened there; in the body of a loop also the step, and their
number in the body."""


BEHIND = 1 << 30
"""Numbers from here on are of feeds that one worker alone opens, behind the end of the others."""


def is_in_epochs(place: ScriptPlace) -> bool:
    """Whether a place lies in a loop over ``job.epochs``."""
    return len(place) > 1 and place[1] >= 0


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """One call of ``job.batches`` or ``job.evaluate``: a source, read for some epochs.

    ``num_samples`` counts one epoch; None: it is not known in advance, and the feed is read by
    partition as far as these reach. ``first_step`` is the step before the feed's first slice
    (synchronous modes); the master fills it in.
    """

    feed: int
    purpose: str
    """``train`` or ``evaluate``."""
    num_samples: int | None
    epochs: int
    batch_size: int
    """Samples of a slice."""
    shard_size: int
    shuffle: bool
    seed: int
    first_step: int = 0
    window_shards: int = 0
    """Neighbouring shards that are mixed with each other; 0: all of the epoch."""
    per_worker: bool = False
    """Whether a step is as many slices as workers do it: the global batch follows their number."""
    blocks: int = 0
    """On servers: batches in which a whole slice is computed, by any workers; 0: it is not divided
    beforehand."""
    contents: str = ""
    """Number, size and digest of the files of its dataset; empty: not known, and so not
    compared."""
    place: ScriptPlace = ()
    """Place of the script where it was opened, by which workers know it; empty: they know its
    number."""
    of_epochs: int = 0
    """Epochs of the loop over ``job.epochs`` that it lies in; 0: in none, or not known."""
    site: str = ""
    """The script's lines from which the first worker opened it, outermost first; empty: unknown."""
    turn: int = 0
    """The number of the pass over its DataLoader, if it is one."""
    calls: tuple[int, ...] = ()
    """Steps of each scheduler between loops that the script had taken when its epoch began."""
    ends: tuple[int, ...] = ()
    """Ends of slices of several sizes, none larger than ``batch_size``, in the one epoch; empty:
    all but the last of an epoch have ``batch_size`` samples."""
    training: int = 0
    """Number of the script's training that it belongs to: each ``job.prepare`` begins one."""
    first_feed: int = 0
    """Number of the first feed of that training, whose orders are those of a job of its own; the
    master fills it in."""
    after: int | None = None
    """The step with which the script left the training before, within a loop over batches; None:
    it left none of them, or there is no training before."""

    def numbered(self, number: int, first: int = 0) -> "Feed":
        """The same under this number. Another loop over the same data has another order.

        Args:
            number: of the feed.
            first: see `first_feed`.
        """
        seed = self.seed + (number - first) - (self.feed - self.first_feed)
        return msgspec.structs.replace(self, feed=number, first_feed=first, seed=seed)

    def global_batch(self, workers: int) -> int:
        """Samples of a step that so many workers do, if nothing is missing and no epoch ends."""
        return self.batch_size * workers if self.per_worker else self.batch_size

    def line(self, partition: int = 0) -> int:
        """The line of a partition; a feed of known length has the one partition 0."""
        return self.feed * LINES_PER_FEED + partition

    @property
    def steps_per_epoch(self) -> int:
        """Slices of one epoch; the last may be smaller. 0: not known (a stream)."""
        if self.ends:
            return len(self.ends)
        return -(-(self.num_samples or 0) // self.batch_size)

    def steps_in(self, num_samples: int) -> int:
        """Global batches in so many samples of the feed: steps of a schedule.

        The last batch of an epoch, which may be smaller, counts when the epoch is complete.
        """
        if self.ends:
            return bisect_right(self.ends, num_samples)
        if not self.num_samples:
            return num_samples // self.batch_size
        epochs, rest = divmod(num_samples, self.num_samples)
        return epochs * self.steps_per_epoch + rest // self.batch_size

    def steps_between(self, before: int, after: int, global_batch: int) -> int:
        """Global batches that a step completes, which is of one epoch; 1 if it is whole.

        ``per_worker``: the size of a global batch may change within an epoch, so what counts is how
        many of the present size the rest of the epoch has, before and after.

        Args:
            before: samples of the feed in the model before the step.
            after: and after it.
            global_batch: samples of a whole step of those that do it.
        """
        if not self.per_worker:
            return self.steps_in(after) - self.steps_in(before)
        size = self.num_samples or 1
        end = (before // size + 1) * size
        had, has = (-(-(end - held) // global_batch) for held in (before, after))
        return had - has

    @property
    def last_step(self) -> int:
        """The step of the feed's last slice, if every step is one whole slice."""
        return self.first_step + self.num_slices

    @property
    def num_slices(self) -> int:
        """Slices of all epochs; 0: not known."""
        return self.steps_per_epoch * self.epochs

    def slice_no(self, number: int) -> Span:
        """Slice ``number`` (1 ... num_slices) of the feed's order, as positions."""
        if self.ends:
            start = self.ends[number - 2] if number > 1 else 0
            return Span(self.line(), start, self.ends[number - 1])
        epoch, k = divmod(number - 1, self.steps_per_epoch)
        size = self.num_samples or 0
        start = k * self.batch_size
        stop = min(start + self.batch_size, size)
        return Span(self.line(), epoch * size + start, epoch * size + stop)

    def slice_of(self, step: int) -> Span:
        """Return the samples of a step, if every step before it is one whole slice."""
        return self.slice_no(step - self.first_step)

    def number_at(self, position: int) -> int:
        """The number of the slice that holds this position."""
        if self.ends:
            return bisect_right(self.ends, position) + 1
        epoch, offset = divmod(position, self.num_samples or 1)
        return epoch * self.steps_per_epoch + offset // self.batch_size + 1

    def block_end(self, position: int) -> int:
        """Where the block ends that holds this position; a smaller slice has fewer blocks."""
        span = self.slice_no(self.number_at(position))
        size = len(span)
        units = min(size, -(-self.blocks * size // self.batch_size))
        number = -(-(position - span.start + 1) * units // size)
        return span.start + size * number // units

    def next_slice(self, done: Intervals, workers: int = 1) -> Slice:
        """Return the samples of the step that follows a model with these samples of the feed.

        The slices come in order; after the last one of an epoch what short steps have left out of
        it, in slices of the same size, or, of several sizes, each of one slice. ``per_worker``: as
        many of them, of one epoch, as ``workers`` do the step. Empty: the model has all.
        """
        found = self._next_one(done)
        if not self.per_worker or not found:
            return found
        size, whole, upto = self.num_samples or 1, list(found), Intervals(done.edges)
        for _ in range(workers - 1):
            for span in found:
                upto.add(span.start, span.stop)
            found = self._next_one(upto)
            if not found or found[0].start // size != whole[0].start // size:
                break
            whole += found
        return tuple(_joined(whole))

    def _next_one(self, done: Intervals) -> Slice:
        size = self.num_samples or 0
        number = self.number_at(done.edges[-1] - 1) if done else 0
        if number and number % self.steps_per_epoch == 0:
            end = number // self.steps_per_epoch * size
            first = next(done.gaps(0, end), None)
            if first is not None and self.ends:
                end = self.slice_no(self.number_at(first[0])).stop
            spans = (Span(self.line(), start, stop) for start, stop in done.gaps(0, end))
            if found := between(spans, 0, self.batch_size):
                return tuple(found)
        return (self.slice_no(number + 1),) if number < self.num_slices else ()

    def is_in_order(self, whole: Slice) -> bool:
        """Whether this is a slice of the order, and none of left-outs."""
        return whole == (self.slice_no(self.number_at(whole[0].start)),)

    def rank(self, whole: Slice) -> int:
        """The number of a slice in order; of one of left-outs: that of the next one in order."""
        number = self.number_at(whole[0].start)
        if self.is_in_order(whole):
            return number
        return -(-number // self.steps_per_epoch) * self.steps_per_epoch + 1

    def start_of(self, number: int) -> int:
        """Where slice ``number`` begins; beyond the last one: the end."""
        if number > self.num_slices:
            return (self.num_samples or 0) * self.epochs
        return self.slice_no(number).start


def _joined(spans: list[Span]) -> Iterator[Span]:
    """The same, but one span for several that follow each other."""
    start = spans[0]
    for one, after in pairwise([*spans, None]):
        assert one is not None
        if after is None or after.start != one.stop:
            yield Span(start.line, start.start, one.stop)
            start = after or start


class Underway(NamedTuple):
    """How far a job is in a feed."""

    num_samples: int
    """Samples of one epoch."""
    epochs: int
    at: int
    """The first position that nobody has, in all epochs."""

    @property
    def is_over(self) -> bool:
        """Whether somebody has had all of it."""
        return self.at >= self.num_samples * self.epochs


class Batching(msgspec.Struct, frozen=True, array_like=True):
    """How a worker computes its share of the steps from position ``start`` of their feed on.

    A contribution is computed in batches whose gradients are added up.
    """

    start: int = 0
    batch_size: int = 0
    """Samples of a batch at most; 0: all of the contribution."""
    contribution: int = 0
    """Samples of a contribution; 0: all of the share."""
    short: bool = False
    """A step may be decided without it, so it is worth while to look out for that."""

    def size_after(self, held: int) -> int:
        """Samples of the batch that follows so many of the contributions of a step."""
        size, whole = self.batch_size or sys.maxsize, self.contribution
        return min(size, whole - held % whole) if whole else size


class Rate(msgspec.Struct, frozen=True, array_like=True):
    """ADJUST_LR: what the learning rate of a worker's contributions is multiplied with."""

    plan: int = 0
    """A newer one replaces it."""
    factor: float = 1.0
    by_staleness: bool = False
    """True: the rate is also multiplied with 1 / (1 + updates since its parameters were pulled)."""


LINES_PER_FEED = 1 << 20


class SourceLine(msgspec.Struct, frozen=True, array_like=True):
    """Line at its source: a partition, which its name names in every process.

    ``num_samples`` counts one epoch; None: the partition may still grow, and all positions so far
    are of its first epoch.
    """

    line: int
    name: str
    num_samples: int | None


def feed_of(line: int) -> int:
    """The feed that a line belongs to."""
    return line // LINES_PER_FEED
