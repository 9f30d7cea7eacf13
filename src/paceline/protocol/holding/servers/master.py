"""The master's part of a job whose model lies on parameter servers: epochs, fences, moving buckets.

An epoch begins when all servers are up and one of them is new: all go back to the last valid cut.
A lost worker's leases go back when the leader has said what of them is in the order already.
"""

import msgspec

from paceline.protocol.acts import (
    Fail,
    Instruction,
    Moved,
    NotMoved,
    Send,
)
from paceline.protocol.holding.servers.moving import Moving
from paceline.protocol.reasons import schema_difference
from paceline.protocol.records import (
    CutValid,
    EpochStarted,
    MapChanged,
    MoveBegun,
    MoveEnded,
    Records,
    Returned,
    SchemaFixed,
)
from paceline.protocol.samples.grant_size import MIN_STEPS, Sizing
from paceline.protocol.training import MasterState
from paceline.wire.messages.base import CutRef, Server, ServerMap
from paceline.wire.messages.node import (
    ChangeMap,
    Committed,
    Fence,
    FenceAnswer,
    InitialWritten,
    Joined,
    JoinServers,
    LeaseRequest,
    MapSet,
    NewEpoch,
    NewMap,
    NewRate,
    Prepared,
    Restore,
    Restored,
    WriteInitial,
)
from paceline.wire.messages.order import Allow
from paceline.wire.schema import NUM_BUCKETS


class HeldByServers(MasterState):
    """See the module and `MasterState`."""

    def __init__(
        self, *, mode: str, samples: str, staleness: int = 0, whole_steps: bool = False
    ) -> None:
        super().__init__(mode=mode, samples=samples, whole_steps=whole_steps, granted=True)
        self.staleness = staleness
        # Durable.
        self.map: ServerMap | None = None
        self.start: EpochStarted | None = None
        self.moving = Moving()
        # Volatile.
        self.fencing: set[int] = set()
        #: Servers of the present epoch that have not said `restored`.
        self.restoring: set[int] = set()
        #: Workers not known to be in this epoch.
        self.untold: set[int] = set()
        self.writer: int | None = None
        #: The leader's last word.
        self.heard: Committed | None = None

    # ------------------------------------------------------------------ records

    def apply(self, record: Records) -> None:
        """See `MasterState.apply`."""
        match record:
            case EpochStarted():
                self._apply_epoch(record)
            case MapChanged():
                self.map = record.map
                # A cut that was asked for before may be one of servers that are gone since.
                self.cuts.last_no += 1
            case MoveBegun() | MoveEnded():
                self.moving.begun = record if isinstance(record, MoveBegun) else None
            case _:
                super().apply(record)

    def _apply_epoch(self, record: EpochStarted) -> None:
        self.start, self.map = record, record.map
        self.epoch_no, self.step = record.epoch_no, record.step
        self._go_back(record.committed)
        self.plans.restart(record.step)
        self.moving.begun = None

    def _apply_valid(self, record: CutValid) -> None:
        if record.epoch_no == self.epoch_no:
            # The leader's word is not journalled; without this a restarted master would not know
            # that the feed is safe.
            self.ledger.commit(record.committed)
            self.step = max(self.step, record.step)
        super()._apply_valid(record)

    # ------------------------------------------------------------------ epochs

    def prepare(self, message: Prepared) -> list[Instruction]:
        """A worker has a model; the first one writes the initial values as cut 0."""
        self.prepared.add(message.inc)
        done: list[Instruction] = []
        if self.model is None:
            done.append(self._record(SchemaFixed(model=message.schema)))
        elif self.model != message.schema:
            return [Fail(schema_difference(self.model, message.schema))]
        if self.cuts.valid:
            return [*done, *self._tell_epoch(message.inc)]
        if self.writer is None:
            self.writer = message.inc
        if self.writer == message.inc:
            done.append(Send(message.inc, WriteInitial(inc=message.inc)))
        return done

    def initial_written(self, message: InitialWritten) -> list[Instruction]:
        """Cut 0 is there: the model before any sample."""
        if self.cuts.valid or message.inc != self.writer:
            return []
        cut = CutRef(cut_no=0)
        return [self._record(CutValid(cut=cut, step=0, committed=(), epoch_no=0))]

    def start_epoch(self, servers: tuple[Server, ...]) -> list[Instruction]:
        """All servers are up and one of them is new: back to the last valid cut."""
        valid = self.cuts.valid[-1]
        version = self.map.version + 1 if self.map else 1
        owners = tuple(bucket % len(servers) for bucket in range(NUM_BUCKETS))
        begun = self.moving.begun
        not_moved = [NotMoved(begun.new.inc, futile=False)] if begun else []
        record = EpochStarted(
            epoch_no=self.epoch_no + 1,
            cut=valid.cut,
            step=valid.step,
            committed=valid.committed,
            map=ServerMap(version=version, servers=servers, owners=owners),
            short_steps=self.short_steps,
            left_out=self.left_out,
        )
        journal = self._record(record)
        self._forget_epoch()
        self.plans.move(self.step + 1, (), free=True)
        return [journal, *not_moved, *self._commit_plan(), *self._restore()]

    def _forget_epoch(self) -> None:
        self.waiting.clear()
        self.fencing.clear()
        self.complete.clear()
        self.heard = None
        self.cuts.forget()
        self.moving.forget()
        self.untold = set(self.workers)
        self.restoring = {server.inc for server in self.map.servers} if self.map else set()

    def resume(self) -> list[Instruction]:
        """See `MasterState.resume`."""
        if self.map:
            self.restoring = set(self.map.sharers)
        if self.mode == "ssp" and self.samples != "exactly-once":
            self.fencing = set(self.gone)
        return [*super().resume(), *self._restore()]

    def _restore(self) -> list[Instruction]:
        return [Send(inc, self._restore_message(inc)) for inc in sorted(self.restoring)]

    def _restore_message(self, inc: int) -> Restore:
        assert self.start is not None and self.map is not None
        return Restore(
            epoch_no=self.epoch_no,
            inc=inc,
            cut=self.start.cut,
            map=self.map,
            mode=self.mode,
            samples=self.samples,
            staleness=self.staleness,
        )

    def restored(self, message: Restored) -> list[Instruction]:
        """A server is in this epoch; when all are, the workers may start."""
        if message.epoch_no != self.epoch_no or message.inc not in self.restoring:
            return []
        self.restoring.discard(message.inc)
        if self.restoring:
            return []
        told = [told for inc in sorted(self.untold) for told in self._tell_epoch(inc)]
        return [*self._allow(), *told]

    def _tell_epoch(self, inc: int) -> list[Instruction]:
        if self.restoring or self.start is None or self.map is None or inc not in self.prepared:
            return []
        step = max(self.step, self.start.step)
        return [
            Send(inc, NewEpoch(epoch_no=self.epoch_no, inc=inc, map=self.map, step=step)),
        ]

    @property
    def phase(self) -> str:
        """See `MasterState.phase`."""
        if self.map is None:
            return "starting"
        return "restoring" if self.restoring else "training"

    @property
    def is_training(self) -> bool:
        """See `MasterState.is_training`."""
        return self.map is not None and not self.restoring

    # ------------------------------------------------------------------ workers

    def worker_up(self, inc: int, node: str = "") -> list[Instruction]:
        """See `MasterState.worker_up`."""
        told = super().worker_up(inc, node)
        if inc in self.workers:
            self.untold.add(inc)
        return told

    def worker_lost(self, inc: int, *, returned: bool = False) -> list[Instruction]:
        """See `MasterState.worker_lost`."""
        self._forget_worker(inc)
        self.untold.discard(inc)
        if self.writer == inc:
            self.writer = None
        if self.map is None or (inc in self.gone and inc not in self.ledger.leases):
            return []
        if self.samples == "exactly-once":
            self.fencing.add(inc)
            return self._fence(inc)
        back = self._record(Returned(inc=inc))
        if self.mode == "ssp":  # the others would wait for it at the leader
            self.fencing.add(inc)
        return [back, *self._fence_all(), *self._serve()]

    def _is_fenced(self, inc: int) -> bool:
        return inc in self.fencing

    def _fence_all(self) -> list[Instruction]:
        return [one for inc in sorted(self.fencing) for one in self._fence(inc)]

    def _fence(self, inc: int) -> list[Instruction]:
        if self.map is None or self.restoring:
            return []
        leader = self.map.servers[0].inc
        return [Send(leader, Fence(epoch_no=self.epoch_no, inc=leader, fenced=inc))]

    def fence_answer(self, message: FenceAnswer) -> list[Instruction]:
        """The leader's word: the rest of the lost worker's leases goes back."""
        if message.epoch_no != self.epoch_no or message.fenced not in self.fencing:
            return []
        self.fencing.discard(message.fenced)
        if self.samples != "exactly-once":
            return []  # what it left went back at once
        returned = Returned(inc=message.fenced, committed=message.committed)
        # Who waits gets of it what is urgent, and asks again: its owner may come back.
        for inc in self.waiting:
            size = self.sizes[inc]
            self.sizes[inc] = msgspec.structs.replace(size, steps=min(size.steps, MIN_STEPS))
        return [self._record(returned), *self._commit_plan(), *self._serve()]

    def _request(self, message: LeaseRequest, sizing: Sizing) -> list[Instruction]:
        self.untold.discard(message.inc)
        return [*self._hint(message), *super()._request(message, sizing)]

    def _hint(self, message: LeaseRequest) -> list[Instruction]:
        """A worker that has missed a change of the map, and may not know who leads now."""
        if self.map is None or self.restoring or message.map_version >= self.map.version:
            return []
        inc = message.inc
        return [Send(inc, NewMap(epoch_no=self.epoch_no, inc=inc, map=self.map))]

    def committed(self, message: Committed) -> list[Instruction]:
        """The leader's word of what is in the model; leases shrink, DONE grows."""
        if message.epoch_no != self.epoch_no or self.map is None:
            return []
        if message.inc != self.map.servers[0].inc or self.restoring:
            return []
        self.step = max(self.step, message.step)
        if self.heard is None or _later(message, self.heard):
            self.heard = message
        self.ledger.commit(message.committed)
        return [*self._move_plan(self.step + 1), *self._serve()]

    # ------------------------------------------------------------------ plans

    @property
    def short_steps(self) -> int:
        """See `MasterState.short_steps`."""
        before = self.start.short_steps if self.start is not None else 0
        return before + (self.heard.short_steps if self.heard is not None else 0)

    @property
    def left_out(self) -> int:
        """See `MasterState.left_out`."""
        before = self.start.left_out if self.start is not None else 0
        return before + (self.heard.left_out if self.heard is not None else 0)

    def _plan_committed(self) -> list[Instruction]:
        return [*self._allow(), *self._tell_rates()]

    def _allow(self) -> list[Instruction]:
        """Tell the leader what may be left out, unless it has said that it knows."""
        allowed, feed = self.plans.allowed(), self.plans.in_training()
        if allowed is None or feed is None or self.map is None or self.restoring:
            return []
        if self.heard is not None and self.heard.allow >= allowed.plan.allow:
            return []
        leader = self.map.servers[0].inc
        allow = Allow(
            epoch_no=self.epoch_no,
            inc=leader,
            no=allowed.plan.allow,
            step=allowed.step,
            left_out=allowed.plan.left_out,
            of=feed.batch_size,
            late=allowed.plan.late,
            grace_s=allowed.plan.grace_s,
        )
        return [Send(leader, allow)]

    def _tell_rates(self) -> list[Instruction]:
        if self.mode == "bsp":
            return []
        newest = self.plans.newest
        return [
            Send(inc, NewRate(epoch_no=self.epoch_no, inc=inc, rate=newest.rate_of(node)))
            for inc, node in sorted(self.workers.items())
            if inc not in self.untold
        ]

    # ------------------------------------------------------------------ cuts

    def _holders(self) -> tuple[int, ...]:
        if self.map is None or self.restoring:
            return ()
        return tuple(dict.fromkeys((*self.map.sharers, *self.serving)))

    def _may_copy(self, inc: int) -> bool:
        # One that has left the map since counts, too: the cut says whose copies make it.
        return self.is_training

    def _cut_valid(self, valid: CutValid) -> list[Instruction]:
        return [self._record(valid), *self._serve()]

    def _cut_stored(self) -> list[Instruction]:
        return [*self._serve(), *self._go_on_moving()]

    # ------------------------------------------------------------------ moving buckets

    @property
    def serving(self) -> tuple[int, ...]:
        """The servers without which a new epoch must begin."""
        return self.moving.serving(self.map) if self.map else ()

    def replace(self, old: int, new: Server) -> list[Instruction]:
        """Move all buckets of a server to a fresh one while training goes on.

        Not while servers are being restored, or without an order (``samples``): then nothing.
        """
        if self.map is None or self.restoring or self.samples != "exactly-once":
            return []
        if self.moving.begun or old not in self.map.sharers or self.map.index(new.inc) >= 0:
            return []
        self.moving.forget()
        begun = MoveBegun(old=old, new=new, version=self.map.version)
        return [self._record(begun), *self._ask_move()]

    def joiner_lost(self, inc: int) -> list[Instruction]:
        """The new server is dead: as a server if the buckets are its own already."""
        begun = self.moving.begun
        if begun is None or begun.new.inc != inc:
            return []
        self.moving.lost = True
        return self.give_up_move()

    def give_up_move(self) -> list[Instruction]:
        """Leave the buckets where they are, unless the leader has moved them meanwhile."""
        self.moving.given_up = True
        return self._go_on_moving()

    def server_said(self, message: Joined | MapSet) -> list[Instruction]:
        """A server's word about the move, or which map the order holds: a later one is true."""
        if message.epoch_no != self.epoch_no or self.map is None or self.restoring:
            return []
        if isinstance(message, Joined):
            return self._go_on_moving() if self.moving.heard(message) else []
        done: list[Instruction] = []
        if message.map.version > self.map.version:
            self.moving.settled = False
            done = [self._record(MapChanged(map=message.map)), *self._fence_all()]
        if message.map.version == self.map.version and message.settled:
            self.moving.settled = True
        return [*done, *self._go_on_moving()]

    def _go_on_moving(self) -> list[Instruction]:
        """End the move if it is over, else ask for what comes next."""
        begun, now = self.moving.begun, self.map
        if begun is None or now is None or self.restoring:
            return []
        if not self.moving.is_over(now, cut_under_way=self.cuts.under_way):
            return self._ask_move()
        moved = self.moving.has_switched(now)
        old, new = begun.old, begun.new.inc
        end = Moved(old, new) if moved else NotMoved(new, futile=True)
        return [self._record(MoveEnded()), end]

    def _ask_move(self) -> list[Instruction]:
        begun, now = self.moving.begun, self.map
        if begun is None or now is None or self.model is None:
            return []
        asked: list[Instruction] = []
        joining = self.moving.joining_map(now)
        if joining is not None:
            join = JoinServers(
                epoch_no=self.epoch_no,
                inc=begun.new.inc,
                map=joining,
                model=self.model,
                mode=self.mode,
                staleness=self.staleness,
            )
            asked.append(Send(join.inc, join))
        wanted = self.moving.wanted_map(now)
        if wanted is not None:
            leader = now.servers[0].inc
            change = ChangeMap(epoch_no=self.epoch_no, inc=leader, map=wanted)
            asked.append(Send(leader, change))
        return asked

    # ------------------------------------------------------------------ loss of messages

    def resend(self) -> list[Instruction]:
        """See `MasterState.resend`."""
        again = [*self._restore(), *self._fence_all(), *super().resend()]
        again += [*self._allow(), *self._go_on_moving()]
        for inc in sorted(self.untold):
            again += self._tell_epoch(inc)
        return again


def _later(one: Committed, other: Committed) -> bool:
    """Whether this was said after that."""
    return (one.step, one.allow) > (other.step, other.allow)
