"""The master's part for parameter servers alone, around `ServerHolder`.

Epochs that servers begin, and moves that make no progress.
"""

from collections.abc import Iterable
from functools import partial
from typing import Literal, assert_never

from paceline.base.errors import ConfigError
from paceline.base.numbering import NO_CUT, NO_INC, CutNo, Inc
from paceline.master.cut_folders import CutChosen
from paceline.master.holding.edge import RESEND_S, HolderEdge
from paceline.master.holding.lost_work import LostWithLives
from paceline.master.status import count_committed
from paceline.policy.actions import Profile
from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.nodes.hangs import Hang, find_silent
from paceline.protocol.records import (
    EpochStarted,
    Granted,
    Records,
)
from paceline.wire.events.nodes import MoveGivenUpEvent
from paceline.wire.events.state import RestoredEvent
from paceline.wire.messages.base import Server
from paceline.wire.messages.node import (
    BucketLoads,
    Committed,
    FenceAnswer,
    InitialWritten,
    Joined,
    MapSet,
    NodeUp,
    Prepared,
    Restored,
    WorkersNow,
)
from paceline.wire.spec import JobSpec

TELL_S = 5.0
"""Seconds after which the master repeats the number of workers."""
SILENT_S = 60.0
"""A process that says nothing may come back for so long: nobody needs it for the next moment, and
it may be blocked with its lock held (a page of slow storage)."""
MOVE_PATIENCE_S = 30.0
"""A server to which nothing of its share has come for so long is not to take another's place."""
ANSWER_PATIENCE_S = 4 * RESEND_S
"""Nor one that is asked every `RESEND_S` and says nothing for so long while nobody trains: every
contribution must be held by it, too."""


ServerEdgeTakes = (
    Prepared | InitialWritten | Committed | FenceAnswer | Restored | BucketLoads | Joined | MapSet
)
"""Messages of servers, and of workers about the model that they bring there."""


class ServerEdge(HolderEdge):
    """The edge of jobs whose state servers hold, or nobody."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._holder = ServerHolder(staleness=spec.staleness)
        #: Progress of the move as last seen, and the time at which that was new.
        self._move_progress: tuple[tuple[int, int, int] | None, float] = (None, 0.0)
        #: Time at which each receiver last answered, or at which that began to matter.
        self._said_s: dict[Inc, float] = {}
        self._lost_work = LostWithLives()
        #: Time at which workers were last told how many they are, and which they were.
        self._told: tuple[float, set[Inc]] = (0.0, set())
        #: Time at which servers were last seen to load a cut.
        self._loading_s = 0.0

    @property
    def holder(self) -> ServerHolder:
        return self._holder

    # ------------------------------------------------------------------ messages

    def handle(self, node: str, message: NodeUp, now_s: float) -> bool:
        if not isinstance(message, ServerEdgeTakes):
            return False
        match message:
            case Prepared() | InitialWritten():
                self._begin(node, message, now_s)
            case Committed():
                self.training.do(self.holder.committed(message))
            case FenceAnswer():
                if message.fenced in self.holder.fencing:
                    self._lost_work.fenced(self.training, message)
                self.training.do(self.holder.fence_answer(message))
            case Restored():
                self._restored(message, now_s)
            case BucketLoads():
                self.holder.load_said(message)
            case Joined() | MapSet():
                if isinstance(message, Joined):
                    self._said_s[message.inc] = now_s
                self.training.do(self.holder.server_said(message))
            case _:
                assert_never(message)
        return True

    def _begin(self, node: str, message: Prepared | InitialWritten, now_s: float) -> None:
        """A worker has a model, or has stored it; what a disk refuses now, it says again."""
        cuts = self.training.cuts
        if isinstance(message, Prepared):
            self.training.monitor.restarts.built(node, now_s)
            if cuts.can_begin(now_s):
                self.training.do(self.holder.prepare(message))
            return
        state, folders = self.training.state, cuts.folders
        if state.cuts.valid or state.model is None:
            return
        if cuts.takes(partial(folders.seal_first, message, state.model), now_s):
            self.training.do(self.holder.initial_written(message))

    def _restored(self, message: Restored, now_s: float) -> None:
        waited = bool(self.holder.restoring)
        self.training.do(self.holder.restored(message))
        if waited and not self.holder.restoring:
            self.training.outbox.tell(RestoredEvent(epoch_no=self.training.state.epoch_no))
            self.training.cuts.cadence.ended(now_s)
            for server in self.holder.map.servers if self.holder.map else ():
                self.training.monitor.restarts.works(server.node, now_s)

    def profile(self, action: Profile) -> None:
        raise ConfigError(
            "Profile: with parameter servers every batch that a worker computes counts; run the "
            "job with --strategy allreduce"
        )

    def before_record(self, record: Records) -> None:
        if isinstance(record, Granted):
            self._lost_work.granted(self.training, record.grant)
        elif isinstance(record, EpochStarted):
            self.training.epochs.tell(record.epoch_no, record.cut)
            self.training.cuts.folders.forget_memory(keep=record.cut.cut_no)

    # ------------------------------------------------------------------ moving buckets

    def change_servers(self, joining: tuple[Server, ...], leaving: tuple[Inc, ...]) -> None:
        self.training.do(self.holder.change_servers(joining, leaving))

    @property
    def is_moving(self) -> bool:
        return self.holder.moving.begun is not None

    def joiner_lost(self, inc: Inc) -> None:
        self.training.do(self.holder.joiner_lost(inc))

    def give_up_move(self) -> None:
        if not self.holder.moving.given_up:
            self.training.do(self.holder.give_up_move())

    def watch(self, now_s: float) -> None:
        """Give up a move that makes no progress; tell the workers how many they are."""
        self._tell_workers(now_s)
        moving, now = self.holder.moving, self.holder.map
        if moving.begun is None or now is None or moving.has_switched(now):
            self._move_progress, self._said_s = (None, now_s), {}
            return
        seen = (sum(moving.progress.values()), len(moving.joined), now.version)
        if seen != self._move_progress[0]:
            self._move_progress = (seen, now_s)
        if not now.copies:
            self._said_s = {}
        waiting = (moving.receiving_map(now) or now).receivers
        said_s = {inc: self._said_s.setdefault(inc, now_s) for inc in moving.joining}
        silent = min(said_s, key=lambda inc: said_s[inc], default=NO_INC)
        # Where somebody trains it lives, however late its words come here.
        trained_s = self.training.monitor.progress_s
        late = [inc for inc in waiting if moving.caught_up.get(inc, 0) < now.version] or waiting
        patience: list[tuple[Literal["share", "answer"], Iterable[Inc], float, float]] = [
            ("share", late, self._move_progress[1], MOVE_PATIENCE_S),
            ("answer", [silent], max(said_s.get(silent, now_s), trained_s), ANSWER_PATIENCE_S),
        ]
        for lacks, incs, since_s, patience_s in patience:
            if now_s - since_s >= patience_s and not moving.given_up:
                nodes = [self.training.members.roster.node_of(inc) for inc in incs]
                successor = ", ".join(node.name for node in nodes if node is not None)
                given_up = MoveGivenUpEvent(successor=successor, lacks=lacks, waited_s=patience_s)
                self.training.outbox.tell(given_up)
                self.training.do(self.holder.give_up_move())

    def _tell_workers(self, now_s: float) -> None:
        workers = self.training.state.training_workers()
        if set(workers) == self._told[1] and now_s < self._told[0] + TELL_S:
            return
        self._told = now_s, set(workers)
        for inc in workers:
            self.training.outbox.to_process(inc, WorkersNow(inc=inc, count=len(workers)))

    # ------------------------------------------------------------------ processes that hang

    def find_hang(self, bound_s: float, now_s: float) -> Hang | None:
        """Find the processes that neither speak nor work; slow ones are left to the solution.

        Servers say nothing while they load a cut, however long storage takes, and what their agents
        last reported may still be of that time. Where the user has set no bound it is `SILENT_S`
        at least.
        """
        if self._spec.timeouts.hang_s is None:
            bound_s = max(bound_s, SILENT_S)
        if self.holder.restoring:
            self._loading_s = now_s
        incs = self.training.known()
        if self.holder.map is not None and now_s - self._loading_s > bound_s:
            incs |= {server.inc for server in self.holder.map.servers}
        return find_silent(self.facts_of(incs), bound_s)

    # ------------------------------------------------------------------ cuts and epochs

    def being_loaded(self) -> set[CutNo]:
        return (
            {self.holder.start.cut.cut_no}
            if self.holder.restoring and self.holder.start is not None
            else set()
        )

    def take_last_cut(self) -> CutNo | None:
        feeds = [f.feed for f in self.training.state.ledger.feeds.values() if f.purpose == "train"]
        if feeds and set(feeds) <= self.training.state.cuts.safe:
            return NO_CUT
        if self.holder.map is None:
            return NO_CUT
        if self.training.state.cuts.under_way:
            return None
        self.training.do(self.training.state.take_cut())
        return self.training.state.cuts.copying

    def epoch_is_due(self) -> bool:
        """Tell whether all servers are up, and they are not those of the present epoch."""
        servers = self.training.members.roster.servers()
        if servers is None or not self.training.state.cuts.valid or self.training.epochs.choosing:
            return False
        return set(self.holder.serving) != {server.inc for server in servers}

    def begin_epoch(self, chosen: CutChosen, now_s: float) -> None:
        servers = self.training.members.roster.servers()
        if chosen.cut_no is not None and servers is not None:
            committed = count_committed(self.training.state)
            self.training.do(self.holder.start_epoch(servers))
            undone = committed - count_committed(self.training.state)
            self._lost_work.restored(self.training, servers, undone, now_s)
