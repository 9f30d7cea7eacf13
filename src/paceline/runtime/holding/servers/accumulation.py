"""The gradients of a contribution that is computed in several batches (C_i > 1).

Reference: AntDT, section VI-B (gradient accumulation).
Differs: exact for batches of different sizes; sparse gradients, too.
"""

import numpy as np

from paceline.runtime.data.work import Array, Work
from paceline.runtime.holding.servers.port import Ids
from paceline.runtime.server.store import Gradients
from paceline.runtime.state.kernels import dedup
from paceline.wire.messages.data import Changed


class Accumulation:
    """Batches of one contribution and the sum of their gradients, each weighted by its samples."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.works: list[Work] = []
        self._only: Gradients | None = None
        self._lacking: set[int] = set()
        self._dense: dict[str, Array] = {}
        self._sparse: dict[int, list[tuple[Ids, Array]]] = {}

    def add(self, work: Work, gradients: Gradients) -> None:
        """Add those of one more batch: means over its samples, arrays that nobody else uses.

        Batches of an earlier step count no more: it was decided while they were computed.
        """
        if self.works and self.works[-1].step != work.step:
            self._begin()
        if not self.works:
            self._only = gradients
            self._lacking = set(gradients.lacking)
        else:
            # What one of the batches has a gradient of, the mean has one of.
            self._lacking &= set(gradients.lacking)
            if self._only is not None:
                self._sum(self._only)
                self._only = None
            self._sum(gradients)
        self.works.append(work)

    def _sum(self, gradients: Gradients) -> None:
        weight = gradients.weight
        for dtype, values in gradients.dense.items():
            weighted = np.multiply(values, weight, dtype=dtype)
            if dtype in self._dense:
                weighted += self._dense[dtype]
            self._dense[dtype] = weighted
        for table, (ids, rows) in gradients.sparse.items():
            weighted = np.multiply(rows, weight, dtype=rows.dtype)
            self._sparse.setdefault(table, []).append((ids, weighted))

    def take(
        self, rates: tuple[float, ...], changed: Changed = (), position: int = 0
    ) -> tuple[list[Work], Gradients]:
        """Return all as one mean with these hyper-parameters (`Gradients`), and begin again."""
        works, only = self.works, self._only
        gradients = only if only is not None else self._mean(rates, changed, position)
        self._begin()
        return works, gradients

    def _mean(self, rates: tuple[float, ...], changed: Changed, position: int) -> Gradients:
        weight = sum(work.num_samples for work in self.works)
        dense = {dtype: np.divide(sums, weight, dtype=dtype) for dtype, sums in self._dense.items()}
        sparse = {}
        for table, parts in self._sparse.items():
            rows = np.concatenate([rows for _, rows in parts])
            ids, rows = dedup(np.concatenate([ids for ids, _ in parts]), rows)
            sparse[table] = (ids, np.divide(rows, weight, dtype=rows.dtype))
        return Gradients(
            dense,
            sparse,
            weight,
            rates,
            distinct=True,
            changed=changed,
            lacking=tuple(sorted(self._lacking)),
            position=position,
        )
