"""Shares of a member: what it computes of each step of a feed, in which batches. Does no I/O."""

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from paceline.base.numbering import StepNo, step_after
from paceline.base.samples import Intervals, SampleSet, Span, num_samples
from paceline.protocol.holding.group.division import Sharing
from paceline.protocol.holding.group.member import MemberState
from paceline.runtime.data.work import Work
from paceline.runtime.group.profiling import samples_of
from paceline.runtime.group.step import GroupStep, joiners_of, num_sharing
from paceline.wire.messages.feeds import Feed, Slice
from paceline.wire.messages.group import Division, RunGroup


class _Coming(NamedTuple):
    """A step that comes: its number, the feed's edges before it, its slice, our works of it."""

    number: StepNo
    before: tuple[int, ...]
    whole: Slice
    works: list[Work]


class StepShares:
    """The slices of one feed, and this member's part of each.

    Args:
        sharing: divides a slice among members.
        feed: what is trained on.
        state: of this member.
        largest: samples that a batch has at most; None: a share is one batch if nobody divides it.
        accumulate: batches that every share is computed in, however small it is; 1: any number.
        divides: whether a division of the work may say that a share comes as several batches.
    """

    def __init__(
        self,
        sharing: Sharing,
        feed: Feed,
        state: MemberState,
        largest: int | None = None,
        accumulate: int = 1,
        *,
        divides: bool = True,
    ) -> None:
        self.sharing, self.feed, self.accumulate = sharing, feed, accumulate
        self._divides = divides
        self._state, self._largest = state, largest
        self.bodies = 0
        """Batches of a step that the script counts, also where its worker has the share of another
        one, too: what it does in the batches before these is taken back. 0: it counts all."""
        #: Steps that come next, as long as group and division are those, and what of the feed will
        #: be in the model then.
        self._coming = deque[_Coming]()
        self._for: tuple[RunGroup, Division] | None = None
        self._then = Intervals()
        #: Runs of the members, by the size of a slice and whether some join in it.
        self._runs: dict[tuple[int, bool], list[range]] = {}
        #: Works that the reader was asked for by the former group or division, by step and samples.
        self._shown: dict[tuple[int, Slice], Work] = {}

    def next(self, run: RunGroup) -> Slice:
        """The slice of the step that this group does next; empty: all of the feed is in a model."""
        number, done = self._state.step + 1, self._line()
        head = self._head(number) if self._for is not None and self._for[0] is run else None
        if head is not None and head.before == tuple(done.edges):
            return head.whole
        return self._slice(run, number, done)

    def _slice(self, run: RunGroup, number: int, done: Intervals) -> Slice:
        """The slice of a step of this group, after these samples."""
        return self.feed.next_slice(done, num_sharing(run, number))

    def is_at_end(self, done: SampleSet) -> bool:
        """Tell whether all of the feed is in a model that holds these samples."""
        return not self.feed.next_slice(done.line(self.feed.line()))

    def _line(self) -> Intervals:
        return self._state.done.line(self.feed.line())

    def runs(self, run: RunGroup, number: int, whole: Slice, division: Division) -> list[range]:
        """Return the parts of a step that each member computes; see `Sharing`."""
        self._divide(run, division)
        joiners = joiners_of(run, number)
        key = num_samples(whole), bool(joiners)
        found = self._runs.get(key)
        if found is None:
            found = self.sharing.runs(whole, len(run.members), division, joiners)
            self._runs[key] = found
        return found

    def _divide(self, run: RunGroup, division: Division) -> None:
        """Divide steps among a group's members from here on; again: nothing."""
        if self._for is not None and self._for[0] is run and self._for[1] is division:
            return
        self._runs.clear()
        self._forget()
        self._for = run, division

    def steps_with(self, committed: Sequence[Span], global_batch: int) -> int:
        """Count the global batches that are complete once these samples are in the model, too."""
        before = len(self._line())
        return self.feed.steps_between(before, before + num_samples(committed), global_batch)

    def upcoming(self, step: GroupStep, ahead: int) -> list[list[Work]]:
        """The works of this step and those after it, as long as group and division are as now."""
        self._come_to(step)
        number = self._coming[-1].number if self._coming else self._state.step
        while sum(len(one.works) for one in self._coming) < ahead + self._num_next():
            number = step_after(number)
            before = tuple(self._then.edges)
            whole = self._slice(step.run, number, self._then)
            if not whole:
                break
            self._coming.append(_Coming(number, before, whole, self._works(step, number, whole)))
            for span in whole:
                self._then.add(span.start, span.stop)
        self._shown.clear()
        return [list(one.works) for one in self._coming]

    def _num_next(self) -> int:
        """Count the batches of the step that comes next; one that is not known: one at least."""
        return len(self._coming[0].works) if self._coming else 1

    def _come_to(self, step: GroupStep) -> None:
        """Forget which steps come but for those from this one on, if all is as was expected."""
        self._divide(step.run, step.division)
        edges = self._line().edges
        head = self._head(self._state.step + 1)
        if head is None or head.before != tuple(edges):
            self._forget()
            self._then = Intervals(edges)

    def _head(self, number: int) -> _Coming | None:
        """Return the step of this number, if it is the next one that is known."""
        coming = self._coming
        while coming and coming[0].number < number:
            coming.popleft()
        return coming[0] if coming and coming[0].number == number else None

    def _forget(self) -> None:
        """Forget which steps come, but not what the reader was asked for."""
        self._shown |= {(work.step, work.spans): work for one in self._coming for work in one.works}
        self._coming.clear()

    def _works(self, step: GroupStep, number: int, whole: Slice) -> list[Work]:
        """The batches in which we compute our share of a step, divided as this one is."""
        sharing, group, parts = self.sharing, step.group, step.division.parts
        accumulation = parts[group.rank].accumulation if parts and self._divides else 1
        mine = self.runs(step.run, number, whole, step.division)[group.rank]
        # Without samples of our own we compute on those of somebody else, so that the script takes
        # the same way in all members.
        mine = mine or sharing.stand_in(whole)
        if self.accumulate > 1:
            return [self._work(number, spans) for spans in self._accumulated(whole, mine)]
        size = num_samples(sharing.samples(whole, mine))
        fewest = math.ceil(size / self._largest) if self._largest else 1
        shares = sharing.batches(whole, mine, max(accumulation, fewest))
        return [self._work(number, spans) for spans in shares]

    def _accumulated(self, whole: Slice, mine: range) -> list[Slice]:
        """A share in exactly as many batches as the script takes for a step.

        One of fewer samples has its first one more than once; see `num_idle`.
        """
        idle = [range(mine.start, mine.start + 1)] * self.num_idle(len(mine))
        count = self.accumulate - len(idle)
        edges = [mine.start + len(mine) * k // count for k in range(count + 1)]
        runs = [*idle, *map(range, edges, edges[1:])]
        return [tuple(self.sharing.samples(whole, run)) for run in runs]

    def num_idle(self, size: int) -> int:
        """Count the batches of a share of this size that come first, and count for nothing."""
        return max(0, self.accumulate - max(size, 1))

    def _work(self, number: int, spans: Slice) -> Work:
        found = self._shown.pop((number, spans), None)
        return found or Work(self.feed.feed, spans, num_samples(spans), number)

    def few(self, whole: Slice) -> list[Work]:
        """Return works of as few samples of the next step as can be computed."""
        # BatchNorm could not make a mean of one sample.
        size = min(2, self._largest or 2, num_samples(whole))
        shares = self.sharing.batches(whole, range(size), 1)
        number = self._state.step + 1
        return [self._work(number, spans) for spans in shares for _ in range(self.accumulate)]

    def profiled(self, step: GroupStep, size: int) -> Work:
        """A batch of this size to profile, of samples that are our own as far as possible."""
        mine = [span for work in step.works for span in work.spans]
        spans = samples_of(size, mine, step.whole)
        return Work(self.feed.feed, spans, size, step.works[0].step)
