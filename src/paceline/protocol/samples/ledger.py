"""The shard ledger: which samples are to do, leased, or in the model.

A pure state machine over positions of shuffled order; `runtime.data` turns positions into records.
Shards are not stored. Per line there is a cursor (everything above it is fresh), what came back
from lost owners, the leases, and the done set, so a feed of 10^12 samples costs nothing before it
is read.

A feed of unknown length has one line per partition of its source. Lines are numbered in the order
in which the ledger hears of their partitions, and grow until the source is finished; the epochs
after the first follow then.

At every moment each sample below the cursor is in exactly one of: returned, one lease, done
(docs/protocols/integrity.md, section 6; AntDT section V-C calls them TODO, DOING, DONE).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from paceline.base.numbering import Inc
from paceline.base.samples import Intervals, SampleSet, Span, between
from paceline.protocol.agreements import Agreements
from paceline.wire.messages.feeds import Feed, SourceLine, feed_of

Part = tuple[Sequence[Span], Sequence[Span]]
"""A slice, whole, and one member's part of it."""


class LedgerLine:
    """One line's fresh end and what came back to it."""

    __slots__ = ("cursor", "end", "epoch_len", "name", "returned")

    def __init__(self, end: int, epoch_len: int, name: str = "") -> None:
        #: Positions below are granted, returned or done; those from here to ``end`` are fresh.
        self.cursor = 0
        #: How far the line is known to reach.
        self.end = end
        #: Samples of one epoch; 0: not known while the line grows.
        self.epoch_len = epoch_len
        #: The partition, at its source.
        self.name = name
        self.returned = Intervals()

    @property
    def reach(self) -> int:
        """How far the source is known to reach: `end` without the epochs after the first."""
        return self.epoch_len or self.end

    @property
    def epoch(self) -> int:
        """The epoch of the first fresh position."""
        return self.cursor // self.epoch_len if self.epoch_len else 0

    def fresh(self, number: int) -> Span:
        """Return what nobody has had of the present epoch, as a span of line ``number``."""
        return Span(number, self.cursor, (self.epoch + 1) * self.epoch_len or self.end)

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


def _common(spans: Iterable[Span], start: int, stop: int) -> Iterator[Span]:
    """Return the part of these positions that spans of one line have."""
    for span in spans:
        if max(span.start, start) < min(span.stop, stop):
            yield Span(span.line, max(span.start, start), min(span.stop, stop))


class Ledger:
    """All feeds of a job."""

    def __init__(self) -> None:
        self.feeds: dict[int, Feed] = {}
        self.agreements = Agreements()
        """Agreements of the workers' scripts between their loops."""
        self.lines: dict[int, LedgerLine] = {}
        self.leases: dict[Inc, SampleSet] = {}
        self.done = SampleSet()
        #: Feed of unknown length -> partition -> its line.
        self.names: dict[int, dict[str, int]] = {}
        #: Feeds of unknown length whose source said that nothing more will come.
        self.finished: set[int] = set()
        self.opened_before = -1
        """The newest feed that was opened before the job went back to a cut; -1: none."""
        self.num_back = 0
        """Number of times that leased samples became work to do again."""

    # ------------------------------------------------------------------ feeds

    def open(self, feed: Feed) -> None:
        """Add a feed; of known length all is fresh, of unknown length nothing yet."""
        self.feeds[feed.feed] = feed
        if feed.num_samples is None:
            self.names.setdefault(feed.feed, {})
        else:
            self.lines[feed.line()] = LedgerLine(feed.num_samples * feed.epochs, feed.num_samples)

    def numbered(self, feed: Feed, number: int) -> Feed:
        """Return a feed that is to be opened under this number."""
        known = self.feeds.values()
        of_training = [one.feed for one in known if one.training == feed.training]
        return feed.numbered(number, min([number, *of_training]) if feed.training else 0)

    def is_left(self, feed: Feed, stored: int) -> bool:
        """Whether all scripts have left the training of a feed; ``stored``: a cut has this step."""
        later = (one.after for one in self.feeds.values() if one.training > feed.training)
        return feed.purpose == "train" and any(one is not None and one <= stored for one in later)

    def is_passed(self, feed: Feed) -> bool:
        """Whether a script has left this loop (`break`) for a later one of the same training.

        It may have done so on the last batch: then all of it is in the model, and in no cut so far.
        When the job has gone back to a cut, the model must have samples of the later one.
        """
        return feed.purpose == "train" and any(
            one.place > feed.place
            for one in self.feeds.values()
            if one.purpose == "train" and one.training == feed.training and one.feed > feed.feed
            if one.feed > self.opened_before or self.is_begun(one.feed)
        )

    def news(self, feed: int, ends: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
        """Those of a feed's partitions that were not known to reach so far."""
        known = self.names.get(feed, {})
        return tuple(
            (name, end)
            for name, end in ends
            if end > (self.lines[known[name]].reach if name in known else 0)
        )

    def extend(self, feed: int, ends: Iterable[tuple[str, int]], *, finished: bool = False) -> None:
        """The partitions reach so far now; ``finished``: all of them, and for good."""
        definition, names = self.feeds[feed], self.names[feed]
        for name, end in ends:
            if name not in names:
                names[name] = definition.line(len(names))
                self.lines[names[name]] = LedgerLine(0, 0, name)
            line = self.lines[names[name]]
            line.end = max(line.end, end)
        if finished and feed not in self.finished:
            self.finished.add(feed)
            for number in names.values():
                line = self.lines[number]
                line.epoch_len = line.end
                line.end *= definition.epochs

    def source_lines(self, spans: Iterable[Span]) -> tuple[SourceLine, ...]:
        """Return the lines of these spans as their source has them."""
        numbers = sorted({span.line for span in spans})
        lines = [(number, self.lines[number]) for number in numbers]
        return tuple(SourceLine(n, line.name, line.epoch_len or None) for n, line in lines)

    def is_begun(self, feed: int) -> bool:
        """Whether a sample of the feed is done."""
        return any(self.done.line(line) for line in self.lines if feed_of(line) == feed)

    def next_to_do(self, feed: int) -> int:
        """The first position that nobody has, of a feed of known length; else 0."""
        line = self.lines.get(self.feeds[feed].line())
        if line is None or feed in self.names:
            return 0
        return min([line.cursor, *line.returned.edges[:1]])

    def is_complete(self, feed: int, also: Iterable[Span] = ()) -> bool:
        """Whether every sample of the feed is done, if these are, too."""
        if self.feeds[feed].num_samples is None and feed not in self.finished:
            return False
        done = self.done
        if more := [span for span in also if feed_of(span.line) == feed]:
            done = self.done.copy()
            done.update(more)
        return all(
            next(done.line(line).gaps(0, state.end), None) is None
            for line, state in self.lines.items()
            if feed_of(line) == feed
        )

    def total(self, feed: int) -> int | None:
        """Samples of all epochs; None while they are not known."""
        definition = self.feeds[feed]
        if definition.num_samples is not None:
            return definition.num_samples * definition.epochs
        if feed not in self.finished:
            return None
        return sum(self.lines[number].end for number in self.names[feed].values())

    def num_to_do(self, feed: int, ends: Iterable[tuple[str, int]] = ()) -> int:
        """Samples that nobody has; ``ends``: how far partitions are just said to reach."""
        lines = [line for number, line in self.lines.items() if feed_of(number) == feed]
        known = sum(line.end - line.cursor + len(line.returned) for line in lines)
        reach = {line.name: line.reach for line in lines}
        return known + sum(end - reach.get(name, 0) for name, end in self.news(feed, ends))

    # ------------------------------------------------------------------ leases

    def lease_size(self, inc: Inc, feed: int) -> int:
        """Samples of ``feed`` leased to ``inc`` and not known to be in the model."""
        lease = self.leases.get(inc)
        if lease is None:
            return 0
        return sum(len(found) for line, found in lease.lines.items() if feed_of(line) == feed)

    def pick(self, feed: int, count: int, batch_size: int = 1) -> list[Span]:
        """Return what an asynchronous grant of up to ``count`` samples would hold; take nothing.

        Of a feed that grows: whole batches of the worker's ``batch_size``, since what is missing
        will come.
        """
        if feed in self.names:
            return self._pick_growing(feed, count, batch_size)
        for line, state in self.lines.items():
            if feed_of(line) == feed and (found := state.next(count)) is not None:
                return [Span(line, *found)]
        return []

    def _pick_growing(self, feed: int, count: int, batch_size: int) -> list[Span]:
        found = between(self._growing_to_do(feed), 0, count)
        if feed in self.finished:
            return found
        there = sum(len(span) for span in found)
        return between(found, 0, there - there % min(count, batch_size))

    def _growing_to_do(self, feed: int) -> Iterator[Span]:
        """Yield what came back, then what is fresh of the earliest epoch, in the lines' order."""
        lines = [(number, self.lines[number]) for number in self.names[feed].values()]
        for number, line in lines:
            for back in line.returned:
                yield Span(number, *back)
        with_fresh = [(number, line) for number, line in lines if line.cursor < line.end]
        earliest = min((line.epoch for _, line in with_fresh), default=0)
        for number, line in with_fresh:
            if line.epoch == earliest:
                yield line.fresh(number)

    def pick_parts(
        self,
        parts: Iterable[Part],
        *,
        urgent: int = 0,
        spared: int = 0,
        edge: Callable[[int], int] | None = None,
    ) -> list[Span]:
        """Return what a synchronous grant would hold: what is to do of parts of some slices.

        Args:
            parts: from the undecided slice on.
            urgent: > 0: the worker has nothing left for the undecided slice; if its own part of
                that is gone it gets up to so many samples of what others left there.
            spared: of which so many may be missing when the step is decided.
            edge: where what is urgent may end: position -> the next such place.
        """
        own: list[Span] = []
        left: list[Span] = []
        for number, (whole, part) in enumerate(parts):
            mine = [span for one in part for span in self._to_do(one)]
            if number == 0 and urgent and not mine:
                others = [span for one in whole for span in self._to_do(one)]
                left = between(others, spared, spared + urgent)
                if edge is not None and left:
                    left = list(_common(others, left[0].start, edge(left[-1].stop)))
            own += mine
        return [*left, *own]

    def _to_do(self, span: Span) -> list[Span]:
        """The parts of a span that are neither leased nor done."""
        state = self.lines[span.line]
        found = [Span(span.line, *back) for back in state.returned.within(span.start, span.stop)]
        fresh = Span(span.line, max(span.start, state.cursor), span.stop)
        return [*found, fresh] if fresh.start < fresh.stop else found

    def grant(self, inc: Inc, spans: Iterable[Span]) -> None:
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

    def advance(self, committed: Iterable[Span]) -> None:
        """The same for samples that no single worker leases: a group computes its slices."""
        for span in committed:
            for new in self.done.missing(span):
                self.lines[new.line].remove(new.start, new.stop)
                self.done.add(new)

    def holders(self, line: int, start: int) -> list[Inc]:
        """Return the incarnations with leases on samples of ``line`` at or after ``start``."""
        rest = Span(line, start, self.lines[line].end) if line in self.lines else None
        return [inc for inc, lease in self.leases.items() if rest and lease.overlap(rest)]

    def give_back(self, inc: Inc, spans: Iterable[Span]) -> None:
        """A living owner has forgotten these; what of them it holds is to do again."""
        lease = self.leases.get(inc, SampleSet())
        self.num_back += 1
        for back in [part for span in spans for part in lease.overlap(span)]:
            lease.subtract([back])
            self.lines[back.line].returned.add(back.start, back.stop)

    def lose(self, inc: Inc, *, again: bool = True) -> None:
        """The owner is gone: the rest of its leases goes back, to the end of the epoch.

        ``again`` False (at-most-once): it counts as done, since it may be in the model. Only
        training changes the model: what is evaluated always goes back.
        """
        self.num_back += 1
        for span in self.leases.pop(inc, SampleSet()):
            if again or not self._trains(span.line):
                self.lines[span.line].returned.add(span.start, span.stop)
            else:
                self.done.add(span)

    def restore(self, committed: Iterable[Span], *, again: bool = True) -> None:
        """A new epoch_no: leases are void, the ledger is the complement of this set.

        ``again`` False (at-most-once): what was ever granted of training is not granted again.
        """
        done = SampleSet(committed)
        if not again:
            for inc in list(self.leases):
                self.lose(inc, again=False)
            done = SampleSet(span for span in self.done if self._trains(span.line))
        self.leases.clear()
        self.num_back += 1
        self.done = done
        self.opened_before = max(self.feeds, default=-1)
        for line, state in self.lines.items():
            if not again and self._trains(line):
                continue
            state.returned = Intervals()
            for start, stop in self.done.line(line).gaps(0, state.cursor):
                state.returned.add(start, stop)

    def _trains(self, line: int) -> bool:
        return self.feeds[feed_of(line)].purpose == "train"
