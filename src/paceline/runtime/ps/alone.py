"""A job of one process: the model in a `Store` here, samples dealt out in order, no services.

Same kernels, same slices and same arithmetic as one worker and one server in BSP.
"""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from time import perf_counter

import msgspec
import numpy as np

from paceline.base.errors import InternalError
from paceline.runtime.ps.layout import initial_arrays
from paceline.runtime.ps.port import Array, Ids, Pulled, StepTimes, Work
from paceline.runtime.ps.store import Gradients, Store
from paceline.wire.messages import Feed
from paceline.wire.schema import NUM_BUCKETS, ModelSchema
from paceline.wire.spec import JobSpec


class Alone:
    """The `Trainer` of a script that was started plainly."""

    overlap = False
    rank = 0
    num_workers = 1

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self._store: Store | None = None
        self._to_do: dict[int, _Slices] = {}
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

    def open_feed(self, feed: Feed) -> Feed:
        if feed.purpose == "train":
            feed = msgspec.structs.replace(feed, first_step=self._last_step)
            self._last_step = feed.last_step
        self._to_do[feed.feed] = _Slices(feed)
        return feed

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

    def push(self, work: Work, gradients: Gradients) -> None:
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
