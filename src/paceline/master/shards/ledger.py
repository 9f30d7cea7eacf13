"""The shard ledger: which samples are to do, leased, or in the model.

A pure state machine over positions of shuffled order; `runtime.data` turns positions into records.
Shards are not stored. Per line there is a cursor (everything above it is fresh), what came back
from lost owners, the leases, and the done set, so a feed of 10^12 samples costs nothing before it
is read.

At every moment each sample below the cursor is in exactly one of: returned, one lease, done
(DESIGN, invariant 1; AntDT section V-C calls them TODO, DOING, DONE).
"""

from collections.abc import Iterable

from paceline.base.samples import Intervals, SampleSet, Span
from paceline.wire.messages import Feed, feed_of


class Line:
    """One line's fresh end and what came back to it."""

    __slots__ = ("cursor", "end", "epoch_len", "returned")

    def __init__(self, end: int, epoch_len: int) -> None:
        #: Positions below are granted, returned or done; those from here to ``end`` are fresh.
        self.cursor = 0
        #: How far the line is known to reach.
        self.end = end
        self.epoch_len = epoch_len
        self.returned = Intervals()

    def next(self, count: int) -> tuple[int, int] | None:
        """Fresh samples first; what came back is read at the end of the epoch."""
        at_epoch_end = self.epoch_len > 0 and self.cursor % self.epoch_len == 0
        if self.returned and (at_epoch_end or self.cursor >= self.end):
            start, stop = self.returned.edges[:2]
            return start, min(stop, start + count)
        if self.cursor >= self.end:
            return None
        stop = min(self.cursor + count, self.end)
        if self.epoch_len:
            stop = min(stop, (self.cursor // self.epoch_len + 1) * self.epoch_len)
        return self.cursor, stop

    def remove(self, start: int, stop: int) -> None:
        """These are to do no more; fresh ones before them count as returned."""
        self.returned.discard(start, stop)
        if self.cursor < stop:
            self.returned.add(self.cursor, start)
            self.cursor = stop


class Ledger:
    """All feeds of a job."""

    def __init__(self) -> None:
        self.feeds: dict[int, Feed] = {}
        self.lines: dict[int, Line] = {}
        self.leases: dict[int, SampleSet] = {}
        self.done = SampleSet()
        #: Streams whose source said that nothing more will come.
        self.finished: set[int] = set()

    # ------------------------------------------------------------------ feeds

    def open(self, feed: Feed) -> None:
        """Add a feed; of known length all is fresh, of a stream nothing yet."""
        self.feeds[feed.feed] = feed
        if feed.num_samples is not None:
            self.lines[feed.line()] = Line(feed.num_samples * feed.epochs, feed.num_samples)

    def extend(self, feed: int, ends: Iterable[tuple[int, int]], *, finished: bool = False) -> None:
        """A stream's partitions reach at least so far now."""
        for partition, end in ends:
            line = self.lines.setdefault(self.feeds[feed].line(partition), Line(0, 0))
            line.end = max(line.end, end)
        if finished:
            self.finished.add(feed)

    def is_complete(self, feed: int) -> bool:
        """Whether every sample of the feed is done."""
        if self.feeds[feed].num_samples is None and feed not in self.finished:
            return False
        return all(
            next(self.done.line(line).gaps(0, state.end), None) is None
            for line, state in self.lines.items()
            if feed_of(line) == feed
        )

    def total(self, feed: int) -> int | None:
        """Samples of all epochs; None while a stream is open."""
        definition = self.feeds[feed]
        if definition.num_samples is None:
            return None
        return definition.num_samples * definition.epochs

    # ------------------------------------------------------------------ leases

    def lease_size(self, inc: int, feed: int) -> int:
        """Samples of ``feed`` leased to ``inc`` and not known to be in the model."""
        lease = self.leases.get(inc)
        if lease is None:
            return 0
        return sum(len(found) for line, found in lease.lines.items() if feed_of(line) == feed)

    def pick(self, feed: int, count: int) -> list[Span]:
        """What an asynchronous grant of up to ``count`` samples would hold; takes nothing."""
        for line, state in self.lines.items():
            if feed_of(line) == feed and (found := state.next(count)) is not None:
                return [Span(line, *found)]
        return []

    def pick_steps(
        self, feed: int, *, step: int, urgent: bool, member: int, num_members: int, num_steps: int
    ) -> list[Span]:
        """What a synchronous grant would hold: this member's part of the next slices.

        Member i of n gets part i of each slice. ``urgent``: the worker has nothing left for the
        undecided ``step``; if its own part of that slice is gone it gets what others left there.
        """
        definition = self.feeds[feed]
        first, last = max(step, definition.first_step + 1), definition.last_step
        own: list[Span] = []
        for at in range(first, min(first + num_steps, last + 1)):
            whole = definition.slice_of(at)
            size = len(whole)
            low = whole.start + size * member // num_members
            high = whole.start + size * (member + 1) // num_members
            own += self._to_do(Span(whole.line, low, high))
        if urgent and first <= last:
            whole = definition.slice_of(first)
            if not any(span.start < whole.stop for span in own):
                left, share = self._to_do(whole), -(-len(whole) // num_members)
                own = [*_first(left, share), *own]
        return own

    def _to_do(self, span: Span) -> list[Span]:
        """The parts of a span that are neither leased nor done."""
        state = self.lines[span.line]
        found = [Span(span.line, *back) for back in state.returned.within(span.start, span.stop)]
        fresh = Span(span.line, max(span.start, state.cursor), span.stop)
        return [*found, fresh] if fresh.start < fresh.stop else found

    def grant(self, inc: int, spans: Iterable[Span]) -> None:
        """Lease exactly these spans, which must be to do."""
        for span in spans:
            self.lines[span.line].remove(span.start, span.stop)
            self.leases.setdefault(inc, SampleSet()).add(span)

    def commit(self, committed: Iterable[Span]) -> None:
        """These samples are in the model: leases shrink, DONE grows."""
        for span in committed:
            for new in self.done.missing(span):
                self.done.add(new)
                for lease in self.leases.values():
                    lease.subtract([new])

    def lose(self, inc: int, *, again: bool = True) -> None:
        """The owner is gone: the rest of its leases goes back, to the end of the epoch.

        ``again`` False (at-most-once): it counts as done, since it may be in the model.
        """
        for span in self.leases.pop(inc, SampleSet()):
            if again:
                self.lines[span.line].returned.add(span.start, span.stop)
            else:
                self.done.add(span)

    def restore(self, committed: Iterable[Span], *, again: bool = True) -> None:
        """A new epoch_no: leases are void, the ledger is the complement of this set.

        ``again`` False (at-most-once): what was ever granted is not granted again.
        """
        if not again:
            for inc in list(self.leases):
                self.lose(inc, again=False)
            return
        self.leases.clear()
        self.done = SampleSet(committed)
        for line, state in self.lines.items():
            state.returned = Intervals()
            for start, stop in self.done.line(line).gaps(0, state.cursor):
                state.returned.add(start, stop)


def _first(spans: list[Span], count: int) -> list[Span]:
    """The first ``count`` samples of a list of spans."""
    found: list[Span] = []
    for span in spans:
        stop = min(span.stop, span.start + count)
        if stop > span.start:
            found.append(Span(span.line, span.start, stop))
            count -= stop - span.start
    return found
