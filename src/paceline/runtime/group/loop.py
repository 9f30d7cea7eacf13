"""The training loop of one ``job.batches``: slice after slice, each averaged over the group.

Order of one iteration: a step begins in a running group → this member's share of its slice, in one
batch or several → the user's forward and backward, while gradients are summed → when all sums are
here, the optimizers change the model and the slice is in it, as one act. If the group breaks before
that, the optimizers change nothing and the same step comes again, shared among the members of the
next group.

A step that may lack something (`Division.lacking`) may go on without a member that is late. That
one is in the step until the script has computed what it has in hand, and has the others' mean then;
the others begin the next step, but do not complete it without that member. So it is with members
that join: in the first step of their group they hand in nothing, once they have copied the state.

Reference: docs/protocols/integrity.md, section 8.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic, process_time, thread_time
from typing import Any

from torch.optim.swa_utils import AveragedModel

from paceline.base.cgroups import cpu_quota
from paceline.base.errors import ConfigError, InternalError
from paceline.base.samples import Span, between, num_samples
from paceline.runtime.data.reader import Reader
from paceline.runtime.data.work import Work
from paceline.runtime.group.alone import COMPARED_STEPS, StepsAlone
from paceline.runtime.group.group import BREAKING, Group
from paceline.runtime.group.member import MemberClient
from paceline.runtime.group.reducer import ALL, Reducer
from paceline.runtime.group.shares import StepShares
from paceline.runtime.group.short import Missing, ShortStep
from paceline.runtime.group.step import WANTS_OUT, GroupStep, StepPlan, Told, digest
from paceline.runtime.group.watcher import Diverged, Divergence, Watcher
from paceline.runtime.process.process import Fenced, fence_soon
from paceline.runtime.script.step_frame import LEFT, NO_BACKWARD, StepFrame
from paceline.runtime.variables.comparing import gathered, told_of
from paceline.runtime.variables.variables import LinesMissed
from paceline.wire.messages.group import RunGroup


class GroupLoop(StepFrame[GroupStep]):
    """One pass over one feed, whose every step is one of all members.

    ``watcher``: compares what members hold, over all loops of the job.
    ``whole_steps``: none goes on without who is late.
    """

    def __init__(
        self,
        client: MemberClient,
        reducer: Reducer,
        shares: StepShares,
        reader: Reader,
        ahead: int,
        num_optimizers: int,
        *,
        watcher: Watcher,
        whole_steps: bool = False,
    ) -> None:
        super().__init__(num_optimizers, shares.accumulate)
        self._client, self._watcher = client, watcher
        self.regroup: Callable[[], Reducer | None] = lambda: None
        """Returns another reducer, if the script trains something else by now."""
        self._variables = client.variables
        self._shares, self._sharing, self._feed = shares, shares.sharing, shares.feed
        self._reader, self._ahead = reader, ahead if reader.makes_ahead else 0
        self._variables.copies_at_once = self._sharing.blocks > 0
        # What a late member hands in at once would be of all turns.
        self._whole_steps = whole_steps or self._sharing.blocks > 0 or reducer.takes_turns
        self._sum_with(reducer)
        #: The script has a batch.
        self._is_out = False
        #: Share of a core that one thread may have.
        self._core = min(1.0, cpu_quota() or 1.0)

    def _sum_with(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._alone = StepsAlone(self._client, reducer, self._shares, self._variables)

    @property
    def is_left_out(self) -> bool:
        return self.step is not None and self.step.settled and self._reducer.left_out

    @property
    def global_batch(self) -> int:
        """Samples of a whole step like the one in hand; 0: there is none."""
        step = self.step
        if step is None:
            return 0
        return step.plan.size if self._feed.ends else step.plan.global_batch

    def _batches(self, step: GroupStep) -> Iterator[Any]:
        if step.is_alone:
            step.stepped.clear()
            self._client.in_body = self._is_out = True
            self._variables.given()
            yield step.batch
            self._is_out = False
            self._finish(step)
            self._client.in_body = False
            return
        lost = False
        for number, work in enumerate(step.works):
            # A script that counts batches for its `optimizer.step()` gets all of a broken step.
            if lost and number % self.accumulate == 0:
                break
            if number and self.accumulate == 1 and step.may_skip(number):
                continue
            if number:
                step.batch = self._read(step, work)
            step.batch_no = number
            self._expect(step, work)
            self._client.in_body = True
            self._variables.given()
            self._is_out = True
            yield step.batch
            self._is_out = False
            self._finish(step)
            lost = lost or self._is_lost(step)
            if self._counts_for_nothing(step) or self._is_block_of_many(step):
                self._variables.undo()
        self._reducer.end()
        self._client.in_body = False

    @property
    def _has_left_broken_step(self) -> bool:
        """Whether the script left its loop for good in a step that would have come again.

        It takes the step for done, and no member has it. A new life begins where the state is.
        """
        step = self.step
        follows = self._variables.found and self._variables.takes_back
        if not (self._is_out and follows) or step is None or self._client.stops:
            return False
        return step.settled and bool(step.stepped) and not (step.holds or step.on_trial)

    def _counts_for_nothing(self, step: GroupStep) -> bool:
        """Tell whether the batch is only timed, fills a place, or is of another worker.

        Not for the model: what the script counts goes on as if it had not come.
        """
        bodies = self._shares.bodies
        more = len(step.works) - bodies if bodies else 0
        idle = max(step.num_profiled, step.num_idle, more)
        return step.batch_no < idle and not step.is_last_batch

    def _is_block_of_many(self, step: GroupStep) -> bool:
        """Tell whether more blocks of the step follow in this member.

        How many it has follows from who shares the step. What the script counts may not: for its
        variables a step is one batch, the last one.
        """
        return self._sharing.blocks > 0 and not step.is_last_batch

    def _is_lost(self, step: GroupStep) -> bool:
        """Tell whether the group is over before our last batch of the step: it comes again."""
        if step.settled or not step.group.is_dropped:
            return False
        step.close()
        self._reducer.drop()
        self._client.failed(step.run, "it was dropped")
        step.settled = True
        return True

    def _finish(self, step: GroupStep) -> None:
        """The script asks for the next batch.

        Raises:
            ConfigError: an optimizer did not step, though its parameters have gradients.
        """
        whole = (step.batch_no + 1) % self.accumulate == 0
        missing = len(step.stepped) < self.num_optimizers
        if step.evaluating:
            raise ConfigError(LEFT)
        if self.accumulate > 1 and not whole:
            self._settle(step)
            self._check_called_once()
            self._reducer.forget()
        elif missing and step.stepped and self._reducer.may_skip:
            self.close_step()
        elif missing and self._may_leave_out(step):
            self._leave_out(step)
        elif missing:
            raise self._not_stepped(step)

    def _may_leave_out(self, step: GroupStep) -> bool:
        """Tell whether the script means to leave out a batch that it has not stepped on."""
        if step.stepped or self.accumulate > 1 or self._sharing.blocks:
            return False
        return not self._reducer.has_gradients and self._may_miss_a_step()

    def _leave_out(self, step: GroupStep) -> None:
        """Have all members do this step without a change of the model."""
        if not step.settled:
            self._reducer.leave_out()
            self._settle(step)
        step.left_out = self._reducer.left_out = True
        if step.on_trial:  # for clipping all gradients were averaged, and no turn comes any more
            self._hold(step, ALL)
        step.stepped.update(range(self.num_optimizers))
        self.stepped()

    @property
    def half_done(self) -> GroupStep | None:
        """The step in hand, if an optimizer has stepped on it, and others may."""
        step = self.step
        if step is None or not step.stepped or not step.is_last_batch or step.evaluating:
            return None
        waits = len(step.stepped) < self.num_optimizers
        return step if waits and (step.holds or step.on_trial) else None

    def average_within(self, average: AveragedModel) -> int:
        """Have an average follow the optimizers that have stepped so far, and others may yet.

        What the average held is kept: if the step comes again, so does that.

        Returns:
            Number of the attempt at this step, with how many of them have stepped; 0: all have, or
            none, or what they have changed counts for nothing.
        """
        step = self.half_done
        if step is None:
            return 0
        if step.on_trial:
            self._reducer.keep_average(average)
        return self.num_steps * (self.num_optimizers + 1) + len(step.stepped)

    def close_step(self) -> None:
        """See `StepFrame.close_step`: what was on trial counts from here on, in all members."""
        step = self.half_done
        if step is None or not self._reducer.may_skip:
            return
        if step.on_trial:
            self._end_trial(step)
        step.closed = True
        missing = set(range(self.num_optimizers)) - step.stepped
        step.stepped |= missing
        if step.holds:
            self._reducer.skip(missing)
            for number in missing:
                self._watcher.stepping(number, self._client.state.next_step, steps=False)
        self.stepped()

    def _end_trial(self, step: GroupStep) -> None:
        """Have what was on trial count from here on in all members, or take it back."""
        if self._await_turn(step, self._reducer.no_more):
            step.holds = self._client.begin_update(step.run)
            if not step.holds:
                self._take_back(step)
        step.on_trial = False

    # ------------------------------------------------------------------ before the user computes

    def _begin_next(self) -> GroupStep | None:
        """Begin a step; None: the feed is complete, and all members hold all of it."""
        asked_s = monotonic()
        plan = self._alone.next_after(self.step)
        step = self._begin_alone(plan, asked_s) if plan is not None else None
        return step or self._begin_any(asked_s)

    def _begin_any(self, asked_s: float) -> GroupStep | None:
        """Begin a step of a group of any size."""
        num_events, last = self._client.num_events, self.step
        goes_on = self._alone.begins_again(last)
        self._alone.begins_any(num_events)
        if goes_on:
            self._client.mark(computing=True)
        self._mark()
        while True:
            entered = (last.run, last.group) if goes_on and last is not None else self._enter()
            goes_on = False
            if entered is None:
                self._record(asked_s)
                return None
            step = self._try(*entered)
            if step is None or not (self.num_steps or self._trains_as_all(step)):
                continue
            if not step.whole:
                if self._prove(step):
                    self._client.unmark()
                    # A group that forms would wait for us, and the cut for the group.
                    self._client.leave_step()
                    self._variables.loop_ends()
                    self._variables.at_end = True
                    self._client.await_end(self._feed)
                    self._record(asked_s)
                    return None
                continue
            self._variables.comes_to(self._client.state.step)
            if not self._compare(step):
                continue
            step.works, later = [*step.plan.works], self._shares.upcoming(self._ahead)
            step.num_idle = self._shares.num_idle(step.weight) if step.weight else 0
            if not self._begin_sums(step):
                continue
            if not step.behind:
                self._profile(step)
            step.batch = self._read(step, step.works[0])
            # Those that follow are made meanwhile.
            self._reader.ask([*step.works[1:], *later])
            self._start(step, asked_s)
            state = self._client.state
            step.begins_at, step.waited_before_s = state.position.at(state.step), step.data_s
            return step

    def _enter(self) -> tuple[RunGroup, Group] | None:
        """Come into a step of the group that runs; None: the loop is over."""
        entered = self._client.enter(self._feed.feed, self._shares.is_at_end)
        if entered is None:
            self._variables.loop_ends()
            self._variables.at_end = True
            self._client.await_end(self._feed)
            self._client.load_end(self._feed)
            return None
        self._client.entered = entered[0]
        if self._is_left():
            self._client.leave_step()
            return None
        self._client.mark(computing=True)
        return entered

    def _begin_alone(self, plan: StepPlan, asked_s: float) -> GroupStep | None:
        """Begin the next step of a group of one; None: something has come meanwhile."""
        step, state = self.step, self._client.state
        assert step is not None
        self._client.mark(computing=True)
        batch = self._reader.get(plan.works[0])
        if not self._alone.begins(step):
            return None
        if self._ahead:
            self._reader.ask(self._shares.upcoming(self._ahead))
        self._start(step, asked_s)
        step.comes_alone(plan, batch)
        step.data_s = step.waited_before_s = step.wait_s
        step.begins_at = state.position.at(state.step)
        return step

    def _is_left(self) -> bool:
        """Take over the script's variables; whether scripts had left this loop with them."""
        if self._variables.take_left():
            self._client.script_entered()
            return True
        if self._take_variables():
            self._client.script_entered()
            if (reducer := self.regroup()) is not None:
                self._sum_with(reducer)
            self._variables.mark()
        elif self._variables.became:  # of a peer that had no variables: the model has changed
            self._variables.mark()
        return False

    def _take_variables(self) -> bool:
        """Take the script's variables over from a peer or a cut; whether there were any.

        Raises:
            Fenced: some cannot be had, but the next life begins in this epoch, and sets them.
        """
        try:
            return self._variables.take()
        except LinesMissed as error:
            self._begin_again(error)
            if error.is_shared:
                raise
            sys.stderr.write(f"paceline: {error}. It goes on: one worker alone had set it\n")
            return True

    def _begin_again(self, error: ConfigError) -> None:
        """End this life, if the next one begins in the epoch of this loop, and runs its lines."""
        if self._feed.of_epochs and self._variables.began_at != self._feed.place:
            sys.stderr.write(
                f"paceline: {error}. This life ends; the next one begins in the epoch of the "
                "others, and runs the lines before its loop\n"
            )
            raise Fenced from None

    def _mark(self) -> None:
        """Keep the script's variables as they are, or, if the step comes again, as they were."""
        if not self._variables.found:
            return
        if self.step is not None and not self.step.holds:
            self._variables.undo()
        else:
            self._variables.mark()
        self._variables.ready = None

    def _compare(self, step: GroupStep) -> bool:
        """Compare the script's variables in the first two steps of a loop; False: it is over."""
        whole = step.whole
        if not self._variables.found or self._feed.number_at(whole[0].start) > COMPARED_STEPS:
            return True
        if not self._feed.is_in_order(whole):
            return True
        self._client.mark(computing=False)
        try:
            tables = gathered(step.group, self._variables.table())
        except BREAKING as error:
            step.check_place()
            self._client.failed(step.run, f"comparing variables: {error}")
            return False
        self._client.mark(computing=True)
        differ = self._variables.compare(tables)
        if differ:  # in its own output: a member that has just come in knows of no difference
            sys.stderr.write(f"paceline: {told_of(differ)}\n")
        return True

    def _read(self, step: GroupStep, work: Work) -> Any:
        """A batch; the wait for it is no part of the step's computation."""
        wanted_s = monotonic()
        batch = self._reader.get(work)
        step.data_s += monotonic() - wanted_s
        return batch

    def _begin_sums(self, step: GroupStep) -> bool:
        """Have our gradients summed, if we have a share; False: the group is over."""
        lacking = step.lacking
        may_lack = not self._whole_steps and max(lacking.left_out, lacking.late) > 0
        joiners = step.plan.joiners
        joins, may_lack = step.group.rank in joiners, may_lack and not joiners
        if joins and self._reducer.takes_turns:
            # Nobody knows whose turn is next: it takes part in each one, with nothing of its own.
            self._fall_behind(step)
            joins = False
        self._reducer.begin(step.group, step.plan.runs, whole=not (joins or may_lack))
        if may_lack:
            self._watch(step)
        return not joins or self._join(step)

    def _join(self, step: GroupStep) -> bool:
        """Hand in at once that we have nothing: others do without us, but for the sums."""
        try:
            self._reducer.hand_in()
        except BREAKING as error:
            self._client.failed(step.run, f"joining: {error}")
            self._reducer.drop()
            return False
        self._fall_behind(step)
        return True

    def _watch(self, step: GroupStep) -> None:
        """Hand in what we have when the others need not wait for more."""
        runs = step.plan.runs
        shares = [num_samples(self._sharing.samples(step.whole, run)) for run in runs]
        missing = Missing(step.lacking, shares, step.group.rank)
        step.short = ShortStep(missing, partial(self._hand_in, step))
        self._client.watch_peers(step.run, step.short)
        if step.short.is_due:
            self._fall_behind(step)
        threading.Thread(target=step.short.watch, name="paceline-watch", daemon=True).start()

    def _fall_behind(self, step: GroupStep) -> None:
        """Compute as little as can be, so as to be in time for the next step."""
        step.works = self._shares.few(step.whole)
        step.weight, step.behind = 0, True

    def _expect(self, step: GroupStep, work: Work) -> None:
        """The script gets a batch."""
        step.stepped.clear()
        if step.num_profiled and step.batch_no <= step.num_profiled:
            self._client.mark(computing=True)  # a member that hangs does so in one of them
        # The script adds up the gradients of so many means, of which it makes one as it likes.
        part = self.accumulate * step.counting(work) / step.plan.size
        settle = partial(self._settle, step)
        self._reducer.expect(part, settle, last=step.is_last_batch)
        if self._sharing.blocks:
            self._reseed(self._client.spec.seed, work)

    def _profile(self, step: GroupStep) -> None:
        """Put the batches that must be profiled before our share."""
        if self.accumulate > 1 or self._reducer.by_closure:
            return
        size, step.num_profiled = self._client.profile_due()
        if step.num_profiled:
            times = range(step.num_profiled)
            step.works[:0] = [self._shares.profiled(step, size) for _ in times]

    def _try(self, run: RunGroup, group: Group) -> GroupStep | None:
        """Tell the others that we are in the step that is next."""
        held, number = self._client.state.step, self._client.state.next_step
        try:
            division, heard = self._client.divisions(run)
            plan = self._shares.next(run, division, group.rank)
            told = Told(
                number,
                self._feed.feed,
                digest(plan.whole),
                division.no,
                heard.no,
                self._client.ready_for_cut,
                self._client.wants_out,
                *self._watcher.word(held, joins=group.rank in plan.joiners),
                *self._watcher.trained,
            )
            gathering = group.tell(told)
        except BREAKING as error:
            self._client.failed(run, f"entering step {number}: {error}")
            return None
        return GroupStep(run, group, gathering, division, heard, plan, plan.weight)

    def _trains_as_all(self, step: GroupStep) -> bool:
        """Compare what members train, in our first step of a loop; False: the group is over.

        What is trained changes between loops. So if two members differ, one of them has come to its
        first step, and finds it before it sums anything.
        """
        self._client.mark(computing=False)
        try:
            told = step.told()
        except BREAKING as error:
            self._client.failed(step.run, f"entering a loop: {error}")
            return False
        self._client.mark(computing=True)
        try:
            self._watcher.check_trained([one[-3:] for one in told], step.group)
        except ConfigError as error:
            if step.group.rank in step.plan.joiners:
                self._begin_again(error)
            raise
        return True

    def _prove(self, step: GroupStep) -> bool:
        """Wait until all others are as far: all of the feed is in our model."""
        self._client.mark(computing=False)
        try:
            last = self._judge(step)
        except Diverged as error:
            self._give_up(step, error.found)
            return False
        except BREAKING as error:
            self._client.failed(step.run, f"at the end of feed {self._feed.feed}: {error}")
            return False
        return self._client.proven(step.run, last=last)

    # ------------------------------------------------------------------ after it

    def _settle(self, step: GroupStep, optimizer: int = ALL) -> None:
        """Wait for the averaged gradients; whether they may change the model.

        Args:
            step: in hand.
            optimizer: is about to step; `ALL`: none of them yet.
        """
        if step.settled:
            if step.on_trial and optimizer != ALL:
                self._take_turn(step, optimizer)
            return
        if step.is_alone:
            self._settle_alone(step)
            return
        self._reducer.await_device()  # what it took is what the policies go by
        waited_s = step.data_s - step.waited_before_s
        took_s = monotonic() - step.start_s - self.excluded_s - waited_s
        samples = 0
        if step.settling < step.batch_no:  # with several optimizers the first that steps
            step.settling = step.batch_no
            samples = step.counting(step.works[step.batch_no])
            step.samples += samples
        if not step.is_last_batch:
            if step.short is None:
                self._reducer.take()
            else:
                step.short.take(self._reducer.take, samples)
            if step.num_timed == step.batch_no < step.num_profiled:
                step.num_timed += 1
                self._client.profiled(step.works[step.batch_no].num_samples, took_s)
                # The times include what lies between two batches, which each batch of a step costs.
                step.start_s, self.excluded_s = monotonic(), 0.0
                step.waited_before_s = step.data_s
            return
        step.settled, step.compute_s = True, took_s
        step.computed_cpu_s = process_time()
        self._reducer.wants(optimizer)
        start_s = monotonic()
        try:
            self._flush(step)
            self._client.mark(computing=False)
            self._await_sums(step)
        except Diverged as error:
            self._give_up(step, error.found)
            return
        except BREAKING as error:
            # First drop the group, so that what is under way comes to its end.
            self._client.failed(step.run, f"step {self._client.state.step + 1}: {error}")
            self._reducer.drop()
            return
        step.turns_s = monotonic() - start_s
        self._client.mark(computing=True)
        self._hold(step, optimizer)

    def _settle_alone(self, step: GroupStep) -> None:
        """The gradients are the mean as they are."""
        step.settled, step.samples = True, step.weight
        step.compute_s = monotonic() - step.start_s - self.excluded_s
        step.computed_cpu_s = thread_time()
        step.committed, step.num_batches = step.whole, step.plan.num_batches
        step.holds = self._client.begin_update(step.run)

    def _hold(self, step: GroupStep, optimizer: int) -> None:
        """The gradients of an optimizer are there: it may step, for good or on trial."""
        if step.left_out or self._reducer.is_last_turn(step.stepped, optimizer):
            step.holds = self._client.begin_update(step.run)
            if not step.holds:
                self._take_back(step)
            step.on_trial = False
        elif self._client.begin_trial(step.run):
            step.on_trial = True
        else:
            self._take_back(step)

    def _take_turn(self, step: GroupStep, optimizer: int) -> None:
        """Have an optimizer step in its turn: others have stepped on trial."""
        if self._reducer.is_due(optimizer):
            self._reducer.await_device()
            waited_s = step.data_s - step.waited_before_s + step.turns_s
            begun_s, step.computed_cpu_s = monotonic(), process_time()
            step.compute_s = begun_s - step.start_s - self.excluded_s - waited_s
            self._reducer.wants(optimizer)
            if not self._await_turn(step, self._reducer.finish):
                return
        self._hold(step, optimizer)

    def _await_turn(self, step: GroupStep, wait: Callable[[], None]) -> bool:
        """Wait for the others in a turn; False: the step comes again."""
        begun_s = monotonic()
        self._client.mark(computing=False)
        try:
            wait()
        except BREAKING as error:
            self._client.failed(step.run, f"step {self._client.state.step + 1}: {error}")
            self._reducer.drop()
            self._take_back(step)
            return False
        step.turns_s += monotonic() - begun_s
        self._client.mark(computing=True)
        return True

    def _take_back(self, step: GroupStep) -> None:
        """The step comes again: nothing of it is in the model."""
        self._reducer.take_back()
        step.on_trial = False

    def _await_sums(self, step: GroupStep) -> None:
        """Make the gradients the mean over all that is in the step."""
        start_s = monotonic()
        if step.gathering.by_memory and step.short is None:
            # Members write their words before they begin their sums, so all words are there then.
            try:
                self._reducer.await_sums()
            except BREAKING:
                step.check_place()
                raise
        step.last = self._judge(step)
        step.committed = self._committed(step)
        if not step.committed:
            raise InternalError(f"step {self._client.state.step + 1} is to be of no samples")
        plan, size = step.plan, step.plan.size
        step.num_batches = plan.num_batches
        if step.committed is not plan.whole:
            size = num_samples(step.committed)
            step.num_batches = self._shares.steps_with(step.committed, plan.global_batch)
        self._reducer.finish(size / plan.size)
        step.left_out = self._reducer.left_out
        if plan.joiners:
            self.excluded_s += monotonic() - start_s  # waited for a copy, not for a slow peer

    def _flush(self, step: GroupStep) -> None:
        """Let all of ours go, if it is in time; raises as `Reducer.flush`."""
        if step.short is None:
            self._reducer.flush()
        elif step.short.close():
            if not step.behind:
                self._client.tell_computed(step.run)
            step.present = step.group.gather([step.weight])
            self._reducer.flush()

    def _hand_in(self, step: GroupStep, samples: int) -> None:
        """We are late: let go what was taken, of so many samples; in the watcher's thread."""
        step.present = step.group.gather([samples])
        self._reducer.hand_in()

    def _committed(self, step: GroupStep) -> Sequence[Span]:
        """Return what of the step is in the sums: of each member's share the first samples."""
        if step.present is None:
            return step.whole
        told = step.present.wait()
        shares = [self._sharing.samples(step.whole, run) for run in step.plan.runs]
        return [
            span
            for share, (samples,) in zip(shares, told, strict=True)
            for span in between(share, 0, samples)
        ]

    def _give_up(self, step: GroupStep, found: Divergence) -> None:
        """Leave the group, whose members differ; those that most do not agree with copy from these.

        Raises:
            ConfigError: nobody knows what is right.
        """
        held, differs = self._client.state.step, step.group.rank in found.minority
        gave_up = self._client.diverged(step.run, found.text, gives_up=differs)
        self._reducer.drop()
        self._watcher.heal(held, found, gave_up=gave_up)

    def _judge(self, step: GroupStep) -> bool:
        """Tell whether somebody wants this step to be the last one in the group.

        Raises:
            Diverged: members differ in what the step would change.
            RuntimeError, GroupOver: the group is over.
            ConfigError, InternalError: see `GroupStep.check_same`.
        """
        rows = step.gathering.wait()
        if self._is_plain(step, rows):
            return False
        told = [Told(*row) for row in rows]
        step.check_same(told)
        words = [one.word for one in told]
        state = self._client.state
        begins = state.position.began is None
        self._watcher.judge(state.step, words, step.group, begins=begins)
        self._client.agree(step.run, step.heard, [one.heard for one in told])
        self._client.agree_on_cut([one.cut for one in told])
        return any(one.wants_out for one in told)

    def _is_plain(self, step: GroupStep, rows: Sequence[Sequence[int]]) -> bool:
        """Tell whether all members have said the same, and nothing that is to be acted on."""
        first = rows[0]
        if step.heard is not step.division or self._client.together:
            return False
        if first[WANTS_OUT] or any(row != first for row in rows):
            return False
        return not self._watcher.is_due(self._client.state.step)

    def _take(self, step: GroupStep, optimizer: int) -> bool:
        self._check_place(step.batch_no)
        self._settle(step, optimizer)
        self._check_called_once()
        if step.on_trial:
            self._reducer.keep(optimizer)
        elif step.changes:
            self._reducer.check_over(optimizer)
        step.stepped.add(optimizer)
        if (step.holds or step.on_trial) and not step.is_alone:
            self._watcher.stepping(optimizer, self._client.state.next_step)
        self.has_taken |= step.changes
        return step.changes

    def _check_called_once(self) -> None:
        if self._reducer.called_twice:
            raise ConfigError(
                "loss.backward() was called again for one batch when its gradients were averaged "
                "over all workers: add the losses up and call it once, or, with several "
                "optimizers, call it before the first of them steps (optimizers in turn, as of a "
                "GAN, train with --strategy allreduce, without deterministic, backup_workers and "
                "partial)"
            )

    def _all_stepped(self, step: GroupStep) -> None:
        """Act once all optimizers have stepped: after the last batch the step is in the model."""
        if not step.is_last_batch:
            self._tell_variables(step)
            return
        if step.on_trial:  # the last one had a closure, and might have called it again
            self._end_trial(step)
        # What the script does until its next batch is no part of a step.
        self._client.unmark()
        if step.holds:
            self._reducer.update()
            # Before others may copy what we hold, of which it is a part.
            state = self._client.state
            held, more = len(state.done), num_samples(step.committed)
            state.position.advance(state.step, step.num_batches, held=held, more=more)
            self._client.updated(step.committed, last=step.last)
        self._tell_variables(step)

    def _tell_variables(self, step: GroupStep) -> None:
        """Say whether the batch that was stepped on counts, where steps may have several."""
        if not (self._sharing.blocks or self._shares.bodies):
            return
        is_taken_back = self._counts_for_nothing(step) or self._is_block_of_many(step)
        ends = not step.is_last_batch or step.holds
        self._variables.stepped(counts=ends and not is_taken_back)

    def evaluate(self, optimizer: int, closure: Callable[[], Any], *, again: bool) -> Any:
        """Call an optimizer's closure, by whose loss it goes on and may call it ``again``."""
        step = self.step
        assert step is not None
        self._reducer.calling(optimizer)
        loss = closure()
        if step.counting(step.works[step.batch_no]) and not self._reducer.has_run(optimizer):
            raise ConfigError(NO_BACKWARD)
        self._reducer.loss = float(getattr(loss, "item", lambda: loss)()) if again else None
        step.evaluating = again
        return loss

    @property
    def evaluation(self) -> tuple[float, int]:
        """The mean loss over all members after a turn, and the fewest threads that one has."""
        assert self._reducer.loss is not None
        return self._reducer.loss, self._reducer.threads

    def settle(self, optimizer: int = ALL) -> bool:
        """Settle the averaged gradients: of all optimizers, or as for the step of one."""
        step = self.step
        if step is not None:
            self._settle(step, optimizer)
        return step is not None and (step.holds or step.on_trial)

    @property
    def in_step(self) -> bool:
        """Whether a batch is in hand on which the optimizers have not all stepped."""
        return super().in_step or (self.step is not None and self.step.on_trial)

    def _note(self, step: GroupStep, bpt_s: float) -> None:
        if step.behind:  # it took as long as next to nothing takes
            return
        # Sums and update: what they cost us is what they take of a processor, since we wait, too.
        now_s = thread_time() if step.is_alone else process_time()
        beside_s = (now_s - step.computed_cpu_s) / self._core
        step.message_s = max(0.0, min(beside_s, bpt_s - step.compute_s))
        self._client.record(step.times(self.num_steps, bpt_s))

    def abandon(self) -> None:
        """The loop is left: nothing of an unfinished step counts; again: nothing."""
        if self.step is not None:
            self.step.close()
        if self._has_left_broken_step:
            fence_soon()
        self._is_out = False
        self._variables.unmark()
        self._reducer.drop()
        self._reducer.end()
        self._client.unmark()
        self._client.in_body = False
        step = self.step
        if step is not None and step.on_trial:
            self._take_back(step)
        if step is not None and step.holds and len(step.stepped) < self.num_optimizers:
            self._client.give_up_update(torn=bool(step.stepped))
        self._client.leave_step()
        self.step = None
