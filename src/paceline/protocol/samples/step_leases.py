"""The leases of a worker of servers, which knows in which step each sample may be computed.

A lease of a feed that is trained on in steps (BSP) reaches over several slices. The worker
may compute samples of the undecided step now, and loads samples of later steps in advance.
"""

import sys
from collections import deque
from collections.abc import Iterable, Iterator

from paceline.base.numbering import START, EpochNo, Inc, StepNo, step_after
from paceline.base.samples import SampleSet, Span, between, num_samples
from paceline.protocol.samples.leases import Ask, Leases
from paceline.wire.messages.feeds import Batching, Feed, Slice, feed_of
from paceline.wire.messages.node import FeedOpened, Grant, Recall


class StepLeases(Leases):
    """The leases of one incarnation, of which some may be of steps.

    Args:
        inc: the incarnation.
        synchronous: whether the job has steps; without them this is `Leases`.
    """

    def __init__(self, inc: Inc, *, synchronous: bool) -> None:
        self.synchronous = synchronous
        super().__init__(inc)

    def _reset(self) -> None:
        super()._reset()
        #: The step whose parameters the last pull brought.
        self.step = START
        #: What the step after it consists of, as servers say; None: they were not asked yet.
        self.slice: Slice | None = None
        #: Taken for the undecided step and not offered.
        self.taken = SampleSet()
        #: How to compute what is held, by position.
        self.batching: tuple[Batching, ...] = ()
        #: The newest step that the leader has said to be decided, while we compute for it.
        self.passed = 0

    # ------------------------------------------------------------------ from the master

    def begin(self, epoch_no: EpochNo, step: StepNo = START) -> list[Ask]:
        """Enter a newer epoch, whose model is that of ``step``; see `Leases.begin`."""
        wanted = self.request.feed if self.request else None
        self._reset()
        self.epoch_no, self.step = epoch_no, step
        return self.want(wanted) if wanted is not None else []

    def feed_opened(self, message: FeedOpened) -> None:
        """Take in an open feed; the slice of a newer feed to train on must be asked for."""
        if message.feed.feed not in self.feeds and message.feed.purpose == "train":
            self.slice = None
        super().feed_opened(message)

    def grant(self, message: Grant) -> bool:
        if not super().grant(message):
            return False
        if self.feeds[message.feed].purpose == "train":
            self.batching = message.batching
        return True

    def _recall(self, message: Recall) -> list[Ask]:
        """Give back some of what was not begun; of steps: ask for what comes instead.

        A contribution that is begun in several batches keeps what it may still get: alone it would
        wait for the rest of them.
        """
        feed = message.feed
        if self._slice(feed) is None:
            return super()._recall(message)
        held = SampleSet(self.lease.get(feed, ()))
        back = SampleSet(held.overlap(Span(self.feeds[feed].line(), message.start, sys.maxsize)))
        if self.taken and self.slice:
            back.subtract(self.slice)
        held.subtract(back)
        self.lease[feed] = deque(held)
        return [*self._give_back(back.spans()), *(self.want(feed) if back else [])]

    def leave_step(self) -> list[Ask]:
        """Give back what the lease has of the undecided step: its worker waits for that step.

        A has computed its share of a step, and evaluates in the body of its loop; B dies, and A is
        granted the rest of the step. A would wait for ever for what only A has. A contribution that
        is begun keeps what it may still get, as on a recall.
        """
        feed = self.in_training
        within = self._slice(feed.feed) if feed is not None else None
        if feed is None or not within or self.taken:
            return []
        held = SampleSet(self.lease.get(feed.feed, ()))
        back = SampleSet(part for span in within for part in held.overlap(span))
        held.subtract(back)
        self.lease[feed.feed] = deque(held)
        return self._give_back(back.spans())

    # ------------------------------------------------------------------ steps

    @property
    def in_training(self) -> Feed | None:
        """The feed whose slices steps consist of."""
        if not self.synchronous:
            return None
        feeds = [feed for feed in self.feeds.values() if feed.purpose == "train"]
        return max(feeds, key=lambda feed: feed.feed, default=None)

    def advance(self, step: StepNo, whole: Slice | None, left: Iterable[Span]) -> list[Ask]:
        """Learn that all steps up to this one are decided: give back what they did without.

        Args:
            step: of which all servers have the parameters.
            whole: what the next one consists of.
            left: what was offered, and is in none of them.
        """
        withdrawn = list(self.taken) if step > self.step else []
        self.step, self.slice = step, whole
        for span in (*left, *withdrawn):
            self._add(feed_of(span.line), (span,))
        self.taken.subtract(withdrawn)
        return self._give_back(self._remove_late())

    def _remove_late(self) -> tuple[Span, ...]:
        """Remove what the lease has of steps decided without it; that comes with others again."""
        feed, whole = self.in_training, self.slice
        if feed is None or not whole or not self.lease.get(feed.feed):
            return ()
        decided = Span(feed.line(), 0, feed.start_of(feed.rank(whole)))
        if self.lease[feed.feed][0].start >= decided.stop:
            return ()
        lease = SampleSet(self.lease[feed.feed])
        late = SampleSet(lease.overlap(decided))
        if late:
            lease.subtract(late)
            self.lease[feed.feed] = deque(lease)
        return late.spans()

    def place_of(self, feed: int) -> tuple[StepNo, Slice]:
        return step_after(self.step) if self.synchronous else START, self._slice(feed) or ()

    def _starves(self, feed: int) -> bool:
        """Whether nothing is left to take; a worker that has no slice may have a part of it.

        Left-outs are not granted ahead: a worker that has its own in hand leaves others' to them.
        """
        if self.taken and self.slice and not self.feeds[feed].is_in_order(self.slice):
            return False
        if self.slice is None and feed in self.lease and self._slice(feed) is not None:
            return not self.lease[feed]
        return super()._starves(feed)

    def reaches(self, feed: int, after: int) -> bool:
        """Whether the lease has samples of step + 1 + ``after`` or of a later one."""
        lease, within = self.lease.get(feed), self._slice(feed, after)
        if not lease or not within:
            return False
        return lease[-1].stop > within[0].start

    def _slice(self, feed: int, after: int = 0) -> Slice | None:
        """Return the slice of step + 1 + ``after``, unless short steps come between.

        None: the feed is not read in steps.
        """
        definition, whole = self.feeds[feed], self.slice
        if not self.synchronous or definition.purpose != "train":
            return None
        if not whole or whole[0].line != definition.line():
            return ()
        if not after:
            return whole
        number = definition.rank(whole) + after - (not definition.is_in_order(whole))
        return (definition.slice_no(number),) if number <= definition.num_slices else ()

    # ------------------------------------------------------------------ work

    def take(self, feed: int, count: int) -> tuple[Span, ...]:
        """Take samples; of steps only those of the undecided one's slice."""
        spans = super().take(feed, count)
        if self._slice(feed):
            self.taken.update(spans)
        return spans

    def put_back(self, feed: int, spans: tuple[Span, ...]) -> None:
        self.taken.subtract(spans)
        super().put_back(feed, spans)
        self._add(feed, ())

    def offered(self, spans: Iterable[Span]) -> None:
        """Note that what was taken is in a contribution now."""
        self.taken.subtract(spans)

    def peek(self, feed: int, count: int, after: int = 0) -> tuple[Span, ...]:
        """Return what `take` will return next (for step + 1 + ``after``), to load it ahead."""
        return self._next_spans(feed, count, after)

    def next_size(self, feed: int) -> int:
        """Samples of the next batch of a step at most."""
        if self.feeds[feed].blocks and (found := self.peek(feed, 1)):
            return self.feeds[feed].block_end(found[0].start) - found[0].start
        return self._how(self._slice(feed)).size_after(len(self.taken))

    def is_whole(self, feed: int) -> bool:
        """Whether what is taken and not offered is a whole contribution to a step."""
        how = self._how(self._slice(feed))
        ends = how.contribution and len(self.taken) % how.contribution == 0
        return bool(ends) or not self.has_work(feed)

    @property
    def may_be_left_out(self) -> bool:
        """Whether the undecided step may be decided without what is taken for it."""
        return bool(self.taken) and self._how(self.slice).short

    def step_batches(self, feed: int, after: int, limit: int) -> list[tuple[Span, ...]]:
        """Return the next batches of step + 1 + ``after``, at most ``limit``, as they come."""
        how, spans = self._how(self._slice(feed, after)), self.peek(feed, sys.maxsize, after)
        held = 0 if after else len(self.taken)
        at, total = 0, num_samples(spans)
        found: list[tuple[Span, ...]] = []
        blocks = self.feeds[feed].blocks
        while at < total and len(found) < limit:
            first = between(spans, at, at + 1)[0].start if blocks else 0
            size = (
                self.feeds[feed].block_end(first) - first if blocks else how.size_after(held + at)
            )
            found.append(tuple(between(spans, at, at + size)))
            at += size
        return found

    def _how(self, whole: Slice | None) -> Batching:
        """How the share of a slice is computed."""
        feed = self.in_training
        if feed is None or not whole:
            return Batching()
        start = feed.start_of(feed.rank(whole))
        held = [how for how in self.batching if how.start <= start]
        return held[-1] if held else Batching()

    def _add(self, feed: int, spans: Iterable[Span]) -> None:
        """Lengthen the lease; of steps it is kept by samples: the undecided one's come first."""
        super()._add(feed, spans)
        if self.synchronous:
            self.lease[feed] = deque(SampleSet(self.lease[feed]).spans())

    def _next_spans(self, feed: int, count: int, after: int = 0) -> tuple[Span, ...]:
        within = self._slice(feed, after) if after or self.passed <= self.step else ()
        lease: Iterable[Span] = self.lease.get(feed, ())
        if within is not None:
            lease = _common(lease, within)
        found = between(lease, 0, count)
        return tuple(sorted(found)) if self.synchronous else tuple(found)


def _common(lease: Iterable[Span], within: Slice) -> Iterator[Span]:
    """Return the part of a slice that a lease has; both are ordered by samples."""
    for span in lease:
        if not within or span.start >= within[-1].stop:
            return
        for part in within if span.stop > within[0].start else ():
            start, stop = max(span.start, part.start), min(span.stop, part.stop)
            if start < stop:
                yield Span(span.line, start, stop)
