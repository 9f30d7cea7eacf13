"""A job of one process: the model in a `Store` here, samples dealt out in order, no services.

Same kernels, same slices and same arithmetic as one worker and one server in BSP.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from paceline.base.errors import InternalError
from paceline.runtime.data.local_feed import Dealing
from paceline.runtime.data.work import Array, StepTimes, Work
from paceline.runtime.holding.servers.port import Ids, Initial, PulledModel
from paceline.runtime.server.store import Gradients, Store
from paceline.runtime.state.layout import initial_arrays
from paceline.wire.messages.base import Link
from paceline.wire.messages.feeds import Feed, ScriptPlace
from paceline.wire.schema import NUM_BUCKETS, ModelSchema
from paceline.wire.spec import JobSpec


class Alone(Dealing):
    """The `TrainingPort` of a script with sparse tables that was started without `paceline run`."""

    overlap = False
    sums_workers = False
    takes_growth = is_alone = True
    keeps_script = False
    rank = 0
    num_workers = 1
    restores = 0

    def __init__(self, spec: JobSpec) -> None:
        super().__init__()
        self.spec = spec
        self._store: Store | None = None
        self._wanted: tuple[Work, Mapping[int, Ids]] | None = None
        self._values: dict[int, dict[str, list[Array]]] = {}

    @property
    def store(self) -> Store:
        """The model."""
        if self._store is None:
            raise InternalError("the model was used before it was prepared")
        return self._store

    def prepare(self, schema: ModelSchema, initial: Initial) -> None:
        self._store = Store(schema, [0] * NUM_BUCKETS, 0)
        self._store.load([initial_arrays(schema, *initial())])

    def start_pull(self, work: Work, ids: Mapping[int, Ids]) -> None:
        self._wanted = work, ids

    def wait_pull(self, work: Work) -> PulledModel:
        if self._wanted is None or self._wanted[0] is not work:
            raise InternalError("waited for a pull that was not started")
        start_s = perf_counter()
        rows = {table: self.store.rows(table, ids) for table, ids in self._wanted[1].items()}
        return PulledModel(self.store.dense(), rows, server_s=perf_counter() - start_s)

    def begun(self) -> tuple[Feed, ...]:
        """Return no feeds: nobody was here before."""
        return ()

    def underway(self, place: ScriptPlace) -> None:
        """Return None: nobody was here before."""

    def meet(self, place: ScriptPlace, value: bytes, *, all_workers: bool) -> Sequence[bytes]:
        """Return our own value: nobody else is there."""
        return [value]

    def script(self, position: int | None) -> None:
        """Return None: nobody was here before."""

    def count(self, feed: int) -> int:
        raise InternalError("every batch is a step: nobody counts samples")

    def keep_script(self, position: int, state: bytes) -> None:
        """Do nothing: nobody comes after."""

    def rows(self, table: int, ids: Ids) -> Array:
        return self.store.rows(table, ids)

    def push(self, works: Sequence[Work], gradients: Gradients) -> None:
        self.store.apply([gradients])

    def drain(self, within_s: float = float("inf")) -> bool:
        """Return True: nothing is ever under way, since ``push`` applies."""
        return True

    def left_loop(self, feed: int) -> None:
        """Do nothing: nobody else trains."""

    def settle(self) -> None:
        """Do nothing: nothing is ever under way."""

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
        """Do nothing: nobody keeps cuts of a job of one process."""

    def measure_links(self) -> tuple[Link, ...]:
        return ()

    def record(self, times: StepTimes) -> None:
        """Do nothing: nobody watches a job of one process."""
