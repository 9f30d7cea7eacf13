"""Sets of samples, kept as intervals of the shuffled order.

A *line* is one coordinate axis of a job: all epochs of one feed, or one partition of a stream.
A sample is a position on a line; position ``epoch * N + k`` is the k-th sample of that epoch's
shuffled order. Ledger, servers and workers all speak in these sets, so "in the model", "leased"
and "to do" can be compared by plain set algebra.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec


class Span(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The samples ``start <= position < stop`` of one line."""

    line: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def num_samples(spans: Iterable[Span]) -> int:
    """How many these are."""
    return sum(map(len, spans))


def between(spans: Iterable[Span], low: int, high: int) -> list[Span]:
    """Samples number ``low`` to ``high`` (excluded) of these, in their order."""
    found: list[Span] = []
    at = 0
    for span in spans:
        start = span.start + max(0, low - at)
        stop = min(span.stop, span.start + high - at)
        if start < stop:
            found.append(Span(span.line, start, stop))
        at += len(span)
        if at >= high:
            break
    return found


class Portion(NamedTuple):
    """A member's part of any slice: the samples from low / whole to high / whole of it."""

    low: int
    high: int
    whole: int

    def of(self, spans: Sequence[Span]) -> list[Span]:
        """The samples, of a slice in its order."""
        size = num_samples(spans)
        return between(spans, size * self.low // self.whole, size * self.high // self.whole)

    def size(self, size: int) -> int:
        """The size of a slice of so many samples."""
        return size * self.high // self.whole - size * self.low // self.whole

    @property
    def share(self) -> float:
        """The share of all that is computed."""
        return (self.high - self.low) / self.whole


LEAST = 2
"""Samples of a batch that BatchNorm can normalise."""


def merged(edges: Sequence[int], least: int) -> list[int]:
    """Return the edges without runs of fewer than so many, which the next or last run takes."""
    if edges[-1] < least:
        return list(edges)
    found = [edges[0]]
    for edge in edges[1:-1]:
        found.append(edge if edge - found[-1] >= least else found[-1])
    if edges[-1] - found[-1] < least:
        last = found[-1]
        found = [edges[-1] if edge == last and edge > 0 else edge for edge in found]
    return [*found, edges[-1]]


class Intervals:
    """A set of integers as sorted, disjoint, non-touching intervals of one line.

    ``edges`` is ``[start0, stop0, start1, stop1, ...]``, strictly increasing: an even index means
    that a point between its neighbours is outside, an odd one that it is inside.
    """

    __slots__ = ("edges",)

    def __init__(self, edges: Iterable[int] = ()) -> None:
        self.edges: list[int] = list(edges)

    def add(self, start: int, stop: int) -> None:
        """Add ``[start, stop)``; amortised O(log n) search plus one slice move."""
        if start >= stop:
            return
        low, high = bisect_left(self.edges, start), bisect_right(self.edges, stop)
        self.edges[low:high] = [start] * (low % 2 == 0) + [stop] * (high % 2 == 0)

    def discard(self, start: int, stop: int) -> None:
        """Remove ``[start, stop)`` where present."""
        if start >= stop:
            return
        low, high = bisect_left(self.edges, start), bisect_right(self.edges, stop)
        self.edges[low:high] = [start] * (low % 2 == 1) + [stop] * (high % 2 == 1)

    def within(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The parts of this set that lie in ``[start, stop)``, ascending."""
        edges = self.edges
        for i in range(bisect_right(edges, start) // 2 * 2, len(edges), 2):
            if edges[i] >= stop:
                return
            low, high = max(edges[i], start), min(edges[i + 1], stop)
            if low < high:
                yield low, high

    def gaps(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The parts of ``[start, stop)`` that are not in this set, ascending."""
        at = start
        for low, high in self.within(start, stop):
            if at < low:
                yield at, low
            at = high
        if at < stop:
            yield at, stop

    def __iter__(self) -> Iterator[tuple[int, int]]:
        it = iter(self.edges)
        return zip(it, it, strict=True)

    def __bool__(self) -> bool:
        return bool(self.edges)

    def __len__(self) -> int:
        return sum(self.edges[1::2]) - sum(self.edges[::2])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Intervals) and self.edges == other.edges

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Intervals({self.edges})"


class SampleSet:
    """A mutable set of samples over any number of lines."""

    __slots__ = ("lines",)

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self.lines: dict[int, Intervals] = {}
        self.update(spans)

    def add(self, span: Span) -> None:
        """Add the samples of one span."""
        self.line(span.line).add(span.start, span.stop)

    def update(self, spans: Iterable[Span]) -> None:
        """Add all samples of ``spans`` (a SampleSet is one, too)."""
        for span in spans:
            self.add(span)

    def subtract(self, spans: Iterable[Span]) -> None:
        """Remove all samples of ``spans`` (a SampleSet is one, too)."""
        for span in spans:
            if span.line in self.lines:
                self.lines[span.line].discard(span.start, span.stop)

    def line(self, line: int) -> Intervals:
        """The intervals of one line, to be read or changed in place."""
        found = self.lines.get(line)
        if found is None:
            found = self.lines[line] = Intervals()
        return found

    def overlap(self, span: Span) -> list[Span]:
        """The parts of ``span`` that are in this set."""
        if span.line not in self.lines:
            return []
        return [
            Span(span.line, a, b) for a, b in self.lines[span.line].within(span.start, span.stop)
        ]

    def missing(self, span: Span) -> list[Span]:
        """The parts of ``span`` that are not in this set."""
        if span.line not in self.lines:
            return [span] if span.start < span.stop else []
        return [Span(span.line, a, b) for a, b in self.lines[span.line].gaps(span.start, span.stop)]

    def copy(self) -> "SampleSet":
        """An independent copy."""
        other = SampleSet()
        other.lines = {line: Intervals(found.edges) for line, found in self.lines.items() if found}
        return other

    def spans(self) -> tuple[Span, ...]:
        """All intervals, ordered by line and position."""
        # Not of the set itself: its length is in samples, and a tuple would make room for as many.
        return tuple(iter(self))

    def __iter__(self) -> Iterator[Span]:
        for line in sorted(self.lines):
            for start, stop in self.lines[line]:
                yield Span(line, start, stop)

    def __bool__(self) -> bool:
        return any(self.lines.values())

    def __len__(self) -> int:
        """Number of samples, not of intervals."""
        return sum(len(found) for found in self.lines.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SampleSet) and self.spans() == other.spans()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"SampleSet({list(self)})"
