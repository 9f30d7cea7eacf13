"""Who computes which samples of a synchronous step, kept equal with the ledger.

The members' parts of a step are contiguous and proportional to their shares. Leases reach several
steps ahead, as the master grants them; what a lost member leaves behind in steps that are granted
already goes to the others when their turn comes.
"""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from paceline.base.samples import Span, between
from paceline.master.shards.ledger import Ledger
from paceline.sim.costs import Ints
from paceline.wire.messages import Feed


class Parts:
    """Some samples, cut between workers."""

    __slots__ = ("_high", "_low", "_spans")

    def __init__(self, spans: Sequence[Span], shares: Ints) -> None:
        """``shares``: by worker; 0: no part."""
        self._spans = tuple(spans)
        size = sum(len(span) for span in self._spans)
        bounds = np.concatenate(([0], np.cumsum(shares) * size // max(1, int(shares.sum()))))
        self._low, self._high = bounds[:-1].copy(), bounds[1:].copy()

    @property
    def sizes(self) -> Ints:
        """Samples by worker."""
        sizes: Ints = self._high - self._low
        return sizes

    @property
    def spans(self) -> tuple[Span, ...]:
        """All samples."""
        return self._spans

    def of(self, worker: int, after: int = 0) -> list[Span]:
        """The samples of one worker, without its first ones."""
        return between(self._spans, int(self._low[worker]) + after, int(self._high[worker]))

    def take(self, worker: int) -> list[Span]:
        """The samples of one worker, which has no part from now on."""
        taken = self.of(worker)
        self._low[worker] = self._high[worker]
        return taken


class Slices:
    """Deals a feed out step by step; the ledger hears of everything.

    After the last slice come steps of at most a global batch, of what short steps have left out.
    """

    def __init__(self, ledger: Ledger, feed: Feed, incs: Ints) -> None:
        """``incs``: the workers' incarnations, by row; read whenever one is granted to."""
        self.ledger = ledger
        self.step = 0
        """The step under way; 0: none yet."""
        self.calls = 0
        """Grants so far."""
        self._feed, self._incs = feed, incs
        self._ahead: deque[tuple[Parts, list[Span]]] = deque()
        """Granted steps after the present one; beside them what lost workers have left in them."""
        self._granted_to = 0

    # ------------------------------------------------------------------ steps

    def next(self, shares: Ints, num_steps: int) -> tuple[Parts, list[Span]] | None:
        """The parts of the next step, and what of it nobody has; None: all is in the model.

        Args:
            shares: by worker, as they are in force for steps that are not granted yet.
            num_steps: how far grants reach.
        """
        if not self._ahead and not self._grant(shares, num_steps):
            return None
        self.step += 1
        return self._ahead.popleft()

    def recall(self, num_kept: int) -> None:
        """Steps that are granted and have not begun are granted anew, but for the first ones."""
        while len(self._ahead) > num_kept:
            parts, _ = self._ahead.pop()
            self._granted_to -= 1
            for worker in np.flatnonzero(parts.sizes).tolist():
                self.put_back(worker, parts.of(worker))

    def _grant(self, shares: Ints, num_steps: int) -> bool:
        first = self._granted_to + 1
        last = min(self._granted_to + num_steps, self._feed.last_step)
        slices = [[self._feed.slice_of(step)] for step in range(first, last + 1)]
        if not slices:
            left = self._left_out()
            slices = [left] if left else []
        parts = [Parts(spans, shares) for spans in slices]
        for worker in np.flatnonzero(shares).tolist():
            granted = [span for part in parts for span in part.of(worker)]
            self.give(worker, granted)
        self._ahead.extend((part, []) for part in parts)
        self._granted_to += len(parts)
        return bool(parts)

    def _left_out(self) -> list[Span]:
        """Up to a global batch of what came back."""
        number = self._feed.line()
        found, room = [], self._feed.batch_size
        for start, stop in self.ledger.lines[number].returned:
            if room <= 0:
                break
            found.append(Span(number, start, min(stop, start + room)))
            room -= len(found[-1])
        return found

    # ------------------------------------------------------------------ the ledger

    def give(self, worker: int, spans: list[Span]) -> None:
        """Lease these samples, which nobody has, to a worker."""
        if spans:
            self.calls += 1
            self.ledger.grant(int(self._incs[worker]), spans)

    def commit(self, spans: Iterable[Span]) -> None:
        """These samples are in the model."""
        self.ledger.commit(spans)

    def put_back(self, worker: int, spans: list[Span]) -> None:
        """A worker gives back what a short step has left out of its lease."""
        self.calls += 1
        self.ledger.give_back(int(self._incs[worker]), spans)

    def lose(self, worker: int) -> None:
        """A worker's leases go back; steps ahead note what is missing in them."""
        for parts, orphans in self._ahead:
            orphans += parts.take(worker)
        self.ledger.lose(int(self._incs[worker]))

    def roll_back(self, step: int, committed: Iterable[Span]) -> None:
        """Back to a checkpoint: all leases are void."""
        self.ledger.restore(committed)
        self._ahead.clear()
        self.step = self._granted_to = step
