"""A job of one process: the model in a `Store` here, samples dealt out in order, no services.

Same kernels, same slices and same arithmetic as one worker and one server in BSP.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

import msgspec
import numpy as np

from paceline.base.errors import InternalError
from paceline.base.samples import Span
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.work import Array, StepTimes, Work
from paceline.runtime.ps.layout import initial_arrays
from paceline.runtime.ps.port import Ids, Pulled
from paceline.runtime.ps.store import Gradients, Store
from paceline.wire.messages.checks import Checked
from paceline.wire.messages.feeds import Feed, SourceLine, feed_of
from paceline.wire.schema import NUM_BUCKETS, ModelSchema
from paceline.wire.spec import JobSpec


class Alone:
    """The `Trainer` of a script that was started plainly."""

    overlap = False
    sums_workers = False
    takes_growth = True
    rank = 0
    num_workers = 1

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self._store: Store | None = None
        self._to_do: dict[int, _Slices | _Growing] = {}
        self._last_step = 0
        self._wanted: tuple[Work, Mapping[int, Ids]] | None = None
        self._values: dict[int, dict[str, list[Array]]] = {}

    @property
    def store(self) -> Store:
        """The model."""
        if self._store is None:
            raise InternalError("the model was used before it was prepared")
        return self._store

    def prepare(
        self,
        schema: ModelSchema,
        initial: Callable[[], tuple[Mapping[str, Array], Mapping[int, Array]]],
    ) -> None:
        self._store = Store(schema, [0] * NUM_BUCKETS, 0)
        self._store.load([initial_arrays(schema, *initial())])

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        if feed.purpose == "train":
            feed = msgspec.structs.replace(feed, first_step=self._last_step)
            self._last_step = feed.last_step
        self._to_do[feed.feed] = _Slices(feed) if growth is None else _Growing(feed, growth)
        return feed

    def source_line(self, line: int) -> SourceLine:
        return self._to_do[feed_of(line)].source_line(line)

    def next_work(self, feed: int) -> Work | None:
        return self._to_do[feed].take()

    def upcoming(self, feed: int, limit: int) -> tuple[Work, ...]:
        return self._to_do[feed].look(limit)

    def start_pull(self, work: Work, ids: Mapping[int, Ids]) -> None:
        self._wanted = work, ids

    def wait_pull(self, work: Work) -> Pulled:
        if self._wanted is None or self._wanted[0] is not work:
            raise InternalError("waited for a pull that was not started")
        start_s = perf_counter()
        rows = {table: self.store.rows(table, ids) for table, ids in self._wanted[1].items()}
        return Pulled(self.store.dense(), rows, server_s=perf_counter() - start_s)

    def rows(self, table: int, ids: Ids) -> Array:
        return self.store.rows(table, ids)

    def push(self, works: Sequence[Work], gradients: Gradients) -> None:
        self.store.apply([gradients])

    def give_back(self, work: Work) -> None:
        self._to_do[work.feed].put_back(work)

    def drain(self) -> None:
        """Nothing is ever under way: ``push`` applies."""

    def dense(self) -> Mapping[str, Array]:
        return {dtype: values.copy() for dtype, values in self.store.dense().items()}

    def export(self, table: int) -> tuple[Ids, Array]:
        return self.store.export(table)

    def evaluate_put(self, work: Work, values: Mapping[str, Array]) -> None:
        stored = self._values.setdefault(work.feed, {})
        for name, array in values.items():
            stored.setdefault(name, []).append(array)

    def evaluate_get(self, feed: int) -> Mapping[str, Array]:
        parts = self._values.pop(feed, {})
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}

    def checkpoint(self) -> None:
        """Nobody keeps cuts of a job of one process."""

    def checked(self, message: Checked) -> None:
        """Nobody keeps it."""

    def record(self, times: StepTimes) -> None:
        """Nobody watches a job of one process."""


class _Slices:
    """The slices of a feed that are still to do, in order."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._steps = iter(range(feed.first_step + 1, feed.last_step + 1))
        self._known: deque[Work] = deque()

    def look(self, limit: int) -> tuple[Work, ...]:
        for step in islice(self._steps, max(0, limit - len(self._known))):
            span = self._feed.slice_of(step)
            self._known.append(Work(self._feed.feed, (span,), len(span), step))
        return tuple(islice(self._known, limit))

    def take(self) -> Work | None:
        self.look(1)
        return self._known.popleft() if self._known else None

    def put_back(self, work: Work) -> None:
        self._known.appendleft(work)

    def source_line(self, line: int) -> SourceLine:
        return SourceLine(line, "", self._feed.num_samples)


@dataclass(slots=True)
class _Partition:
    """How far one partition is known to reach, and was dealt out; ``end``: of one epoch."""

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
        """Up to one batch of what is there of the present epoch."""
        spans: list[Span] = []
        room = self._feed.batch_size
        for partition in self._partitions.values():
            stop = min(partition.end * (self._epoch + 1), partition.cursor + room)
            if stop > partition.cursor:
                spans.append(Span(partition.line, partition.cursor, stop))
                room -= stop - partition.cursor
        return spans
