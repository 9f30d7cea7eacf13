"""Work of a job of one process: every batch of a feed, in order."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import msgspec

from paceline.base.samples import Span
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.work import Work
from paceline.wire.messages.feeds import Feed, SourceLine, feed_of


class Dealing:
    """Deals all feeds of a job to its one worker."""

    def __init__(self) -> None:
        self._to_do: dict[int, _Slices | _Growing] = {}
        self._last_step = 0

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        if feed.purpose == "train":
            feed = msgspec.structs.replace(feed, first_step=self._last_step)
            self._last_step = feed.last_step
        self._to_do[feed.feed] = _Slices(feed) if growth is None else _Growing(feed, growth)
        return feed

    def source_line(self, line: int) -> SourceLine:
        return self._to_do[feed_of(line)].source_line(line)

    def next_work(self, feed: int) -> Work | None:
        """The next batch; blocks where the feed has yet to grow. None: the feed is complete."""
        return self._to_do[feed].take()

    def take_known(self, feed: int) -> Work | None:
        """The next batch; None: none is known so far. Never blocks."""
        return self._to_do[feed].take_known()

    def upcoming(self, feed: int, limit: int) -> tuple[Work, ...]:
        """Return what ``next_work`` will return next, as far as known; never blocks."""
        return self._to_do[feed].look(limit)

    def give_back(self, work: Work) -> None:
        """Put back a batch that was taken but not trained on: it comes next."""
        self._to_do[work.feed].put_back(work)


class _Slices:
    """The slices of a feed that are still to do, in order."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._steps = iter(range(feed.first_step + 1, feed.last_step + 1))
        self._known: deque[Work] = deque()

    def look(self, limit: int) -> tuple[Work, ...]:
        for step in islice(self._steps, max(0, limit - len(self._known))):
            self._known.append(self._work(step))
        return tuple(islice(self._known, limit))

    def take(self) -> Work | None:
        if self._known:
            return self._known.popleft()
        step = next(self._steps, None)
        return None if step is None else self._work(step)

    take_known = take
    """All batches of such a feed are known."""

    def _work(self, step: int) -> Work:
        span = self._feed.slice_of(step)
        return Work(self._feed.feed, (span,), len(span), step)

    def put_back(self, work: Work) -> None:
        self._known.appendleft(work)

    def source_line(self, line: int) -> SourceLine:
        return SourceLine(line, "", self._feed.num_samples)


@dataclass(slots=True)
class _Partition:
    """Reach of one partition as known, and as dealt out; ``end``: of one epoch."""

    line: int
    end: int = 0
    cursor: int = 0


class _Growing:
    """The batches of a feed of unknown length, as far as it can be read by now.

    Partitions are read in the order in which they were seen. A batch is whole unless it is the
    last of an epoch.
    """

    def __init__(self, feed: Feed, growth: Growth) -> None:
        self._feed, self._growth = feed, growth
        self._partitions: dict[str, _Partition] = {}
        self._names: dict[int, str] = {}
        self._epoch, self._finished = 0, False
        self._known: deque[Work] = deque()

    def look(self, limit: int) -> tuple[Work, ...]:
        if not self._finished:
            self._see(*self._growth.look())
        while len(self._known) < limit and (spans := self._next()):
            self._known.append(Work(self._feed.feed, spans, sum(len(span) for span in spans)))
        return tuple(islice(self._known, limit))

    def take(self) -> Work | None:
        """Block until there is a batch; None: there will be none."""
        while not self.look(1):
            if self._finished:
                return None
            self._growth.wait()
        return self._known.popleft()

    def take_known(self) -> Work | None:
        return self._known.popleft() if self.look(1) else None

    def put_back(self, work: Work) -> None:
        self._known.appendleft(work)

    def source_line(self, line: int) -> SourceLine:
        name = self._names[line]
        return SourceLine(line, name, self._partitions[name].end if self._finished else None)

    def _see(self, ends: Mapping[str, int], finished: bool) -> None:
        for name, end in ends.items():
            if name not in self._partitions:
                line = self._feed.line(len(self._partitions))
                self._partitions[name], self._names[line] = _Partition(line), name
            self._partitions[name].end = end
        self._finished = finished

    def _next(self) -> tuple[Span, ...]:
        """The next batch, which is then dealt out; none: it is not whole yet, or all is done."""
        spans = self._readable()
        while not spans and self._finished and self._epoch < self._feed.epochs - 1:
            self._epoch += 1
            spans = self._readable()
        if not self._finished and sum(len(span) for span in spans) < self._feed.batch_size:
            return ()
        for span in spans:
            self._partitions[self._names[span.line]].cursor = span.stop
        return tuple(spans)

    def _readable(self) -> list[Span]:
        """Return up to one batch of what is there of the present epoch."""
        spans: list[Span] = []
        room = self._feed.batch_size
        for partition in self._partitions.values():
            stop = min(partition.end * (self._epoch + 1), partition.cursor + room)
            if stop > partition.cursor:
                spans.append(Span(partition.line, partition.cursor, stop))
                room -= stop - partition.cursor
        return spans
