"""The leases of one worker as a pure state machine: what it asks for, holds and gives back.

Events are messages of the master and the training loop's own acts (`want`, `take`, `put_back`);
methods return messages for the master. A member of a group uses this class as it is. A worker of
servers uses `StepLeases`, which knows steps, within `WorkerState`.
"""

import sys
from collections import deque
from collections.abc import Iterable, Mapping

from paceline.base.numbering import NO_EPOCH, START, EpochNo, Inc, StepNo
from paceline.base.samples import SampleSet, Span, between, num_samples
from paceline.wire.messages.feeds import BEHIND, Feed, Slice, SourceLine, feed_of
from paceline.wire.messages.node import (
    FeedOpened,
    GiveBack,
    GivenBack,
    Grant,
    LeaseRequest,
    Recall,
)

NOTHING: Mapping[str, int] = {}

Ask = LeaseRequest | GiveBack
"""A message about leases for the master."""


class Leases:
    """The leases of one worker incarnation."""

    def __init__(self, inc: Inc) -> None:
        self.inc = inc
        self.epoch_no = NO_EPOCH
        #: The version of the servers' map that this worker knows; 0: none.
        self.map_version = 0
        self.feeds: dict[int, Feed] = {}
        #: Feeds of unknown length: what each line is at its source.
        self.lines: dict[int, SourceLine] = {}
        #: Feed -> partition -> how far the master is known to know that it reaches.
        self.told: dict[int, dict[str, int]] = {}
        #: Feed -> samples of a batch, where the newest grant said it.
        self.batch_sizes: dict[int, int] = {}
        #: Samples in the model when the first feed to train on was opened; -1: none was.
        self.since = -1
        #: Feeds that ended before all of them was done: see `Grant`.
        self.left_feeds: set[int] = set()
        self._reset()

    def _reset(self) -> None:
        #: Granted and not taken, per feed, in the order of the grants.
        self.lease: dict[int, deque[Span]] = {}
        #: The number of the newest request that was granted.
        self.last_n = 0
        self.request: LeaseRequest | None = None
        #: The ends that every version of the open request holds.
        self.telling: tuple[tuple[str, int], ...] = ()
        #: Feeds of which nothing more is granted. Those behind the end of a job stay so.
        self.left_feeds = {feed for feed in self.left_feeds if feed >= BEHIND}
        self.ended: set[int] = set(self.left_feeds)
        #: Forgotten, and not known to be journalled, by number.
        self.giving_back: dict[int, tuple[Span, ...]] = {}
        self.last_r = 0
        #: At-least-once: what is in the model and not known to the master.
        self.handled = SampleSet()

    # ------------------------------------------------------------------ from the master

    def begin(self, epoch_no: EpochNo) -> list[Ask]:
        """Enter a newer epoch: all leases are void, and an open request is made again."""
        wanted = self.request.feed if self.request else None
        self._reset()
        self.epoch_no = epoch_no
        return self.want(wanted) if wanted is not None else []

    def feed_opened(self, message: FeedOpened) -> None:
        """Learn a feed as all workers read it; the same one again changes nothing."""
        self.feeds.setdefault(message.feed.feed, message.feed)
        if message.feed.purpose == "train" and self.since < 0:
            self.since = message.begun
        if message.left:
            self.ended.add(message.feed.feed)
            self.left_feeds.add(message.feed.feed)

    def opened(self, feed: Feed) -> Feed | None:
        """The feed at this place of the script as all workers read it; None: not known yet."""
        if not feed.place:
            return self.feeds.get(feed.feed)
        for one in self.feeds.values():
            if one.place == feed.place or (not one.place and one.feed == feed.feed):
                return one
        return None

    def grant(self, message: Grant) -> bool:
        """Take the answer to the open request, once; whether this is it."""
        request = self.request
        if message.epoch_no != self.epoch_no or request is None or message.n != request.n:
            return False
        self.request = None
        self.last_n = message.n
        self.handled.subtract(request.handled)
        self.told.setdefault(message.feed, {}).update(self.telling)
        self.lines.update({line.line: line for line in message.lines})
        self._add(message.feed, message.spans)
        if message.batch_size:
            self.batch_sizes[message.feed] = message.batch_size
        if message.end:
            self.ended.add(message.feed)
        if message.left:
            self.left_feeds.add(message.feed)
        return True

    def recalled(self, message: Recall) -> list[Ask]:
        """Give back some of what was not begun."""
        if message.epoch_no != self.epoch_no or message.n != self.last_n:
            return []
        return self._recall(message)

    def _recall(self, message: Recall) -> list[Ask]:
        lease = self.lease.get(message.feed, ())
        self.lease[message.feed] = deque(between(lease, 0, message.keep))
        return self._give_back(tuple(between(lease, message.keep, sys.maxsize)))

    def _give_back(self, spans: tuple[Span, ...]) -> list[Ask]:
        if not spans:
            return []
        self.last_r += 1
        self.giving_back[self.last_r] = spans
        return [self._give_back_message(self.last_r)]

    def _give_back_message(self, r: int) -> GiveBack:
        spans = self.giving_back[r]
        return GiveBack(epoch_no=self.epoch_no, inc=self.inc, r=r, spans=spans)

    def given_back(self, message: GivenBack) -> None:
        """Forget what the master has journalled as given back: it is others' now."""
        if message.epoch_no == self.epoch_no:
            for r in [r for r in self.giving_back if r <= message.r]:
                del self.giving_back[r]

    # ------------------------------------------------------------------ requests

    def want(
        self,
        feed: int,
        ends: Mapping[str, int] = NOTHING,
        *,
        finished: bool = False,
        starving: bool | None = None,
    ) -> list[Ask]:
        """Have a request open for more of this feed; a changed one is sent again under its n.

        Args:
            feed: its number.
            ends: of a feed of unknown length: partition -> how far it is seen to reach.
            finished: these ends are final.
            starving: whether it is urgent; None: it is when nothing is left.
        """
        if not self.epoch_no or feed in self.ended:
            return []
        told = self.told.get(feed, NOTHING)
        news = tuple((name, end) for name, end in ends.items() if end > told.get(name, 0))
        step, whole = self.place_of(feed)
        request = LeaseRequest(
            epoch_no=self.epoch_no,
            inc=self.inc,
            n=self.last_n + 1,
            feed=feed,
            step=step,
            slice=whole,
            starving=self._starves(feed) if starving is None else starving,
            ends=news,
            finished=finished,
            handled=self.handled.spans(),
            map_version=self.map_version,
            since=max(0, self.since),
        )
        if request == self.request:
            return []
        # The master may answer any version of it, so only what all of them say is surely told.
        if self.request is None:
            self.telling = news
        elif self.request.feed != feed:
            self.telling = ()
        self.request = request
        return [request]

    def place_of(self, feed: int) -> tuple[StepNo, Slice]:
        """The step that the next samples belong to, and its slice; without steps ``(0, ())``."""
        del feed
        return START, ()

    def _starves(self, feed: int) -> bool:
        """Whether nothing is left to take."""
        return not self.has_work(feed)

    def unanswered(self) -> list[Ask]:
        """Everything that is unanswered, once more."""
        open_one = [self.request] if self.request is not None else []
        return [*open_one, *(self._give_back_message(r) for r in self.giving_back)]

    def resend(self) -> list[Ask]:
        """Everything that is unanswered, once more, and a request in any case.

        Without an open one it is the last one: a master that was restarted learns by it that we
        live, and in which epoch. Our servers may be gone, and nobody else would tell us.
        """
        again = [self._last_request()] if self.request is None else []
        return [*again, *self.unanswered()]

    def _last_request(self) -> LeaseRequest:
        return LeaseRequest(
            epoch_no=self.epoch_no,
            inc=self.inc,
            n=self.last_n,
            feed=min(self.feeds, default=0),
            map_version=self.map_version,
            since=max(0, self.since),
        )

    # ------------------------------------------------------------------ work

    def source_line(self, line: int) -> SourceLine:
        """Return what a granted line is at its source."""
        length = self.feeds[feed_of(line)].num_samples
        return self.lines[line] if length is None else SourceLine(line, "", length)

    def leased(self, feed: int) -> int:
        """Count the samples that are granted and not taken."""
        return num_samples(self.lease.get(feed, ()))

    def has_work(self, feed: int) -> bool:
        """Whether `take` would return something now."""
        return bool(self._next_spans(feed, 1))

    def take(self, feed: int, count: int) -> tuple[Span, ...]:
        """Take the next samples, at most ``count``; none: there is no work now."""
        spans = self._next_spans(feed, count)
        self._remove(feed, spans)
        return spans

    def put_back(self, feed: int, spans: tuple[Span, ...]) -> None:
        """Have samples that were taken, and not computed, come first again."""
        self.lease.setdefault(feed, deque()).extendleft(reversed(spans))

    def batches(self, feed: int, size: int, limit: int) -> list[tuple[Span, ...]]:
        """Return what the next ``limit`` calls of ``take(feed, size)`` will."""
        found: list[tuple[Span, ...]] = []
        batch: list[Span] = []
        room = size
        for span in self._next_spans(feed, size * limit):
            start = span.start
            while start < span.stop:
                stop = min(span.stop, start + room)
                batch.append(Span(span.line, start, stop))
                room -= stop - start
                start = stop
                if room == 0:
                    found.append(tuple(batch))
                    batch, room = [], size
        return [*found, tuple(batch)] if batch else found

    def _add(self, feed: int, spans: Iterable[Span]) -> None:
        """Lengthen the lease."""
        self.lease.setdefault(feed, deque()).extend(spans)

    def _next_spans(self, feed: int, count: int) -> tuple[Span, ...]:
        """Find the next samples in the lease, at most ``count``."""
        return tuple(between(self.lease.get(feed, ()), 0, count))

    def _remove(self, feed: int, spans: tuple[Span, ...]) -> None:
        """Take from the lease what `_next_spans` found in it, span by span in its order."""
        if not spans:
            return
        lease, kept = self.lease[feed], list[Span]()
        for span in spans:
            while not _begins_in(span, found := lease.popleft()):
                kept.append(found)
            if found.start < span.start:
                kept.append(Span(span.line, found.start, span.start))
            if span.stop < found.stop:
                lease.appendleft(Span(span.line, span.stop, found.stop))
        lease.extendleft(reversed(kept))


def _begins_in(span: Span, other: Span) -> bool:
    return other.line == span.line and other.start <= span.start < other.stop
