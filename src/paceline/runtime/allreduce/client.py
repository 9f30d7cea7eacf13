"""A member's side of its group: `MemberState` between the training thread, master and peers.

Three threads use the state, one at a time, under ``changed``: the training thread, that of the
`Exchange` (master, and peers that answer) and that of the `Door` (peers that ask). The training
thread talks to the master only where it has nothing to compute.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NoReturn

import msgspec

from paceline.base.errors import PermanentError, TransientError
from paceline.base.processes import find_job_process, peak_memory_bytes, reset_peak_memory
from paceline.base.samples import Span
from paceline.runtime.allreduce.direct import read_memory
from paceline.runtime.allreduce.door import Door
from paceline.runtime.allreduce.group import BREAKING, Group
from paceline.runtime.allreduce.keeper import Keeper
from paceline.runtime.allreduce.profiling import Profiling
from paceline.runtime.allreduce.replica import Arriving, Photograph, Replica
from paceline.runtime.allreduce.short import PeerSteps, ShortStep
from paceline.runtime.allreduce.state import (
    Connect,
    Copy,
    Drop,
    Instruction,
    Load,
    MemberState,
    Say,
)
from paceline.runtime.allreduce.store import PeerStore
from paceline.runtime.checkpoint.asking import CutAsker
from paceline.runtime.checkpoint.cutfile import read_cut
from paceline.runtime.data.work import Array, StepTimes, Work
from paceline.runtime.exchange import Exchange
from paceline.runtime.process import Fenced, Process, Stopped
from paceline.runtime.ps.results import Results
from paceline.runtime.ps.worker_state import DropWork, ToMaster, WorkerState
from paceline.runtime.ps.worker_state import Instruction as LeaseInstruction
from paceline.wire.cut import places
from paceline.wire.messages.base import CutRef, ServerMap
from paceline.wire.messages.checks import Checked, NodeSpeed
from paceline.wire.messages.data import Data
from paceline.wire.messages.feeds import Feed, SourceLine
from paceline.wire.messages.group import (
    NO_STEP,
    STILL,
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
    CutMade,
    Evaluated,
    FeedOpened,
    Grant,
    NewEpoch,
    NodeDown,
    NodeUp,
    OpenFeed,
    Recall,
    Stop,
    TakeCut,
)

RESEND_S = 0.5
"""What is unanswered this long is asked again."""
MEET_S = 10.0
"""How long a member waits for its peers to come into a new group."""
LAST_CUT_S = 20.0
"""A cut that is on its way when we are told to leave may take so long."""
SCRIPT_S = 0.1
"""How long a peer's question waits for the script to come from its update to its next batch."""
PARTS_AHEAD = 4
"""Parts of a peer's state that are asked for at a time: what a joiner's copy takes of memory
beside the state itself."""

_NO_SERVERS = ServerMap(version=0, servers=(), owners=())

_log = logging.getLogger(__name__)


class GroupClient:
    """See the module. All public calls are the training thread's."""

    def __init__(self, process: Process) -> None:
        self.process, self.spec = process, process.spec
        # Peers are told little, and read from each other's memory: none is shared for messages.
        self._exchange = Exchange(process, self, arena_bytes=0)
        self._changed = self._exchange.changed
        self._door = Door(process, self)
        self.state = MemberState(process.inc, self._door.address)
        self._replica: Replica | None = None
        #: Nothing of the state changes before the next update: optimizers and schedulers are done.
        self._at_rest = True
        self._photograph: tuple[int, int, Photograph] | None = None
        #: What we copy, and whom from; it is loaded where the training thread waits.
        self._arriving: tuple[CatchUp, Arriving] | None = None
        #: A cut that we are to begin with.
        self._loading: CatchUp | None = None
        self._profiling = Profiling(process.inc)
        self._peer_steps = PeerSteps()
        self._keeper = Keeper(process, self._on_news)
        self._asker = CutAsker(process.inc)
        self._stores: dict[int, PeerStore] = {}
        self._group: Group | None = None
        #: Leases of what is evaluated.
        self._leases = WorkerState(process.inc, mode="asp", samples="exactly-once")
        self._results = Results(self._leases, self._until)
        self._in_hand: list[Work] = []
        self._complete: set[int] = set()
        #: The cut in which a complete feed is.
        self._ends: dict[int, CutRef | None] = {}
        #: The cut that `load_end` has loaded.
        self._loaded = 0
        self._leaving = False
        #: Measures our node.
        self._measure: Callable[[], NodeSpeed] | None = None
        self.joins_others = False
        """Whether a group trained already when we opened a feed."""
        self.in_body = False
        """The script has a batch in hand, or what follows from it to do: the state is its own."""
        self.touched = False
        """What we hold is not what we were built with any more, though it is no step's."""
        process.at_end = self._end

    def start(self, replica: Replica) -> None:
        """Everything is prepared."""
        self._replica = replica
        self.state.replica = replica.describe()
        self._exchange.start()

    def _end(self) -> None:
        with self._changed:
            self._drop()
        self._exchange.halt()
        self._door.close()

    # ------------------------------------------------------------------ steps

    def enter(self, feed: int, at_end: Callable[[], bool]) -> tuple[RunGroup, Group] | None:
        """Begin a step of a feed: the group to do it in, once there is one.

        None: the feed is over, or we are ``at_end`` of it and all members hold that.
        """
        while True:
            with self._changed:
                run = self._entered(feed)
                if run is None:
                    return None
                if self.state.is_proven and at_end():
                    self._do(self.state.leave_step())
                    return None
            group = self._connected(run)
            if group is not None:
                return run, group

    def _entered(self, feed: int) -> RunGroup | None:
        with self._changed:
            self._do(self.state.join())
            while feed not in self._complete:
                self._check_stop()
                self._rest()
                run = self.state.enter()
                if run is not None:
                    self.process.step = self.state.step + 1
                    return run
                self._exchange.wait()
        return None

    def _connected(self, run: RunGroup) -> Group | None:
        """The group itself; None: it was over before it began."""
        with self._changed:
            group = self._group
            if group is not None and group.run is run:
                return group
            if self.state.running is not run:
                return None
            group = self._group = Group(run, self.state.inc, self._store(run.group))
        try:
            group.connect(self.spec.listen)
            if run.check:
                self._check(group)
            elif self._measure is not None:
                # The job goes on from a cut, or others have begun meanwhile.
                measure, self._measure = self._measure, None
                self._exchange.tell(Checked(inc=self.state.inc, speed=measure()))
        except BREAKING as error:
            self.failed(run, f"connecting: {error}")
            return None
        with self._changed:
            return group if self._group is group else None

    def check(self, measure: Callable[[], NodeSpeed]) -> None:
        """See `Strategy.check`.

        Members that begin together measure at the same time, so that those that share a machine
        take as much from each other; who joins does it before anybody waits for it.
        """
        if self.joins_others:
            self._exchange.tell(Checked(inc=self.state.inc, speed=measure()))
        else:
            self._measure = measure

    def _check(self, group: Group) -> None:
        """Measure our node and our links; all members of a first group do."""
        speed = self._measure() if self._measure is not None else None
        links = group.measure_links()
        if speed is not None:
            self._measure = None
            speed = msgspec.structs.replace(speed, links=links)
            self._exchange.tell(Checked(inc=self.state.inc, speed=speed))

    def _rest(self) -> None:
        """Between steps, where the state is whole: copy it if asked to, or become another's."""
        assert self._replica is not None
        if self.in_body:
            return
        if not self._at_rest:
            self._at_rest = True
            self._changed.notify_all()
        if self._arriving is not None and self._arriving[1].readable is not None:
            self._read(*self._arriving)
        if self._arriving is not None and self._arriving[1].whole:
            order, arrived = self._arriving
            self._arriving = None
            if self.state.may_load(order):
                self._keeper.wait()
                self._replica.load(arrived)
                self._do(self.state.copied(order))
        if self._loading is not None:
            order, self._loading = self._loading, None
            if self.state.may_load(order):
                self._keeper.wait()
                assert order.cut is not None
                try:
                    self._replica.load_saved(_saved(order.cut))
                except PermanentError as error:
                    # The master reads a cut before it is loaded again, and finds another.
                    raise TransientError(str(error)) from error
                self._do(self.state.copied(order))
        self._keeper.copy_if_asked(self.state, self._replica)

    def _read(self, order: CatchUp, arriving: Arriving) -> None:
        """Read a peer's state out of its memory; what it cannot be read from comes in parts."""
        assert self._replica is not None
        assert arriving.readable is not None
        assert arriving.layout is not None
        if not self.state.may_load(order):
            return
        self._keeper.wait()
        # Who holds a step of its own keeps it until the other one is confirmed.
        self.touched = True
        targets = self._replica.targets(arriving.layout, in_place=self.state.step == NO_STEP)
        try:
            read_memory(*arriving.readable, targets)
        except OSError as error:
            _log.info("state_in_parts reason=%s", error)
            arriving.readable = None
            self._ask_parts()
            return
        arriving.read(targets)
        self._ask(order, STILL)

    def _ask(self, order: CatchUp, part: int) -> None:
        ask = AskState(epoch_no=order.epoch_no, inc=self.state.inc, step=order.step, part=part)
        self._exchange.leave(partial(self._exchange.data.send, order.source.inc, ask))

    def begin_update(self, run: RunGroup) -> bool:
        """See `MemberState.begin_update`."""
        # It is what a cut may be copied from, beside the forward and backward passes.
        self._keeper.wait()
        with self._changed:
            self._at_rest = False
            return self.state.begin_update(run)

    def give_up_update(self, *, torn: bool) -> None:
        """An update was begun and will not be finished; ``torn``: some of it is in the model."""
        with self._changed:
            self.state.give_up_update()
            if torn:
                self._do(self.state.forget())

    def updated(self, spans: Iterable[Span], *, last: bool) -> None:
        """See `MemberState.updated`."""
        with self._changed:
            self._do(self.state.updated(spans, last=last))

    def proven(self, run: RunGroup, *, last: bool) -> bool:
        """See `MemberState.proven`; whether it counts."""
        with self._changed:
            self._do(self.state.proven(run, last=last))
            return self.state.is_proven

    def divisions(self, run: RunGroup) -> tuple[Division, Division] | None:
        """How the step that begins is divided, and the newest division that we have heard of.

        None: the group is over.
        """
        with self._changed:
            state = self.state
            return (state.division, state.heard) if state.running is run else None

    def agree(self, run: RunGroup, told: Division, numbers: Iterable[int]) -> None:
        """See `MemberState.agree`."""
        with self._changed:
            self.state.agree(run, told, numbers)

    def watch_peers(self, run: RunGroup, short: ShortStep) -> None:
        """Tell the step that begins who has computed its share of it."""
        with self._changed:
            self._peer_steps.watch(run, self.state.step + 1, short)

    def tell_computed(self, run: RunGroup) -> None:
        """Tell all peers that we have computed our share of the step."""
        inc, step = self.state.inc, self.state.step + 1
        message = Computed(epoch_no=run.epoch_no, inc=inc, group=run.group, step=step)
        with self._changed:
            self._tell_peers(run, message)

    def _tell_peers(self, run: RunGroup, message: Data, frames: Sequence[bytes] = ()) -> None:
        for member in run.members:
            if member.inc != self.state.inc:
                send = partial(self._exchange.data.send, member.inc, message, frames)
                self._exchange.leave(send)

    def failed(self, run: RunGroup, reason: str) -> None:
        """See `MemberState.failed`."""
        with self._changed:
            self._do(self.state.failed(run, reason))

    def leave_step(self) -> None:
        """See `MemberState.leave_step`."""
        with self._changed:
            self._do(self.state.leave_step())

    @property
    def wants_out(self) -> bool:
        """Whether the step that begins should be the last in this group."""
        return self.state.wants_out or self.process.stop_requested

    def profile_due(self) -> tuple[int, int]:
        """See `Profiling.due`; the batches are about to be computed."""
        with self._changed:
            size, count = self._profiling.due
        if count:
            reset_peak_memory()
        return size, count

    def profiled(self, size: int, batch_s: float) -> None:
        """See `Profiling.took`."""
        peak_bytes = peak_memory_bytes()
        with self._changed:
            answer = self._profiling.took(size, batch_s, peak_bytes)
            if answer is not None:
                self._tell_master([answer])

    def mark(self, *, computing: bool) -> None:
        """Tell the agent what we are at: a part of a step all by ourselves, or not."""
        now_s = time.monotonic()
        self.process.ledger.mark(now_s if computing else -now_s)

    def unmark(self) -> None:
        """Nobody waits for us as long as we do something else."""
        self.process.ledger.mark(0.0)

    def record(self, times: StepTimes) -> None:
        """Note what a finished step took."""
        self.process.record(times)

    def checkpoint(self) -> None:
        """Have a cut made that holds what we hold."""
        with self._changed:
            self._tell_master(self._asker.ask(self.state.epoch_no, max(self.state.step, 0)))

    # ------------------------------------------------------------------ feeds, evaluation

    def open_feed(self, feed: Feed) -> Feed:
        """See `Strategy.open_feed`."""
        message = OpenFeed(inc=self.process.inc, feed=feed)
        self._until(lambda: feed.feed in self._leases.feeds, ask=lambda: [ToMaster(message)])
        return self._leases.feeds[feed.feed]

    def await_end(self, feed: Feed) -> None:
        """Return when all of a feed is in a cut on disk: nothing of it can come again."""
        message = OpenFeed(inc=self.process.inc, feed=feed)
        self._until(lambda: feed.feed in self._complete, ask=lambda: [ToMaster(message)])

    def is_complete(self, feed: int) -> bool:
        """Whether all of it was done before we came to it."""
        return feed in self._complete

    def load_end(self, feed: Feed) -> None:
        """Become what a cut holds, if a feed was over before all of it was in our model.

        Without joining anybody: what the group holds, if there is more to train, comes with that.
        """
        with self._changed:
            cut = self._ends.get(feed.feed)
            lacks = bool(feed.next_slice(self.state.done.line(feed.line())))
            if cut is None or not lacks or cut.cut_no <= self._loaded or self._replica is None:
                return
            self._keeper.wait()
            self.touched = True
            self._loaded = cut.cut_no
            self._do(self.state.forget())
            self._replica.load_saved(_saved(cut))

    def await_state(self) -> None:
        """Return when we hold what the group holds."""
        with self._changed:
            self._do(self.state.join())
            while self.state.step == NO_STEP or not self._leases.epoch_no:
                self._check_stop()
                self._rest()
                self._exchange.wait()

    def source_line(self, line: int) -> SourceLine:
        """See `Strategy.source_line`."""
        with self._changed:
            return self._leases.source_line(line)

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
                self._do_leases(leases.want(feed))
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
        return self._results.get(feed)

    # ------------------------------------------------------------------ waiting

    def _check_stop(self) -> None:
        self._exchange.check()
        if self.process.stop_requested and not self._leaving and self.state.running is None:
            self._leave()

    def _leave(self) -> NoReturn:
        """Raise Stopped, but let no cut be lost that is on its way."""
        self._leaving, self.in_body = True, False
        deadline_s = time.monotonic() + LAST_CUT_S
        while True:
            self._rest()
            if not self._keeper.busy or time.monotonic() > deadline_s:
                break
            self._exchange.wait()
        raise Stopped

    def _until(
        self, done: Callable[[], bool], ask: Callable[[], Iterable[LeaseInstruction]] = lambda: ()
    ) -> None:
        ask_at_s = 0.0
        with self._changed:
            while not done():
                self._exchange.check()
                self._rest()
                now_s = time.monotonic()
                if now_s >= ask_at_s:
                    self._do_leases(ask())
                    ask_at_s = now_s + RESEND_S
                self._exchange.wait()
                if self.process.stop_requested and not self._leaving:
                    self._leave()

    # ------------------------------------------------------------------ events

    def tick(self) -> None:
        """See `Owner.tick`."""
        self._do(self.state.resend())
        self._tell_master(self._asker.resend())
        self._hear_keeper()
        self._do_leases(self._leases.resend())
        if self._arriving is not None:
            self._arriving[1].ask_again()
            self._ask_parts()
            if self._arriving[1].unconfirmed:
                self._ask(self._arriving[0], STILL)

    def from_master(self, message: NodeDown) -> None:
        """See `Owner.from_master`."""
        match message:
            case StopGroup() | CatchUp() | RunGroup() | Divide():
                self._about_group(message)
            case ProfileBatches():
                answer = self._profiling.asked(message)
                self._tell_master([] if answer is None else [answer])
            case TakeCut() if message.epoch_no == self.state.epoch_no:
                self._tell_master(self._keeper.ask(message))
            case CutMade():
                self._asker.made(message)
            case FeedOpened():
                self.joins_others |= message.trains
                if message.complete:
                    self._complete.add(message.feed.feed)
                    self._ends[message.feed.feed] = message.cut
                self._do_leases(self._leases.feed_opened(message))
            case Grant():
                self._do_leases(self._leases.grant(message))
            case Recall():
                self._do_leases(self._leases.recalled(message))
            case Evaluated():
                self._results.answered(message)
            case Stop():
                self.process.stop_requested = self.process.told_to_stop = True
            case _:
                _log.warning("a member has no use for %s", type(message).__name__)

    def _about_group(self, message: StopGroup | CatchUp | RunGroup | Divide) -> None:
        match message:
            case StopGroup():
                self._do(self.state.stop_group(message))
                self._follow_epoch()
            case CatchUp():
                self._catch_up(message)
            case RunGroup():
                self._do(self.state.run_group(message))
            case Divide():
                self._do(self.state.divide(message))

    def _catch_up(self, order: CatchUp) -> None:
        as_built = order.source.inc == self.state.inc and order.cut is None
        if as_built and self.touched and self.state.step == NO_STEP:
            raise Fenced  # a fresh life is as it was built
        self._do(self.state.catch_up(order))
        self._follow_epoch()

    def _on_news(self) -> None:
        """Of the keeper; in its thread."""
        with self._changed:
            self._exchange.leave(self._hear_news)

    def _hear_news(self) -> None:
        with self._changed:
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
            new = NewEpoch(epoch_no=epoch_no, inc=self.state.inc, map=_NO_SERVERS, step=0)
            self._do_leases(self._leases.new_epoch(new))

    def from_server(self, server: int, message: Data, frames: Sequence[memoryview]) -> None:
        """See `Owner.from_server`: what a peer answers."""
        if not isinstance(message, StatePart) or self._arriving is None or len(frames) != 1:
            return
        order, arriving = self._arriving
        # A former source may hold another model of an equal step.
        wanted = (order.source.inc, order.epoch_no, order.step)
        if (server, message.epoch_no, message.step) != wanted:
            return
        if message.part == STILL:
            arriving.unconfirmed = False
            return
        kept = arriving.take(message.part, message.num_parts, frames[0], message.digest)
        found = find_job_process(message.pid, self.process.job.path) if message.addresses else None
        if kept and found is not None and found.node == order.source.node:
            arriving.readable = message.pid, message.addresses
        self._ask_parts()

    # ------------------------------------------------------------------ peers

    def met(self, message: Meet, value: bytes) -> None:
        """See `Host.met`."""
        with self._changed:
            if self.state.may_meet(message.epoch_no, message.group):
                self._store(message.group).put(message.key, value)

    def peer_computed(self, message: Computed) -> None:
        """See `Host.peer_computed`."""
        with self._changed:
            self._peer_steps.heard(message)

    def hand_out(self, message: AskState) -> tuple[StatePart, bytes] | None:
        """See `Host.hand_out`: only while nothing can change what we hold."""
        with self._changed:
            state = self.state
            # The script is a line or two from its next batch; schedulers may step there.
            self._changed.wait_for(lambda: self._at_rest, SCRIPT_S)
            held = (state.epoch_no, state.step) == (message.epoch_no, message.step)
            if not (held and state.at_rest and self._at_rest and self._replica):
                return None
            if self.in_body and self.spec.deterministic:
                return None  # a forward pass changes buffers, which are each member's own otherwise
            if self._photograph is None or self._photograph[:2] != (state.epoch_no, state.step):
                self._photograph = state.epoch_no, state.step, self._replica.photograph()
            photograph = self._photograph[2]
            if not STILL <= message.part < photograph.num_parts:
                return None
            frame, digest = (b"", 0) if message.part == STILL else photograph.part(message.part)
        answer = StatePart(
            epoch_no=message.epoch_no,
            inc=state.inc,
            step=message.step,
            part=message.part,
            num_parts=photograph.num_parts,
            digest=digest,
            pid=os.getpid(),
            addresses=() if message.part else photograph.addresses,
        )
        return answer, frame

    def _ask_parts(self) -> None:
        """Ask for the parts that are missing, a few at a time."""
        if self._arriving is None:
            return
        order, arriving = self._arriving
        for part in arriving.ask(PARTS_AHEAD):
            self._ask(order, part)

    def _store(self, group: int) -> PeerStore:
        """The store of a group; those of groups before it are over."""
        if group not in self._stores:
            for old in [number for number in self._stores if number < self.state.ran]:
                self._stores.pop(old).end()
            self._stores[group] = PeerStore(partial(self._tell, group), MEET_S)
        return self._stores[group]

    def _tell(self, group: int, key: str, value: bytes) -> None:
        """Set something in the stores of all peers; called by torch while it connects."""
        with self._changed:
            run = self.state.running
            if run is None or run.group != group:
                return
            message = Meet(epoch_no=run.epoch_no, inc=self.state.inc, group=group, key=key)
            self._tell_peers(run, message, [value])

    # ------------------------------------------------------------------ instructions

    def _do(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Say(message):
                    self._tell_master([message])
                case Drop():
                    self._drop()
                case Copy(order):
                    self._arriving = order, Arriving()
                    self._meet(order.source.inc, order.source.address)
                    self._ask_parts()
                case Load(order):
                    self._loading = order
                case Connect(run):
                    self._photograph = self._arriving = self._loading = None
                    self._keeper.set_holders([member.node for member in run.members])
                    self._exchange.leave(partial(self._meet_all, run))

    def _meet(self, inc: int, address: str) -> None:
        self._exchange.leave(partial(self._exchange.data.connect, inc, address))

    def _meet_all(self, run: RunGroup) -> None:
        """Be connected to these peers and no others."""
        data = self._exchange.data
        peers = {one.inc: one.address for one in run.members if one.inc != self.state.inc}
        for gone in set(data.keys()) - set(peers):
            data.disconnect(gone)
        for inc, address in peers.items():
            data.connect(inc, address)

    def _drop(self) -> None:
        """What we worked in is over; a group after it may have been heard of already."""
        for number, store in self._stores.items():
            if number <= self.state.ran:
                store.end()
        if self._group is not None:
            self._group.drop()
            self._group = None

    def _do_leases(self, instructions: Iterable[LeaseInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case ToMaster(message):
                    self._tell_master([message])
                case DropWork():
                    self._in_hand.clear()
                case _:
                    pass


def _saved(cut: CutRef) -> Mapping[str, Array]:
    """What the one file of a cut holds, verified.

    Raises:
        PermanentError: it is missing or damaged.
    """
    _, files = read_cut(*places(cut))
    (saved,) = files.values()
    return saved
