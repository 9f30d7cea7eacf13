"""The half of a member's client that master and peers talk to: events in, instructions carried out.

What arrives goes into the pure `MemberState`, `Leases` and the parts of a cut, and what they decide
is carried out: messages are left to be sent, groups are dropped, peers are connected. All is done
with the lock ``changed`` held, in the thread of the `Exchange` (master, and peers that answer), of
the `Door` (peers that ask) or of `MemberClient` (the training thread).
"""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import assert_never

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
from paceline.runtime.group.cut_session import Keeper
from paceline.runtime.group.group import CPU, Group
from paceline.runtime.group.listener import Door
from paceline.runtime.group.profiling import MemberProfiling
from paceline.runtime.group.short import PeerSteps
from paceline.runtime.group.store import PeerStore
from paceline.runtime.process.asking import Asking, CutAsker
from paceline.runtime.process.exchange import Exchange
from paceline.runtime.process.process import Fenced, Process
from paceline.runtime.state.replica import Replica
from paceline.wire.messages.data import Data
from paceline.wire.messages.group import (
    NO_FEED,
    AskState,
    CatchUp,
    Computed,
    Divide,
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
    NodeDown,
    NodeUp,
    PlaceIs,
    Stop,
    TakeCut,
)

MEET_S = 10.0
"""How long a member waits for its peers to come into a new group."""

_log = logging.getLogger(__name__)


class MemberEdge:
    """The edge of a member; `MemberClient` adds what the training thread calls.

    Args:
        process: this one.
        together: a cut is made of copies of all members, after the same step.
    """

    def __init__(self, process: Process, *, together: bool = False) -> None:
        self.process, self.spec = process, process.spec
        # Peers hear little, and read from each other's memory: none is shared for messages.
        self._exchange = Exchange(process, self, arena_bytes=0)
        self._changed = self._exchange.changed
        self._door = Door(process, self)
        self.state = MemberState(process.inc, self._door.address)
        self._replica: Replica | None = None
        self._profiling = MemberProfiling(process.inc)
        self._peer_steps = PeerSteps()
        self._keeper = Keeper(process, self._on_news, together=together)
        self._asker = CutAsker(process.inc)
        self._stores: dict[int, PeerStore] = {}
        self._group: Group | None = None
        #: The newest one that has come together.
        self._met: Group | None = None
        #: What feeds there are, and leases of what is evaluated.
        self._leases = Leases(process.inc)
        #: What the master has said of complete feeds: in which cut they are.
        self._complete: dict[int, FeedOpened] = {}
        self._asking = Asking(process)
        self._leaving = self._hands_over = self._keeps_end = False
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
        process.at_end = self._end

    def _end(self) -> None:
        with self._changed:
            self._drop()
        self._exchange.halt()
        self._door.close()

    def _take_over(self, order: Copy | LoadReplica) -> None:
        """Become what a peer, or a cut, holds."""
        raise NotImplementedError

    # ------------------------------------------------------------------ events

    def tick(self) -> None:
        self._do(self.state.resend())
        self._tell_master(self._asker.resend())
        self._hear_keeper()
        self._tell_master(self._leases.resend())

    def from_master(self, message: NodeDown) -> None:
        match message:
            case StopGroup() | CatchUp() | RunGroup() | Divide():
                self._about_group(message)
            case ProfileBatches():
                answer = self._profiling.asked(message)
                self._tell_master([] if answer is None else [answer])
            case TakeCut() if message.epoch_no == self.state.epoch_no:
                self._tell_master(self._keeper.ask(message))
            case CutKept():
                self._keeper.kept(message)
                self._hear_keeper()
            case CutMade():
                self._asker.made(message)
            case FeedOpened():
                self._feed_opened(message)
            case AgreedOn() | PlaceIs():
                self._asking.answered(message)
            case Stop():
                self.process.stop_requested = self.process.told_to_stop = True
            case _:
                _log.warning("a member has no use for %s", type(message).__name__)

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
                self._do(self.state.run_group(message))
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
            if self.state.may_meet(message.epoch_no, message.group):
                self._store(message.group).put(message.key, value)

    def peer_computed(self, message: Computed) -> None:
        with self._changed:
            self._peer_steps.heard(message)

    def hand_out(self, message: AskState) -> tuple[StatePart, bytes] | None:
        return None

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

    def _tell_peers(self, run: RunGroup, message: Data, frames: Sequence[bytes] = ()) -> None:
        for member in run.members:
            if member.inc != self.state.inc:
                send = partial(self._exchange.data.send, member.inc, message, frames)
                self._exchange.leave(send)

    # ------------------------------------------------------------------ instructions

    def _do(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Say(message):
                    self._tell_master([message])
                case Drop():
                    self._drop()
                case Copy() | LoadReplica():
                    self._take_over(instruction)
                case Connect(run):
                    self._keeper.set_members(run.members)
                    self._exchange.leave(partial(self._meet_all, run))
                case _:
                    assert_never(instruction)

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
