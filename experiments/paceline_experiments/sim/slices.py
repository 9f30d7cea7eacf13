"""Division of a synchronous step's samples among workers, kept equal with the ledger.

What a step consists of, how that is cut and what a grant of it holds is decided by the master's own
`Plans` and `Ledger`. Grants reach several steps ahead and are renewed when they no longer reach far
enough, as workers ask for them; what a lost member leaves behind in steps that are granted already
goes to the others when their turn comes.
"""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from paceline.base.numbering import Inc, StepNo
from paceline.base.samples import Span, between
from paceline.protocol.records import Place, Plan
from paceline.protocol.samples.ledger import Ledger
from paceline.protocol.samples.plans import Plans, part_sizes
from paceline.wire.messages.feeds import Feed, Slice
from paceline_experiments.sim.costs import Ints


class Parts:
    """Some samples of a step, cut between workers."""

    __slots__ = ("_high", "_low", "whole")

    def __init__(self, whole: Sequence[Span], low: Ints, high: Ints) -> None:
        """``low``, ``high``: by worker, samples of ``whole`` in its order; equal: no part."""
        self.whole = tuple(whole)
        self._low, self._high = low, high

    @property
    def sizes(self) -> Ints:
        """Samples by worker."""
        sizes: Ints = self._high - self._low
        return sizes

    def of(self, worker: int, after: int = 0) -> list[Span]:
        """The samples of one worker, without its first ones."""
        return between(self.whole, int(self._low[worker]) + after, int(self._high[worker]))

    def take(self, worker: int) -> list[Span]:
        """The samples of one worker, which has no part from now on."""
        taken = self.of(worker)
        self._low[worker] = self._high[worker]
        return taken


class Members:
    """The workers that share what is granted next."""

    def __init__(self, names: Sequence[str], present: Sequence[int]) -> None:
        """``present``: rows of those that have a process."""
        self.rows = sorted(present, key=names.__getitem__)
        self._nodes = [names[row] for row in self.rows]
        self._num_workers = len(names)
        self._edges: dict[tuple[int, int], Ints] = {}
        """Edges of the workers' shares, by plan and size: most slices are alike."""

    def cut(self, plan: Plan, spans: Sequence[Span], batch_size: int | None = None) -> Parts:
        """Divide these samples by this plan; ``batch_size``: of a whole slice."""
        key = plan.no, sum(map(len, spans))
        if key not in self._edges:
            sizes = part_sizes(plan, self._nodes, key[1], batch_size)
            high = np.cumsum(sizes)
            self._edges[key] = edges = np.zeros((2, self._num_workers), dtype=np.int64)
            edges[:, self.rows] = high - sizes, high
        low, high = self._edges[key]
        return Parts(spans, low.copy(), high)


class Slices:
    """Deals a feed out step by step; the ledger hears of everything."""

    def __init__(self, plans: Plans, feed: Feed, incs: Ints) -> None:
        """``incs``: the workers' incarnations, by row; read whenever one is granted to."""
        self.ledger: Ledger = plans.ledger
        self.step = 1
        """The undecided one."""
        self.calls = 0
        """Grants and returns so far."""
        self._plans, self._feed, self._incs = plans, feed, incs
        self._ahead: deque[Parts] = deque()
        """Granted slices in order that have not begun."""

    # ------------------------------------------------------------------ steps

    def next(self, members: Members, reach: int, num_steps: int) -> Parts | None:
        """The parts of the undecided step; None: all is in the model.

        Args:
            members: who is granted to.
            reach: workers ask for more when they hold nothing of the slice so many further on.
            num_steps: slices that a grant reaches ahead.
        """
        whole = self._plans.undecided()
        if not whole:
            return None
        if not self._feed.is_in_order(whole) or len(self._ahead) <= reach:
            self._grant(members, whole, num_steps)
        return self._ahead.popleft()

    def plan_of(self, parts: Parts) -> Plan:
        """Return the plan by which a slice is dealt."""
        return self._plans.at(self._plans.place(parts.whole))

    def _grant(self, members: Members, whole: Slice, num_steps: int) -> None:
        first = self._feed.rank(whole)
        last = min(first + num_steps - 1, self._feed.num_slices)
        more = [(self._feed.slice_no(n),) for n in range(first + len(self._ahead), last + 1)]
        in_order = self._feed.is_in_order(whole)
        wholes = more if in_order else [whole, *more]
        size, plans = self._feed.batch_size, self._plans
        dealt = [members.cut(plans.at(plans.place(one)), one, size) for one in wholes]
        # All of it is to do: nobody has had any of these slices, or all have given them back.
        for row in members.rows:
            self.give(row, [span for parts in dealt for span in parts.of(row)])
        self._ahead.extend(dealt if in_order else dealt[1:])
        if not in_order:
            self._ahead.appendleft(dealt[0])

    def orphans(self, parts: Parts) -> list[Span]:
        """Return what nobody has of a slice that is dealt."""
        return self.ledger.pick_parts([(parts.whole, parts.whole)])

    def recall(self, since: Place) -> None:
        """Take back slices from here on, to grant them again."""
        back: dict[int, list[Span]] = {}
        while self._ahead and self._plans.place(self._ahead[-1].whole) >= since:
            parts = self._ahead.pop()
            for worker in np.flatnonzero(parts.sizes).tolist():
                back.setdefault(worker, []).extend(parts.of(worker))
        for worker, spans in back.items():
            self.put_back(worker, spans)

    # ------------------------------------------------------------------ the ledger

    def give(self, worker: int, spans: list[Span]) -> None:
        """Lease these samples, which nobody has, to a worker."""
        if spans:
            self.calls += 1
            self.ledger.grant(Inc(int(self._incs[worker])), spans)

    def decide(self, committed: Iterable[Span], late: dict[int, list[Span]]) -> None:
        """The undecided step is in the model; what workers were late with they give back."""
        self.ledger.commit(committed)
        self.step += 1
        for worker, spans in late.items():
            self.put_back(worker, spans)

    def put_back(self, worker: int, spans: list[Span]) -> None:
        """A worker forgets a part of its lease."""
        if spans:
            self.calls += 1
            self.ledger.give_back(Inc(int(self._incs[worker])), spans)

    def lose(self, worker: int) -> None:
        """A worker's leases go back."""
        self.calls += 1
        for parts in self._ahead:
            parts.take(worker)
        self.ledger.lose(Inc(int(self._incs[worker])))

    def roll_back(self, step: int, committed: Iterable[Span]) -> None:
        """Back to a checkpoint: all leases are void, and the newest plan holds."""
        self.ledger.restore(committed)
        self._plans.restart(StepNo(step - 1))
        self._ahead.clear()
        self.step = step
