"""A member of a group, whatever it holds: what it does about steps, cuts, feeds and peers.

Three threads work here, one at a time: each holds the lock ``changed``. The training thread makes
the public calls, and talks to the master only where it has nothing to compute. The `Exchange`'s
hears the master, and peers that answer; the `Door`'s hears peers that ask. What arrives goes into
the pure `MemberState`, `Leases` and the parts of a cut, and what they decide is carried out:
messages are left to be sent, groups are dropped, peers are connected. `GroupClient` is a member
that holds all of the model, `ShardClient` (``runtime/holding/shards``) one that holds a shard.
"""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn, assert_never

from paceline.base.numbering import START, step_after
from paceline.base.processes import peak_memory_bytes, reset_peak_memory
from paceline.base.samples import SampleSet, Span, num_samples
from paceline.cuts.manifest import patience_s
from paceline.protocol.holding.group.member import (
    Connect,
    Copy,
    Drop,
    Instruction,
    LoadReplica,
    MemberState,
    Say,
)
from paceline.protocol.samples.leases import Leases
from paceline.runtime.data.work import StepTimes
from paceline.runtime.group.cut_session import Keeper
from paceline.runtime.group.group import BREAKING, CPU, Group
from paceline.runtime.group.listener import Door
from paceline.runtime.group.peers import GroupPeers
from paceline.runtime.group.profiling import MemberProfiling
from paceline.runtime.group.shared_memory import this_place
from paceline.runtime.group.short import PeerSteps, ShortStep
from paceline.runtime.group.store import GroupOver
from paceline.runtime.process.asking import Asking, CutAsker
from paceline.runtime.process.exchange import Exchange
from paceline.runtime.process.feature_port import Links
from paceline.runtime.process.process import Fenced, LeftBehind, Process
from paceline.runtime.state.replica import Replica
from paceline.runtime.variables.variables import Variables
from paceline.wire.messages.base import Attempt
from paceline.wire.messages.data import Data
from paceline.wire.messages.feeds import Feed, ScriptPlace, Slice, SourceLine, Underway
from paceline.wire.messages.group import (
    NO_FEED,
    NO_STEP,
    AskState,
    CatchUp,
    Computed,
    Divide,
    Division,
    Meet,
    ProfileBatches,
    RunGroup,
    StatePart,
    StopGroup,
)
from paceline.wire.messages.node import (
    AgreedOn,
    CutKept,
    CutMade,
    FeedOpened,
    GivenUp,
    Leaving,
    NodeDown,
    NodeUp,
    OpenFeed,
    PlaceIs,
    Stop,
    TakeCut,
)

RESEND_S = 0.5
"""Seconds after which an unanswered message is sent again."""
IN_NO_STEP_S = 1.0
"""A member that waits longer for others is not waited for by those that meet in a body."""

STANDS_IN = (
    "paceline: worker-0 is gone for good, so from here on this worker is the chief: job.is_chief\n"
)

_log = logging.getLogger(__name__)

MemberTakes = (
    StopGroup
    | CatchUp
    | RunGroup
    | Divide
    | ProfileBatches
    | TakeCut
    | CutKept
    | CutMade
    | FeedOpened
    | AgreedOn
    | PlaceIs
    | Stop
    | GivenUp
)


class MemberClient:
    """A member; its public calls are the training thread's.

    Args:
        process: this one.
        together: a cut is made of copies of all members, after the same step; so all begin again
            from one when a member is lost.
    """

    def __init__(self, process: Process, *, together: bool = False) -> None:
        self.process, self.spec = process, process.spec
        # Peers hear little, and read from each other's memory: none is shared for messages.
        self._exchange = Exchange(process, self, arena_bytes=0)
        self._changed = self._exchange.changed
        self._door = Door(process, self)
        self.state = MemberState(process.inc, self._door.address, place=this_place())
        self._replica: Replica | None = None
        self._profiling = MemberProfiling(process.inc)
        self._peer_steps = PeerSteps()
        self.together = together
        self._keeper = Keeper(process, self._on_news, together=together)
        self._asker = CutAsker(process.inc)
        self._peers = GroupPeers(self._exchange, self.state)
        self._group: Group | None = None
        #: The newest one that has come together.
        self._met: Group | None = None
        #: Feeds of the job, and leases of samples to evaluate.
        self._leases = Leases(process.inc)
        #: Complete feeds, as the master has told, and the cut that each is in.
        self._complete: dict[int, FeedOpened] = {}
        self._asking = Asking(process)
        self._leaving = self._hands_over = self._keeps_end = self._is_given_up = False
        self.device = CPU
        """Device that holds the model that we train."""
        self.joins_others = False
        """Whether a group trained already when we opened a feed."""
        self._within = NO_FEED
        """The feed that the script trains on or evaluates."""
        self._loop_edge = -1
        """See `AskState`."""
        self.in_body = False
        """Whether the script works on a batch, or on what follows from it: the state is its own."""
        #: Since when it waits for others, in a step or for one; None: it goes on on its own.
        self._waits_since_s: float | None = -math.inf
        self.variables = Variables()
        """Variables of the script."""
        self.entered: RunGroup | None = None
        """The group in which the newest step was begun."""
        self._told_leaving_s = -math.inf
        self._is_after_break = False
        """Whether the script has left a loop, and no step was made since."""
        self._has_left_unseen = False
        """Whether the script has left a loop, and what its variables were then is not known."""
        self._opens = False
        """Whether the script is about to begin a loop that the master has not opened so far."""
        self.num_events = 0
        """Number of things that the master or a peer has told or asked us, and of the keeper's."""
        process.at_end = self._end

    def _end(self) -> None:
        with self._changed:
            self._drop(self.state.running)
        self._exchange.halt()
        self._door.close()

    # ------------------------------------------------------------------ what is held

    def _rest(self, *, stays: bool = False) -> None:
        """Copy the state if asked to, or become another's: between steps, where it is whole.

        ``stays``: until that is done; so it may be written into what the script holds.
        """
        raise NotImplementedError

    @property
    def _is_left_behind(self) -> bool:
        """Whether those who hold the model have left the loop that our script is in."""
        return False

    def _on_connected(self, run: RunGroup, group: Group) -> None:
        """The group has come together; raises as its operations."""

    def _take_over(self, order: Copy | LoadReplica) -> None:
        """Become what a peer, or a cut, holds."""
        raise NotImplementedError

    def check(self, measure: Callable[[Links], None]) -> None:
        raise NotImplementedError

    def samples_with(self, whole: Slice = ()) -> int:
        """Samples in our model once this slice is in it."""
        with self._changed:
            done = self.state.done
            return len(done) + sum(num_samples(done.missing(span)) for span in whole)

    @property
    def attempt(self) -> Attempt:
        """The attempt at steps that we take part in."""
        with self._changed:
            return Attempt(self.state.epoch_no, self.state.ran)

    @contextmanager
    def within(self, feed: int) -> Iterator[None]:
        """The script trains on this feed, or evaluates it.

        Only there our state is handed to peers, and another one taken over: between two loops the
        script changes its own.
        """
        before = self._within
        try:
            self._move(feed)
            yield
        finally:
            self._move(before)

    @contextmanager
    def training(self, feed: int) -> Iterator[None]:
        """The script is in the loop over a feed; with what it left that, a cut behind it holds."""
        assert self._replica is not None
        self._replica.enter_loop()
        self._loop_edge, self._has_left_unseen = 2 * feed, False
        try:
            with self.within(feed):
                yield
        except GeneratorExit:  # the script leaves the loop
            self._is_after_break = True
            self._has_left_unseen = not self.variables.leaves_loop(sys._getframe())
            try:
                self._replica.leave_loop()
            except RuntimeError:  # another thread of the script changes one of its variables
                self.variables.goes_on()
                self._replica.leave_loop()
            finally:
                self.variables.goes_on()
            raise
        finally:
            self._loop_edge = 2 * feed + 1
        self._replica.leave_loop()

    def _move(self, feed: int) -> None:
        with self._changed:
            self._within = feed
            self._moved()
            self._changed.notify_all()

    def _moved(self) -> None:
        """The script is within another feed, or in none."""

    # ------------------------------------------------------------------ steps

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to do between two steps, unless something else comes."""
        state = self.state
        has_order = state.stopping is not None or state.copying is not None
        is_leaving = self._leaving or self._hands_over or self._keeps_end
        is_busy = self._keeper.busy or self._profiling.due[1] > 0
        return not (has_order or is_leaving or self.together or is_busy)

    def begin_again(self, run: RunGroup, num_events: int, *, alone: bool = False) -> bool:
        """Begin another step of a group; False: something has come since there were so many events.

        ``alone``: the script gets its batch next, and nothing takes back what it does with it.

        Raises:
            what the thread that talks to the master has failed with.
        """
        self._exchange.check()
        with self._changed:
            if self.num_events != num_events or self.state.running is not run:
                return False
            self.state.enter()
            if alone:
                self.state.enter_alone()
        self.process.step = self.state.next_step
        return True

    @property
    def stops(self) -> bool:
        """Whether this worker must leave."""
        return self.process.stop_requested

    def forget_copy(self) -> None:
        """Give up what was copied, whose script was elsewhere: it is copied again."""
        with self._changed:
            if self.state.step != NO_STEP:
                self._do(self.state.forget())

    def script_entered(self) -> None:
        """The script has taken over where the others' are."""
        if self._replica is not None:
            self._replica.entered()

    def enter(
        self, feed: int, at_end: Callable[[SampleSet], bool]
    ) -> tuple[RunGroup, Group] | None:
        """Begin a step of a feed: the group to do it in, once there is one.

        None: the feed is over, or what all members hold is the end of it.

        Raises:
            LeftBehind: the others have left it before its end.
        """
        while True:
            self.unmark()
            self._wait_for_others()
            with self._changed:
                run = self._entered(feed)
                if run is None:
                    self.leave_step()
                    return None
                over = self.state.is_proven and at_end(self.state.begins_with)
            # A member that is beyond the end does not come into the group before its next feed.
            if over and self.state.step == NO_STEP:
                # Peers may be beyond it with more than the model: its end is in a cut.
                self.leave_step()
                return None
            group = None if over else self._begun(run)
            if (group is None and not over) or not self._caught_up(run, feed):
                continue
            if group is None or self.state.step == NO_STEP:
                self.leave_step()
                return None
            if self._connected(group):
                return run, group

    def _entered(self, feed: int) -> RunGroup | None:
        behind_s = time.monotonic()
        with self._changed:
            self._do(self.state.join())
            while feed not in self._complete:
                self._check_stop()
                self._rest(stays=True)
                if not self._is_left_behind:
                    behind_s = time.monotonic()
                elif time.monotonic() > behind_s + 2 * RESEND_S:  # nor is it over: see `_caught_up`
                    self._leave_behind()
                run = self.state.enter()
                if run is not None:
                    self.process.step = max(run.step, self.state.step) + 1
                    return run
                self._exchange.wait()
        return None

    def _caught_up(self, run: RunGroup, feed: int) -> bool:
        """Wait until we hold what the group began with, or the feed is over; False: it is not."""
        state = self.state
        with self._changed:
            while state.running is run and state.step == NO_STEP and feed not in self._complete:
                # However long that takes: our peers wait, but nobody hangs.
                self.unmark()
                self._check_stop()
                self._rest(stays=True)
                if self._is_left_behind:
                    self._leave_behind()
                if state.step == NO_STEP:
                    self._exchange.wait()
            return state.running is run

    def _leave_behind(self) -> NoReturn:
        self._do(self.state.leave_step())
        raise LeftBehind

    def _begun(self, run: RunGroup) -> Group | None:
        """The group itself, which connects; None: it was over before it began."""
        with self._changed:
            group = self._group
            if group is not None and group.run is run:
                return group
            if self.state.running is not run:
                return None
            store = self._peers.store(run.group)
            group = self._group = Group(run, self.state.inc, store, self.device)
            group.begin(self.spec.listen)
            return group

    def _connected(self, group: Group) -> bool:
        """Wait until all members are; False: it is over before."""
        if group is self._met:
            return True
        try:
            group.wait()
            self.mark(computing=True)
            self._on_connected(group.run, group)
        except BREAKING as error:
            self.failed(group.run, f"connecting: {error}")
            return False
        with self._changed:
            self._met = self._group
            return self._met is group

    def begin_update(self, run: RunGroup) -> bool:
        # It is what a cut may be copied from, beside the forward and backward passes.
        self._keeper.wait()
        with self._changed:
            return self.state.begin_update(run)

    def begin_trial(self, run: RunGroup) -> bool:
        """A part of an update comes, and may be taken back: nobody may copy what we hold."""
        self._keeper.wait()
        with self._changed:
            if self.state.running is not run:
                self._do(self.state.failed(run, "it is over"))
            return self.state.running is run

    def give_up_update(self, *, torn: bool) -> None:
        """An update was begun and will not be finished; ``torn``: some of it is in the model."""
        with self._changed:
            self.state.give_up_update()
            if torn:
                self._do(self.state.forget())

    def updated(self, spans: Iterable[Span], *, last: bool) -> None:
        with self._changed:
            self._do(self.state.updated(spans, last=last))

    def proven(self, run: RunGroup, *, last: bool) -> bool:
        """Say that a step is proven; return whether it counts."""
        with self._changed:
            self._do(self.state.proven(run, last=last))
            return self.state.is_proven

    def divisions(self, run: RunGroup) -> tuple[Division, Division]:
        """Return the division of the step that begins, and the newest one that we have heard of.

        Raises:
            GroupOver: the group is.
        """
        with self._changed:
            if self.state.running is not run:
                raise GroupOver("it was dropped")
            return self.state.division, self.state.heard

    def agree(self, run: RunGroup, told: Division, numbers: Iterable[int]) -> None:
        if told is self.state.division:  # as in most steps
            return
        with self._changed:
            self.state.agree(run, told, numbers)

    def watch_peers(self, run: RunGroup, short: ShortStep) -> None:
        """Tell the step that begins who has computed its share of it."""
        with self._changed:
            self._peer_steps.watch(run, step_after(self.state.step), short)

    def tell_computed(self, run: RunGroup) -> None:
        """Tell all peers that we have computed our share of the step."""
        inc, step = self.state.inc, step_after(self.state.step)
        message = Computed(epoch_no=run.epoch_no, inc=inc, group=run.group, step=step)
        with self._changed:
            self._peers.tell(run, message)

    @property
    def ready_for_cut(self) -> int:
        return self._keeper.ready_for

    def agree_on_cut(self, ready_for: Sequence[int]) -> None:
        if self.together:
            with self._changed:
                self._keeper.agree(ready_for)

    def failed(self, run: RunGroup, reason: str) -> None:
        self._waits_since_s = None
        with self._changed:
            self._do(self.state.failed(run, reason))

    def diverged(self, run: RunGroup, what: str, *, gives_up: bool) -> bool:
        """Say that values differ; return whether what we held is given up."""
        self._waits_since_s = None
        with self._changed:
            self._do(self.state.diverged(run, what, gives_up=gives_up))
            return self.state.step == NO_STEP

    def leave_step(self) -> None:
        self._wait_for_others()
        with self._changed:
            self._do(self.state.leave_step())

    @property
    def wants_out(self) -> bool:
        """Whether the step that begins should be the last in this group."""
        return self.state.wants_out or self.process.stop_requested

    def profile_due(self) -> tuple[int, int]:
        """Return the profiled batches that are due, and are computed next."""
        with self._changed:
            size, count = self._profiling.due
        if count:
            reset_peak_memory()
        return size, count

    def profiled(self, size: int, batch_s: float) -> None:
        peak_bytes = peak_memory_bytes()
        with self._changed:
            answer = self._profiling.took(size, batch_s, peak_bytes)
            if answer is not None:
                self._tell_master([answer])

    def mark(self, *, computing: bool) -> None:
        """Tell the agent what we are at: a part of a step all by ourselves, or not."""
        now_s = time.monotonic()
        self.process.ledger.mark(now_s if computing else -now_s)
        if computing:
            self._waits_since_s = None
        else:
            self._wait_for_others()

    def unmark(self) -> None:
        """Note that nobody waits for us as long as we do something else."""
        self.process.ledger.mark(0.0)

    def _wait_for_others(self) -> None:
        if self._waits_since_s is None:
            self._waits_since_s = time.monotonic()

    @property
    def is_in_no_step(self) -> bool:
        """Whether others that meet in the body of a loop are not to wait for us.

        We do no step, or cannot go on in it before one of them has come from there.
        """
        since_s = self._waits_since_s
        return since_s is not None and time.monotonic() > since_s + IN_NO_STEP_S

    def record(self, times: StepTimes) -> None:
        """Note what a finished step took."""
        self.process.record(times)

    def checkpoint(self) -> None:
        """Have a cut made that holds what we hold."""
        with self._changed:
            self._tell_master(self._asker.ask(self.state.epoch_no, max(self.state.step, START)))

    def hand_over(self) -> None:
        """The script is over: have what we hold in a cut on disk, for others may leave, too.

        We give up after `_hand_over_s`, but not while a disk refuses it. Meanwhile those that still
        train wait for us in their step.
        """
        with self._changed:
            holds = self._replica is not None and self.state.step > 0
            if self._leaving or not holds:
                return
            self._hands_over = True
            step, since_s = self.state.step, time.monotonic()
            feed = self._loop_edge // 2
            self._tell_master(self._asker.ask_last(self.state.epoch_no, step, feed))
            while self._asker.waits and not self._is_given_up:
                self._exchange.check()
                if self.process.told_to_stop:
                    # The script's own handler of SIGTERM has left the loop: this cut is the last.
                    self._tell_leaving(self._hand_over_s)
                elif self.process.stop_requested:
                    self._leave()
                if self._keeper.is_delayed:
                    since_s = time.monotonic()
                if time.monotonic() > since_s + self._hand_over_s:
                    _log.warning("returned_without_cut step=%d", step)
                    return
                self._rest()
                self._exchange.wait()

    def keep_end(self) -> int:
        """Return the step that we hold once it is in a cut on disk; the script is between loops.

        Raises:
            ConfigError: see `CutAsker.is_met`.
        """
        step, start_s = self.state.step, time.monotonic()

        def is_kept() -> bool:
            if self.state.step == NO_STEP:
                raise Fenced  # the job has gone back, and our script is further than the model
            return self._asker.is_met(time.monotonic() - start_s)

        with self._changed:
            self._tell_master(self._asker.ask(self.state.epoch_no, max(step, START)))
            self._keeps_end = True
            try:
                self._until(is_kept)
            finally:
                self._keeps_end = False
        return step

    @property
    def _hand_over_s(self) -> float:
        """Seconds for which a cut of what we hold is waited for when our script has returned."""
        return patience_s(self._keeper.num_bytes)

    # ------------------------------------------------------------------ feeds

    def open_feed(self, feed: Feed) -> Feed:
        step = NO_STEP if self._has_left_unseen else self.state.step
        message = OpenFeed(inc=self.process.inc, feed=feed, step=step)
        if self._leases.opened(feed) is not None:
            # The master has told of it on its own, and must know that our script is there: others
            # that come in late look for it.
            with self._changed:
                self._tell_master([message])
        self._opens = True
        try:
            self._until(lambda: self._leases.opened(feed) is not None, ask=lambda: [message])
        finally:
            self._opens = False
        return self._leases.opened(feed) or feed

    def underway(self, place: ScriptPlace) -> Underway | None:
        """Return how far the job is in the feed at this place; see `Strategy.underway`."""
        return self._asking.underway(self._until, place)

    def pause(self, seconds: float) -> None:
        """Return after so long; the script passes over a loop."""
        until_s = time.monotonic() + seconds
        self._until(lambda: time.monotonic() >= until_s)

    def begun(self, *, stands_by: bool = False) -> PlaceIs:
        """Return how far the model is in the script, as the master knows; see `AskPlace`."""
        return self._asking.begun(self._until, stands_by=stands_by)

    def meet(self, place: ScriptPlace, value: bytes, *, all_workers: bool) -> Sequence[bytes]:
        """See `Strategy.meet`."""
        return self._asking.meet(
            self._until, place, value, all_workers=all_workers, in_body=self.in_body
        )

    def await_end(self, feed: Feed) -> None:
        """Return when all of a feed is in a cut on disk: nothing of it can come again."""
        message = OpenFeed(inc=self.process.inc, feed=feed)
        self._until(lambda: feed.feed in self._complete, ask=lambda: [message])

    def is_complete(self, feed: int) -> bool:
        """Tell whether all of a feed was done before we came to it."""
        return feed in self._complete

    def load_end(self, feed: Feed) -> None:
        """Become what a cut holds, if a feed was over before all of it was in our model."""

    def source_line(self, line: int) -> SourceLine:
        with self._changed:
            return self._leases.source_line(line)

    # ------------------------------------------------------------------ waiting

    def _check_stop(self) -> None:
        self._exchange.check()
        if not self.process.stop_requested or self._leaving:
            return
        if self.state.running is not None and self.state.copying is not None:
            self._do(self.state.failed(self.state.running, "it is to leave"))
        if self.state.running is None:
            self._leave()

    def _leave(self) -> NoReturn:
        """Raise Stopped, but let no cut be lost that is on its way."""
        self._leaving, self.in_body = True, False
        start_s, delayed_s = time.monotonic(), 0.0
        while True:
            self._rest()
            if not self._owes_cut:
                break
            now_s = time.monotonic()
            if self._keeper.is_delayed:  # by a full disk, say; the keeper gives it up in time
                delayed_s = now_s - start_s
            within_s = delayed_s + patience_s(self._keeper.num_bytes)
            self._tell_leaving(within_s)
            if now_s > start_s + within_s:
                _log.warning("left_without_cut after_s=%g step=%d", within_s, self.state.step)
                break
            self._exchange.check()
            self._exchange.wait()
        if not self.together:
            self._do(self.state.leave())
        self.process.break_off()

    def _tell_leaving(self, within_s: float) -> None:
        """Have the agent wait; again and again, since there may be another agent."""
        now_s = time.monotonic()
        if now_s > self._told_leaving_s + RESEND_S:
            self._told_leaving_s = now_s
            self._tell_master([Leaving(inc=self.process.inc, within_s=within_s)])

    @property
    def _owes_cut(self) -> bool:
        """Whether a cut that others count on needs us."""
        # One without the script's variables would be worse than the one before.
        return self._keeper.writes or (self._keeper.busy and not self._has_left_unseen)

    def _until(
        self, done: Callable[[], bool], ask: Callable[[], Iterable[NodeUp]] = lambda: ()
    ) -> None:
        ask_at_s = 0.0
        with self._changed:
            while not done():
                self._exchange.check()
                self._rest()
                now_s = time.monotonic()
                if now_s >= ask_at_s:
                    self._tell_master(ask())
                    ask_at_s = now_s + RESEND_S
                self._exchange.wait()
                if self.process.stop_requested and not self._leaving:
                    self._leave()

    # ------------------------------------------------------------------ events

    def tick(self) -> None:
        self._do(self.state.resend())
        self._tell_master(self._asker.resend())
        self._hear_keeper()
        self._tell_master(self._leases.unanswered())

    def from_master(self, message: NodeDown) -> None:
        self.num_events += 1
        if not isinstance(message, MemberTakes):
            _log.warning("a member has no use for %s", type(message).__name__)
            return
        match message:
            case StopGroup() | CatchUp() | RunGroup() | Divide():
                self._about_group(message)
            case ProfileBatches():
                self._tell_master(filter(None, [self._profiling.asked(message)]))
            case TakeCut():
                self._take_cut(message)
            case CutKept():
                self._keeper.kept(message)
                self._hear_keeper()
            case CutMade():
                self._asker.made(message)
            case FeedOpened():
                self._feed_opened(message)
            case AgreedOn() | PlaceIs():
                self._asking.answered(message)
            case Stop() | GivenUp():
                self._must_leave(message)
            case _:
                assert_never(message)

    def _must_leave(self, message: Stop | GivenUp) -> None:
        """Leave after the step; or at once, unless the script leaves already, in order.

        Raises:
            Fenced: others go on without us. Threads that wait in the group are woken.
        """
        if isinstance(message, Stop):
            self.process.stop_requested = self.process.told_to_stop = True
            return
        self._is_given_up = True
        if not (self._leaving or self._hands_over):
            self._drop(self.state.running)
            raise Fenced

    def _take_cut(self, message: TakeCut) -> None:
        if message.epoch_no == self.state.epoch_no:
            self._tell_master(self._keeper.ask(message))

    def _feed_opened(self, message: FeedOpened) -> None:
        feed = message.feed
        self.joins_others |= message.trains
        if message.complete:
            self._complete[feed.feed] = message
        elif feed.feed in self._complete and feed.purpose == "train":
            raise Fenced  # our script has passed over what is to be done again
        self._leases.feed_opened(message)

    def _about_group(self, message: StopGroup | CatchUp | RunGroup | Divide) -> None:
        match message:
            case StopGroup():
                self._do(self.state.stop_group(message))
                self._follow_epoch()
            case CatchUp():
                self._catch_up(message)
            case RunGroup():
                stood_in = self.state.stands_in
                self._do(self.state.run_group(message))
                if self.state.stands_in and not stood_in:
                    sys.stderr.write(STANDS_IN)
            case Divide():
                self._do(self.state.divide(message))
            case _:
                assert_never(message)

    def _catch_up(self, order: CatchUp) -> None:
        self._do(self.state.catch_up(order))
        self._follow_epoch()

    def _on_news(self) -> None:
        """Take the keeper's news; called in the keeper's thread."""
        with self._changed:
            self._exchange.leave(self._hear_news)

    def _hear_news(self) -> None:
        with self._changed:
            self.num_events += 1
            self._hear_keeper()

    def _hear_keeper(self) -> None:
        self._tell_master(self._keeper.said())

    def _tell_master(self, messages: Iterable[NodeUp]) -> None:
        for message in messages:
            self._exchange.leave(partial(self.process.link.send, message))

    def _follow_epoch(self) -> None:
        epoch_no = self.state.epoch_no
        self._asker.went_back(epoch_no)
        if epoch_no > self._leases.epoch_no:
            self._tell_master(self._leases.begin(epoch_no))

    def from_server(self, server: int, message: Data, frames: Sequence[memoryview]) -> None:
        """Take in what a peer answers."""

    # ------------------------------------------------------------------ peers

    def met(self, message: Meet, value: bytes) -> None:
        with self._changed:
            self.num_events += 1
            self._peers.met(message, value)

    def peer_computed(self, message: Computed) -> None:
        with self._changed:
            self.num_events += 1
            self._peer_steps.heard(message)

    def hand_out(self, message: AskState) -> tuple[StatePart, bytes] | None:
        return None

    # ------------------------------------------------------------------ instructions

    def _do(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Say(message):
                    self._tell_master([message])
                case Drop(run):
                    self._drop(run)
                case Copy() | LoadReplica():
                    self._take_over(instruction)
                case Connect(run):
                    self._keeper.set_members(run.members)
                    self._peers.connect(run)
                case _:
                    assert_never(instruction)

    def _drop(self, run: RunGroup | None) -> None:
        """The group that we worked in is over; the next one may be known already."""
        if run is not None and (self._met is None or self._met.run is not run):
            self._peers.leave(run)
        self._peers.drop()
        if self._group is not None:
            self._group.drop()
            self._group = None
