"""Shares of a member: what it computes of each step of a feed, in which batches. Does no I/O."""

import math
from collections import deque
from collections.abc import Sequence

from paceline.base.numbering import StepNo, step_after
from paceline.base.samples import Intervals, SampleSet, Span, num_samples
from paceline.protocol.holding.group.division import Sharing
from paceline.protocol.holding.group.member import MemberState
from paceline.runtime.data.work import Work
from paceline.runtime.group.profiling import samples_of
from paceline.runtime.group.step import GroupStep, StepPlan, joiners_of, num_sharing
from paceline.wire.messages.feeds import Feed, Slice
from paceline.wire.messages.group import Division, RunGroup


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
        #: be in the model then. And our rank.
        self._coming = deque[StepPlan]()
        self._for: tuple[RunGroup, Division, int] | None = None
        self._then = Intervals()
        #: Runs of the members, by the size of a slice and whether some join in it.
        self._runs: dict[tuple[int, bool], list[range]] = {}
        #: Works that the reader was asked for by the former group or division, by step and samples.
        self._shown: dict[tuple[int, Slice], Work] = {}

    def next(self, run: RunGroup, division: Division, rank: int) -> StepPlan:
        """Return the step that this group does next, and divides so; ``rank``: ours."""
        self._divide(run, division, rank)
        number, edges, coming = self._state.next_step, self._line().edges, self._coming
        while coming and coming[0].number < number:
            coming.popleft()
        if coming and coming[0].number == number and coming[0].before == edges:
            return coming[0]
        self._forget()
        self._then = Intervals(edges)
        plan = self._plan(number)
        if plan.whole:
            self._comes(plan)
        return plan

    def _divide(self, run: RunGroup, division: Division, rank: int) -> None:
        """Divide steps among a group's members from here on; again: nothing."""
        if self._for is not None and self._for[0] is run and self._for[1] is division:
            return
        self._runs.clear()
        self._forget()
        self._for = run, division, rank

    def _forget(self) -> None:
        """Forget which steps come, but not what the reader was asked for."""
        self._shown |= {(work.step, work.spans): work for one in self._coming for work in one.works}
        self._coming.clear()

    def _comes(self, plan: StepPlan) -> None:
        self._coming.append(plan)
        for span in plan.whole:
            self._then.add(span.start, span.stop)

    def _plan(self, number: StepNo) -> StepPlan:
        """Plan a step that follows those that come."""
        assert self._for is not None
        run, division, rank = self._for
        joiners, sharing = joiners_of(run, number), num_sharing(run, number)
        whole = self.feed.next_slice(self._then, sharing)
        size, global_batch = num_samples(whole), self.feed.global_batch(sharing)
        runs = self._runs_of(whole, size, joiners) if whole else []
        mine = runs[rank] if whole else range(0)
        return StepPlan(
            number=number,
            before=[*self._then.edges],
            whole=whole,
            size=size,
            global_batch=global_batch,
            num_batches=self._steps_of(len(self._then), size, global_batch) if whole else 0,
            joiners=joiners,
            runs=runs,
            weight=num_samples(self.sharing.samples(whole, mine)),
            works=self._works(division, rank, number, whole, mine) if whole else (),
        )

    def is_at_end(self, done: SampleSet) -> bool:
        """Tell whether all of the feed is in a model that holds these samples."""
        return not self.feed.next_slice(done.line(self.feed.line()))

    def _line(self) -> Intervals:
        return self._state.done.line(self.feed.line())

    def _runs_of(self, whole: Slice, size: int, joiners: Sequence[int]) -> list[range]:
        """Return the parts of a step that each member computes; see `Sharing`."""
        assert self._for is not None
        key = size, bool(joiners)
        found = self._runs.get(key)
        if found is None:
            run, division, _ = self._for
            found = self.sharing.runs(whole, len(run.members), division, joiners)
            self._runs[key] = found
        return found

    def steps_with(self, committed: Sequence[Span], global_batch: int) -> int:
        """Count the global batches that are complete once these samples are in the model, too."""
        return self._steps_of(len(self._line()), num_samples(committed), global_batch)

    def _steps_of(self, before: int, size: int, global_batch: int) -> int:
        return self.feed.steps_between(before, before + size, global_batch)

    def upcoming(self, ahead: int) -> list[Work]:
        """Return the works of steps after the next one, as long as group and division are as now.

        ``ahead``: how many, at least, unless the feed ends.
        """
        later = [*self._coming][1:] if ahead else []
        while sum(len(one.works) for one in later) < ahead:
            plan = self._plan(step_after(self._coming[-1].number))
            if not plan.whole:
                break
            self._comes(plan)
            later.append(plan)
        self._shown.clear()
        return [work for one in later for work in one.works]

    def _works(
        self, division: Division, rank: int, number: int, whole: Slice, mine: range
    ) -> list[Work]:
        """The batches in which we compute our share of a step."""
        sharing, parts = self.sharing, division.parts
        accumulation = parts[rank].accumulation if parts and self._divides else 1
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
