"""The side of its group of a member that holds all of the model, which peers copy from it."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import assert_never

from paceline.base.errors import PermanentError, TransientError
from paceline.protocol.holding.group.member import Connect, Copy, Instruction, LoadReplica
from paceline.runtime.data.work import Array, Work
from paceline.runtime.group.group import Group
from paceline.runtime.group.member import RESEND_S, MemberClient
from paceline.runtime.group.store import GroupOver
from paceline.runtime.holding.replicas.copying import Copier, Photographs, beyond
from paceline.runtime.process.feature_port import Links
from paceline.runtime.process.process import Fenced, Process
from paceline.runtime.script.evaluation_results import EvaluationResults
from paceline.runtime.state.replica import Replica
from paceline.wire.messages.base import Link
from paceline.wire.messages.data import Data
from paceline.wire.messages.feeds import Feed, feed_of
from paceline.wire.messages.group import (
    ANYWHERE,
    NO_FEED,
    NO_STEP,
    AskState,
    CatchUp,
    RunGroup,
    StatePart,
)
from paceline.wire.messages.node import (
    Evaluated,
    FeedOpened,
    Grant,
    InNoStep,
    NodeDown,
    OpenFeed,
    Recall,
)

SCRIPT_S = 0.1
"""Seconds for which a peer's question waits for the script, from its update to its next batch."""


SAME_LOOP_S = 10.0
"""Seconds to wait for a peer in a feed's loop, where the cut of the feed's end cannot be read."""

EvaluationTakes = Grant | Recall | Evaluated
"""Answers about samples to evaluate, which members lease one by one."""
PeerTakes = StatePart


class GroupClient(MemberClient):
    """A member that holds all of the model."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        #: Nothing of the state changes before the next update: optimizers and schedulers are done.
        self._at_rest = True
        self._photographs = Photographs()
        self._asks_anywhere = False
        self._copier = Copier(process, self._ask, self._aside)
        #: A cut that we must begin with, and one that is being read: from storage that may stand
        #: still.
        self._loading: CatchUp | None = None
        self._reading: tuple[CatchUp, Future[None]] | None = None
        self._results = EvaluationResults(self._leases, self._until, process)
        self._in_hand: list[Work] = []
        #: The cut that `load_end` has loaded, and which we hold, with what the script did since.
        self._loaded = self._holds = 0
        #: Measures our node, and its links by what it gets.
        self._measure: Callable[[Links], None] | None = None
        self.on_another: Callable[[], None] = lambda: None
        """Called when what we hold has become another's."""
        self.touched = False
        """True: our model is not as it was built any more, though no step has changed it."""

    def start(self, replica: Replica) -> None:
        """Begin: everything is prepared."""
        self._replica = replica
        self.state.replica = replica.describe()
        self._exchange.start()

    def next_training(self, hold: Callable[[Replica], None]) -> None:
        """Hold something else from now on; ``hold`` makes what we hold that."""
        assert self._replica is not None
        with self._changed:
            self._copier.restart()
            self._wait_for_copies(self._replica)
            self._keeper.wait()
            self._photographs.clear()
            is_behind = self._replica.is_behind
            hold(self._replica)
            self._loaded = 0
            if is_behind and self.state.step != NO_STEP:
                # The group's state is of this training or a later one, and was not loaded into it.
                self._do(self.state.forget())

    def _wait_for_copies(self, replica: Replica) -> None:
        """Return when nothing is written into what we hold."""
        while self._copier.go_on(self.state, replica, stays=False) or self._is_reading:
            self._exchange.wait()

    def check(self, measure: Callable[[Links], None]) -> None:
        """Check the node.

        Members that begin together measure at the same time, so that those that share a machine
        take as much from each other; a worker that joins does it before others wait for it.
        """
        if self.joins_others:
            measure(_no_links)
        else:
            self._measure = measure

    def _check(self, group: Group) -> None:
        """Measure our node and our links; all members of a first group do.

        Raises:
            GroupOver: the group is, also because our part of the check failed: the next has none.
        """

        def links() -> tuple[Link, ...]:
            self.mark(computing=False)
            return group.measure_links()

        measure, self._measure = self._measure, None
        try:
            if measure is None:
                links()
            else:
                measure(links)
        except GroupOver:
            self._measure = measure
            raise
        except Exception as error:
            raise GroupOver(f"the check of links failed: {error!r}") from error

    def _on_connected(self, run: RunGroup, group: Group) -> None:
        if run.check:
            self._check(group)
        elif self._measure is not None:
            # The job goes on from a cut, or others have begun meanwhile.
            measure, self._measure = self._measure, None
            measure(_no_links)

    # ------------------------------------------------------------------ state

    @property
    def is_quiet(self) -> bool:
        is_reading = self._reading is not None or self._copier.is_reading
        return super().is_quiet and self._loading is None and not is_reading

    @property
    def _is_left_behind(self) -> bool:
        return self._copier.is_left_behind

    def _moved(self) -> None:
        self._asks_anywhere = False
        self._copier.restart()

    @property
    def _asked_within(self) -> int:
        return ANYWHERE if self._asks_anywhere else self._within

    def _rest(self, *, stays: bool = False) -> None:
        assert self._replica is not None
        if self.in_body:
            return
        if not self._at_rest:
            self._at_rest = True
            self._changed.notify_all()
        if self._is_regrouped:
            self.variables.prepare()
            self._changed.notify_all()
        is_within = self._within != NO_FEED
        self._load(begins=stays and is_within)
        if self._reading is not None or self._copier.go_on(self.state, self._replica, stays=stays):
            return
        found = self._copier.arrived(self.state) if is_within else None
        if found is not None:
            order, arrived = found
            self._keeper.wait()
            self._photographs.clear()
            self._replica.load(arrived)
            self._holds = 0
            self._do(self.state.copied(order))
            self.on_another()
        # After a cut of between two loops a script would do a second time what it has done there.
        # With the last step of a loop that was left, it would not know that this is over.
        in_loop = self._loop_edge % 2 == 0 and not self._is_after_break
        leaves = (self._leaving or self._keeper.takes_behind) and not self._has_left_unseen
        if in_loop or leaves or self._hands_over or self._keeps_end:
            self._keeper.copy_if_asked(self.state, self._replica)

    @property
    def _is_regrouped(self) -> bool:
        """Whether the next step is not in the group of the last one: a worker may join in it."""
        return self.state.running is not self.entered

    @property
    def _may_be_copied(self) -> bool:
        """Whether the script waits for its next batch, and what a joiner copies of it is ready."""
        if not self._at_rest:
            return False
        # In the body of a step that broke nobody knows what the script's variables were.
        in_broken = self.in_body and self.variables.found
        return not self._is_regrouped or (self.variables.is_prepared and not in_broken)

    def _load(self, *, begins: bool) -> None:
        """Hold the cut that we were told to begin with, once it is read; ``begins``: read it."""
        if self._reading is not None and self._reading[1].done():
            (order, read), self._reading = self._reading, None
            try:
                read.result()
            except PermanentError as error:
                # The master reads a cut before it is loaded again, and finds another.
                raise TransientError(str(error)) from error
            if self.state.may_load(order):
                self._do(self.state.copied(order))
                self.on_another()
        is_free = self._reading is None and not self._copier.is_reading
        if begins and self._loading is not None and is_free:
            order, self._loading = self._loading, None
            if self.state.may_load(order) and self._is_as_held(order):
                # What the script has done between two loops since comes with it.
                self._do(self.state.copied(order))
                self.on_another()
            elif self.state.may_load(order):
                self._reading = order, self._read_aside(order)

    @property
    def _is_reading(self) -> bool:
        return self._reading is not None and not self._reading[1].done()

    def _is_as_held(self, order: CatchUp) -> bool:
        """Tell whether we have loaded this cut already, and the script may have added to it.

        If the cut has samples of the loop that our script is in, it is loaded again: it was made
        after what our script has done on its way here, and holds that already.
        """
        is_held = order.cut is not None and order.cut.cut_no == self._holds
        return is_held and all(feed_of(span.line) != self._within for span in order.committed)

    def _read_aside(self, order: CatchUp | FeedOpened) -> "Future[None]":
        """Read the cut that the master has named into what we hold."""
        assert self._replica is not None
        assert order.cut is not None
        replica, cuts, cut = self._replica, self.process.cuts, order.cut
        # At the end of a feed the script is still to come to where it adds groups to optimizers.
        load = replica.load_cut if isinstance(order, CatchUp) else replica.load_what_fits
        # Its files may have to be fetched first.
        return self._aside(lambda: load(*cuts.places(cut)))

    def _aside(self, read: Callable[[], None]) -> "Future[None]":
        """Read a state in a thread of its own: with the lock held nobody would hear of us."""
        self._keeper.wait()
        self._photographs.clear()
        self.touched, self._holds = True, 0
        done = Future[None]()

        def run() -> None:
            try:
                read()
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                done.set_exception(error)
            with self._changed:
                self._changed.notify_all()

        threading.Thread(target=run, name="paceline-read", daemon=True).start()
        return done

    def _ask(self, order: CatchUp, part: int) -> None:
        ask = AskState(
            epoch_no=order.epoch_no,
            inc=self.state.inc,
            step=order.step,
            part=part,
            within=self._asked_within,
            loop_edge=self._loop_edge,
        )
        self._exchange.leave(partial(self._exchange.data.send, order.source.inc, ask))

    def begin_update(self, run: RunGroup) -> bool:
        self._leave_rest()
        return super().begin_update(run)

    def begin_trial(self, run: RunGroup) -> bool:
        self._leave_rest()
        return super().begin_trial(run)

    def _leave_rest(self) -> None:
        with self._changed:
            self._at_rest, self._holds, self._is_after_break = False, 0, False
            self._photographs.clear()

    def load_end(self, feed: Feed) -> None:
        """Become what a cut holds, if a feed was over before all of it was in our model.

        Without joining anybody: what the group holds, if there is more to train, comes with that.

        Raises:
            TransientError: the cut cannot be read, and the job has gone back to another one.
        """
        with self._changed:
            ended = self._complete.get(feed.feed)
            lacks = bool(feed.next_slice(self.state.done.line(feed.line())))
            if ended is None or ended.cut is None or not lacks or self._replica is None:
                return
            if ended.cut.cut_no <= self._loaded:
                self._replica.end_again()
                # By now the script may have added all groups that it lacked.
                self._holds = self._loaded if self._replica.is_whole else 0
                return
            self._loaded = ended.cut.cut_no
            self._do(self.state.forget())
            self.on_another()
            self._copier.forget()
            self._wait_for_copies(self._replica)
            self._loading = self._reading = None
            read = self._read_aside(ended)
            while not read.done():
                self._exchange.check()
                self._exchange.wait()
            try:
                read.result()
                self._holds = self._loaded if self._replica.is_whole else 0
            except PermanentError as error:
                until_s = time.monotonic() + SAME_LOOP_S
                # A peer that is still here holds it. If none does, the master finds another cut.
                self._await_state(feed, lambda: time.monotonic() > until_s)
                if feed.next_slice(self.state.done.line(feed.line())):
                    raise TransientError(str(error)) from error

    def await_state(self, feed: Feed) -> None:
        """Return when we hold what the group holds, or the others have evaluated all of a feed.

        What we have loaded at the end of a loop does, too. Before there is such a thing, a peer may
        be one that does not evaluate.
        """
        asks_s = time.monotonic() + SAME_LOOP_S

        def is_over() -> bool:
            nonlocal asks_s
            now_s = time.monotonic()
            if self._copier.is_left_behind:  # unless we hear that all of the feed is evaluated
                asks_s = min(asks_s, now_s + 2 * RESEND_S)
            if now_s > asks_s and not (self._asks_anywhere or self.has_model):
                self._asks_anywhere = True
                self._copier.restart()
            return feed.feed in self._complete

        with self._changed:
            self._await_state(feed, is_over)

    def _await_state(self, feed: Feed, is_over: Callable[[], bool]) -> None:
        self._do(self.state.join())
        ask_at_s = 0.0
        while not (is_over() or (self.has_model and self._leases.epoch_no)):
            self._check_stop()
            self._rest(stays=True)
            if (now_s := time.monotonic()) >= ask_at_s:
                self._tell_master([OpenFeed(inc=self.process.inc, feed=feed)])
                ask_at_s = now_s + RESEND_S
            self._exchange.wait()

    @property
    def has_model(self) -> bool:
        """Whether what we hold is of a step, or of a cut that `load_end` has loaded."""
        return self.state.step != NO_STEP or self._holds > 0

    def _catch_up(self, order: CatchUp) -> None:
        as_built = order.source.inc == self.state.inc and order.cut is None
        if as_built and self.touched and self.state.step == NO_STEP:
            raise Fenced  # a fresh life is as it was built
        super()._catch_up(order)

    def _do(self, instructions: Iterable[Instruction]) -> None:
        if not (instructions := list(instructions)):
            return
        if any(isinstance(one, Connect) for one in instructions):
            self._loading = None
            if not any(isinstance(one, Copy) for one in instructions):
                self._copier.forget()
        super()._do(instructions)

    def _take_over(self, order: Copy | LoadReplica) -> None:
        if isinstance(order, LoadReplica):
            self._loading = order.order
            return
        source = order.order.source
        self._exchange.leave(partial(self._exchange.data.connect, source.inc, source.address))
        self._copier.follow(order.order)

    def from_server(self, server: int, message: Data, frames: Sequence[memoryview]) -> None:
        """Take in what a peer answers."""
        self.num_events += 1
        if isinstance(message, PeerTakes) and len(frames) == 1:
            self._copier.take(server, message, frames[0], self._asked_within)

    def hand_out(self, message: AskState) -> tuple[StatePart, bytes] | None:
        """Hand out the state, only between two updates."""
        with self._changed:
            self.num_events += 1
            state = self.state
            # The script is a line or two from its next batch; schedulers may step there.
            self._changed.wait_for(
                lambda: self._may_be_copied or not self._is_at(message), SCRIPT_S
            )
            if not self._is_at(message):  # see `AskState`
                # Our next loop is not open, so who asks is told in time that its own is over.
                is_ahead = self._loop_edge > message.loop_edge and not self._opens
                return beyond(message, state.inc) if is_ahead else None
            held = (state.epoch_no, state.step) == (message.epoch_no, message.step)
            if self._replica is None or not (held and state.at_rest and self._may_be_copied):
                return None
            if self.in_body and self.spec.deterministic:
                return None  # a forward pass changes buffers, which are each member's own otherwise
            return self._photographs.part(self._replica, message, state.inc)

    def _is_at(self, asked: AskState) -> bool:
        """Tell whether our script is where the script of the asking peer is."""
        return asked.within == ANYWHERE or NO_FEED != self._within == asked.within

    # ------------------------------------------------------------------ evaluation

    def next_work(self, feed: int) -> Work | None:
        """Block for the next samples to evaluate; None: all are evaluated."""
        leases = self._leases
        with self._changed:
            while True:
                self._check_stop()
                self._rest()
                spans = leases.take(feed, leases.feeds[feed].batch_size)
                if spans:
                    work = Work(feed, spans, sum(len(span) for span in spans))
                    self._in_hand.append(work)
                    return work
                if feed in leases.ended or feed in self._complete:
                    return None
                self._tell_master(leases.want(feed))
                self._exchange.wait()

    def evaluate_put(self, work: Work, values: Mapping[str, Array]) -> None:
        """Hand in the results for a work."""
        with self._changed:
            if work not in self._in_hand:
                return
            self._in_hand.remove(work)
            epoch_no = self._leases.epoch_no
        self._results.put(work, values, epoch_no)

    def evaluate_get(self, feed: int) -> Mapping[str, Array] | None:
        """The results of all; None: an epoch has begun meanwhile, there is work again."""
        found = self._results.get(feed)
        if found is None:
            with self._changed:
                self._complete.pop(feed, None)
        return found

    def _follow_epoch(self) -> None:
        """Follow the epoch: in a newer one no work in hand counts."""
        if self.state.epoch_no > self._leases.epoch_no:
            self._in_hand.clear()
        super()._follow_epoch()

    # ------------------------------------------------------------------ events

    def tick(self) -> None:
        super().tick()
        self._copier.resend()
        if self.is_in_no_step:
            self._tell_master([InNoStep(inc=self.process.inc)])

    def from_master(self, message: NodeDown) -> None:
        if not isinstance(message, EvaluationTakes):
            super().from_master(message)
            return
        self.num_events += 1
        match message:
            case Grant():
                self._leases.grant(message)
            case Recall():
                self._tell_master(self._leases.recalled(message))
            case Evaluated():
                self._results.answered(message)
            case _:
                assert_never(message)


def _no_links() -> tuple[Link, ...]:
    """Measure nothing: peers do something else."""
    return ()
