"""The training loop of one ``job.batches``: slice after slice, each averaged over the group.

Order of one iteration: a step begins in a running group → this member's share of its slice, in one
batch or several → the user's forward and backward, while gradients are summed → when all sums are
here, the optimizers change the model and the slice is in it, as one act. If the group breaks before
that, the optimizers change nothing and the same step comes again, shared among the members of the
next group.

Reference: docs/protocols/integrity.md, section 5.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from paceline.base.errors import ConfigError, InternalError
from paceline.base.samples import Intervals
from paceline.runtime.allreduce.client import GroupClient
from paceline.runtime.allreduce.group import BREAKING, Gathering, Group
from paceline.runtime.allreduce.profiling import samples_of
from paceline.runtime.allreduce.reducer import Reducer
from paceline.runtime.allreduce.sharing import Sharing
from paceline.runtime.allreduce.store import GroupOver
from paceline.runtime.data.reader import Reader
from paceline.runtime.data.work import StepTimes, Work
from paceline.runtime.seeding import seed_all, seed_of
from paceline.wire.messages.feeds import Feed, Slice
from paceline.wire.messages.group import Division, RunGroup


@dataclass(slots=True)
class Step:
    """The step that this member is in."""

    run: RunGroup
    group: Group
    gathering: Gathering
    division: Division
    heard: Division
    """The newest that we had heard of when we entered."""
    whole: Slice
    runs: list[range]
    """What of it each member computes; see `Sharing`."""
    weight: int
    """Samples of ours; 0: what we compute on is another member's, and does not count."""
    start_s: float
    wait_s: float = 0.0
    works: list[Work] = field(default_factory=list)
    """The batches that we compute it in."""
    num_profiled: int = 0
    """So many of them come before our share, are timed, and count for nothing."""
    num_timed: int = 0
    first: Any = None
    batch_no: int = 0
    """Of them, that in the script's hands."""
    settled: bool = False
    """Gradients were averaged, or cannot be."""
    holds: bool = False
    """The averaged gradients are to change the model."""
    last: bool = False
    """Some member wants it to be the last one in this group."""
    stepped: set[int] = field(default_factory=set)
    """Optimizers that were told to step on this batch."""
    compute_s: float = 0.0

    @property
    def is_last_batch(self) -> bool:
        """Whether the step ends with the batch in the script's hands."""
        return self.batch_no == len(self.works) - 1


class Loop:
    """One pass over one feed. The strategy calls ``on_step`` for every ``optimizer.step()``.

    ``largest``: samples that a batch has at most; None: a share is one batch if nobody divides it.
    """

    def __init__(
        self,
        client: GroupClient,
        reducer: Reducer,
        feed: Feed,
        reader: Reader,
        ahead: int,
        num_optimizers: int,
        largest: int | None = None,
    ) -> None:
        self._client, self._reducer = client, reducer
        self._num_optimizers = num_optimizers
        self._feed, self._reader, self._ahead = feed, reader, ahead
        self._largest = largest
        spec = client.spec
        fewest = math.ceil(feed.batch_size / largest) if largest else 1
        blocks = max(spec.blocks, fewest) if spec.deterministic else 0
        self._sharing = Sharing(feed.batch_size, blocks)
        #: Works that were shown to the reader, by step and samples.
        self._shown: dict[tuple[int, Slice], Work] = {}
        self._num_steps = 0
        self.excluded_s = 0.0
        """Time since the batch was ready that was spent on something else (evaluation)."""
        self.step: Step | None = None
        """The newest step, until the next begins."""

    def run(self) -> Iterator[Any]:
        """Yield batch after batch until the feed is complete."""
        try:
            while (step := self._begin_next()) is not None:
                self.step = step
                for number, work in enumerate(step.works):
                    batch = self._reader.get(work) if number else step.first
                    step.batch_no = number
                    self._expect(step, work)
                    self._client.in_body = True
                    yield batch
                    self._finish_batch(step)
                    if self._is_lost(step):
                        break
                self._reducer.end()
                self._client.in_body = False
                self._num_steps += 1
        finally:
            self._abandon()

    def _is_lost(self, step: Step) -> bool:
        """Whether the group is over before our last batch of the step: it comes again."""
        if step.settled or not step.group.is_dropped:
            return False
        self._reducer.drop()
        self._client.failed(step.run, "it was dropped")
        return True

    # ------------------------------------------------------------------ before the user computes

    def _begin_next(self) -> Step | None:
        """Begin a step; None: the feed is complete, and all members hold all of it."""
        start_s = monotonic()
        while True:
            self._client.unmark()
            entered = self._client.enter(self._feed.feed, self._is_at_end)
            if entered is None:
                self._client.await_end(self._feed)
                self._client.load_end(self._feed)
                self._record(start_s)
                return None
            run, group = entered
            self._client.mark(computing=True)
            whole = self._feed.next_slice(self._line())
            step = self._try(run, group, whole, start_s)
            if step is None:
                continue
            if not whole:
                if self._prove(step):
                    self._client.unmark()
                    # A group that forms would wait for us, and the cut for the group.
                    self._client.leave_step()
                    self._client.await_end(self._feed)
                    self._record(start_s)
                    return None
                continue
            step.works, *later = self._upcoming(step)
            self._profile(step)
            step.first = self._reader.get(step.works[0])
            # Those that follow are made meanwhile.
            self._reader.ask([*step.works[1:], *(work for works in later for work in works)])
            now_s = monotonic()
            self._record(now_s)
            step.wait_s, step.start_s = now_s - start_s, now_s
            self._reducer.begin(group, step.runs)
            return step

    def _expect(self, step: Step, work: Work) -> None:
        """The script gets a batch."""
        step.stepped.clear()
        if step.num_profiled and step.batch_no <= step.num_profiled:
            # Each is timed by itself, and none of them is a part of the step's own time.
            step.start_s, self.excluded_s = monotonic(), 0.0
            self._client.mark(computing=True)
        total = sum(len(span) for span in step.whole)
        counts = step.weight > 0 and step.batch_no >= step.num_profiled
        part = work.num_samples / total if counts else 0.0
        settle = partial(self._settle, step)
        self._reducer.expect(part, settle, last=step.is_last_batch)
        if self._sharing.blocks:
            first = work.spans[0]
            seed_all(seed_of(self._client.spec.seed, first.line, first.start))

    def _profile(self, step: Step) -> None:
        """Put the batches before our share that are to be profiled."""
        size, step.num_profiled = self._client.profile_due()
        if step.num_profiled:
            mine = [span for work in step.works for span in work.spans]
            spans, number = samples_of(size, mine, step.whole), step.works[0].step
            times = range(step.num_profiled)
            step.works[:0] = [Work(self._feed.feed, spans, size, number) for _ in times]

    def _try(self, run: RunGroup, group: Group, whole: Slice, start_s: float) -> Step | None:
        """Tell the others that we are in this step."""
        number = self._client.state.step + 1
        try:
            divisions = self._client.divisions(run)
            if divisions is None:
                raise GroupOver("it was dropped")
            division, heard = divisions
            told = [number, _digest(whole), division.no, heard.no, self._client.wants_out]
            gathering = group.gather(told)
        except BREAKING as error:
            self._client.failed(run, f"entering step {number}: {error}")
            return None
        runs = self._sharing.runs(whole, group.size, division)
        weight = sum(map(len, self._sharing.samples(whole, runs[group.rank])))
        return Step(run, group, gathering, division, heard, whole, runs, weight, start_s)

    def _works(self, step: Step, number: int, whole: Slice) -> list[Work]:
        """The batches in which we compute our share of a step, divided as this one is."""
        sharing, group, parts = self._sharing, step.group, step.division.parts
        accumulation = parts[group.rank].accumulation if parts else 1
        mine = sharing.runs(whole, group.size, step.division)[group.rank]
        # Without samples of our own we compute on those of somebody else, so that the script takes
        # the same way in all members.
        mine = mine or sharing.stand_in(whole)
        size = sum(map(len, sharing.samples(whole, mine)))
        fewest = math.ceil(size / self._largest) if self._largest else 1
        shares = sharing.batches(whole, mine, max(accumulation, fewest))
        return [self._work(number, spans) for spans in shares]

    def _work(self, number: int, spans: Slice) -> Work:
        found = self._shown.pop((number, spans), None)
        size = sum(len(span) for span in spans)
        return found or Work(self._feed.feed, spans, size, number)

    def _upcoming(self, step: Step) -> list[list[Work]]:
        """The works of this step and those after it, as long as group and division are as now."""
        done = Intervals(self._line().edges)
        steps: list[list[Work]] = []
        number = self._client.state.step
        while sum(map(len, steps[1:])) < self._ahead:
            number += 1
            whole = self._feed.next_slice(done)
            if not whole:
                break
            steps.append(self._works(step, number, whole))
            for span in whole:
                done.add(span.start, span.stop)
        self._shown = {(work.step, work.spans): work for works in steps for work in works}
        return steps

    def _is_at_end(self) -> bool:
        """All of the feed is in our model."""
        return not self._feed.next_slice(self._line())

    def _line(self) -> Intervals:
        return self._client.state.done.line(self._feed.line())

    def _prove(self, step: Step) -> bool:
        """All of the feed is in our model: wait until all others are as far."""
        self._client.mark(computing=False)
        try:
            last = self._judge(step)
        except BREAKING as error:
            self._client.failed(step.run, f"at the end of feed {self._feed.feed}: {error}")
            return False
        return self._client.proven(step.run, last=last)

    # ------------------------------------------------------------------ after it

    def _settle(self, step: Step) -> None:
        """Wait for the averaged gradients; whether they may change the model."""
        if step.settled:
            return
        took_s = monotonic() - step.start_s - self.excluded_s
        if not step.is_last_batch:
            self._reducer.take()
            if step.num_timed == step.batch_no < step.num_profiled:
                step.num_timed += 1
                self._client.profiled(step.works[step.batch_no].num_samples, took_s)
            return
        step.settled, step.compute_s = True, took_s
        try:
            self._reducer.flush()
            self._client.mark(computing=False)
            step.last = self._judge(step)
            self._reducer.finish()
        except BREAKING as error:
            # First drop the group, so that what is under way comes to its end.
            self._client.failed(step.run, f"step {self._client.state.step + 1}: {error}")
            self._reducer.drop()
            return
        self._client.mark(computing=True)
        step.holds = self._client.begin_update(step.run)

    def _judge(self, step: Step) -> bool:
        """Whether somebody wants this step to be the last one in the group.

        Raises:
            RuntimeError, GroupOver: the group is over.
            InternalError: members are not in the same step: the model would be wrong.
        """
        told = step.gathering.wait()
        if len({(number, digest, division) for number, digest, division, *_ in told}) > 1:
            raise InternalError(f"members are in different steps: {told}")
        self._client.agree(step.run, step.heard, [heard for *_, heard, _ in told])
        return any(wants_out for *_, wants_out in told)

    def on_step(self, optimizer: int) -> bool:
        """An optimizer is told to step: whether it is to change its parameters.

        Raises:
            ConfigError: it steps twice for one batch, or what it is to apply is not one mean.
        """
        step = self.step
        if step is None or optimizer in step.stepped:
            raise ConfigError(
                "optimizer.step() was called before the first batch, or twice for one; a batch "
                "counts once: call it once, after all of loss.backward()"
            )
        self._settle(step)
        if self._reducer.called_twice:
            raise ConfigError(
                "loss.backward() was called again for one batch when its gradients were averaged "
                "over all workers: add the losses up and call it once, or, with several "
                "optimizers, call it before the first of them steps"
            )
        step.stepped.add(optimizer)
        return step.holds

    def stepped(self) -> None:
        """An optimizer has changed its parameters; after the last one the step is in the model."""
        step = self.step
        if step is not None and len(step.stepped) == self._num_optimizers:
            if not step.is_last_batch:
                return
            # What the script does until its next batch is no part of a step.
            self._client.unmark()
            if step.holds:
                self._reducer.update()
                self._client.updated(step.whole, last=step.last)

    def settle(self) -> bool:
        """Have the averaged gradients in place before the optimizers ask for them.

        Whether there are any, which are to change the model.
        """
        if self.step is not None:
            self._settle(self.step)
        return self.step is not None and self.step.holds

    def has_stepped(self, optimizer: int) -> bool:
        """Whether it was told to step on the batch in hand."""
        return self.step is not None and optimizer in self.step.stepped

    def _finish_batch(self, step: Step) -> None:
        """The user asks for the next batch."""
        missing = self._num_optimizers - len(step.stepped)
        if missing:
            raise ConfigError(
                f"a batch went by without optimizer.step() ({missing} of {self._num_optimizers} "
                "prepared optimizers did not step), so its samples would never count; call each "
                "once per batch, and use job.evaluate for batches that are not trained on"
            )

    def _record(self, now_s: float) -> None:
        """Note the times of the step that ended as the next begins."""
        step = self.step
        if step is None:
            return
        self._client.record(
            StepTimes(
                step=self._num_steps,
                samples=step.weight,
                start_s=step.start_s,
                bpt_s=now_s - step.start_s - self.excluded_s,
                compute_s=step.compute_s,
                server_s=0.0,
                message_s=0.0,
                wait_s=step.wait_s,
            )
        )
        self.excluded_s = 0.0

    def _abandon(self) -> None:
        """The loop is left: nothing of an unfinished step counts."""
        self._reducer.drop()
        self._reducer.end()
        self._client.unmark()
        self._client.in_body = False
        step = self.step
        if step is not None and step.holds and len(step.stepped) < self._num_optimizers:
            self._client.give_up_update(torn=bool(step.stepped))
        self._client.leave_step()
        self.step = None


def _digest(whole: Slice) -> int:
    """A number that tells slices of one feed apart."""
    return sum(31 * span.start + 17 * span.stop + span.line for span in whole)
