"""The master's part of a job whose model lies on parameter servers: epochs, fences, moving buckets.

An epoch begins when all servers are up and one of them is new: all go back to the last valid cut.
A lost worker's leases go back when the leader has said what of them is in the order already.
"""

from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from paceline.base.numbering import NO_CUT, NO_EPOCH, NO_INC, START, CutNo, EpochNo, Inc, step_after
from paceline.protocol.acts import (
    Fail,
    Instruction,
    Moved,
    NotMoved,
    Send,
)
from paceline.protocol.holding.holder import Holder
from paceline.protocol.holding.servers.moving import Moving
from paceline.protocol.holding.servers.placement import bucket_weights, place
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
from paceline.protocol.samples.grant_size import MIN_STEPS
from paceline.wire.messages.base import CutRef, Server, ServerMap
from paceline.wire.messages.node import (
    BucketLoads,
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

if TYPE_CHECKING:
    from paceline.protocol.snapshot import Snapshot


ServerRecordsTakes = EpochStarted | MapChanged | MoveBegun | MoveEnded
"""Records of jobs whose model lies on parameter servers."""


class ServerHolder(Holder):
    """The parameter servers of one job: their map, the epoch they are in, and moves of buckets."""

    leases_training = True

    def __init__(self, *, staleness: int = 0) -> None:
        self.staleness = staleness
        # Durable.
        self.map: ServerMap | None = None
        self.start: EpochStarted | None = None
        self.moving = Moving()
        # Volatile.
        self.fencing: set[Inc] = set()
        #: Servers of the present epoch that have not said `restored`.
        self.restoring: set[Inc] = set()
        #: Workers not known to be in this epoch.
        self.untold: set[Inc] = set()
        self.writer: Inc | None = None
        #: What is asked of each bucket of a server, by its last word.
        self.loads: dict[Inc, tuple[int, ...]] = {}
        #: The leader's last word.
        self.heard: Committed | None = None

    # ------------------------------------------------------------------ records

    def apply(self, record: Records) -> bool:
        if not isinstance(record, ServerRecordsTakes):
            return False
        match record:
            case EpochStarted():
                self._apply_epoch(record)
            case MapChanged():
                self.map = record.map
                # A cut that was asked for before may be one of servers that are gone since.
                self.core.cuts.last_no = CutNo(self.core.cuts.last_no + 1)
            case MoveBegun() | MoveEnded():
                self.moving.begun = record if isinstance(record, MoveBegun) else None
            case _:
                assert_never(record)
        return True

    def _apply_epoch(self, record: EpochStarted) -> None:
        self.start, self.map = record, record.map
        self.core.epoch_no, self.core.step = record.epoch_no, record.step
        self.core.go_back(record.committed)
        self.core.plans.restart(record.step)
        self.moving.begun = None

    def proven_by(self, cut: CutValid) -> None:
        if cut.epoch_no == self.core.epoch_no:
            # The leader's word is not journalled; without this a restarted master would not know
            # that the feed is safe.
            self.core.ledger.commit(cut.committed)
            self.core.step = max(self.core.step, cut.step)

    # ------------------------------------------------------------------ epochs

    def prepare(self, message: Prepared) -> list[Instruction]:
        """A worker has a model; the first one writes the initial values as cut 0."""
        self.core.prepared.add(message.inc)
        done: list[Instruction] = []
        if self.core.model is None:
            done.append(self.core.record(SchemaFixed(model=message.schema)))
        elif self.core.model != message.schema:
            return [Fail(schema_difference(self.core.model, message.schema))]
        if self.core.cuts.valid:
            return [*done, *self.tell_epoch(message.inc)]
        if self.writer is None:
            self.writer = message.inc
        if self.writer == message.inc:
            done.append(Send(message.inc, WriteInitial(inc=message.inc)))
        return done

    def initial_written(self, message: InitialWritten) -> list[Instruction]:
        """Cut 0 is there: the model before any sample."""
        if self.core.cuts.valid or message.inc != self.writer:
            return []
        cut = CutRef(cut_no=NO_CUT)
        return [self.core.record(CutValid(cut=cut, step=START, committed=(), epoch_no=NO_EPOCH))]

    def start_epoch(self, servers: tuple[Server, ...]) -> list[Instruction]:
        """All servers are up and one of them is new: back to the last valid cut."""
        valid = self.core.cuts.valid[-1]
        version = self.map.version + 1 if self.map else 1
        owners = tuple(bucket % len(servers) for bucket in range(NUM_BUCKETS))
        not_moved = [NotMoved(self.moving.joining, futile=False)] if self.moving.begun else []
        record = EpochStarted(
            epoch_no=EpochNo(self.core.epoch_no + 1),
            cut=valid.cut,
            step=valid.step,
            committed=valid.committed,
            map=ServerMap(version=version, servers=servers, owners=owners),
            short_steps=self.short_steps,
            left_out=self.left_out,
        )
        journal = self.core.record(record)
        self._forget_epoch()
        self.core.plans.move(step_after(self.core.step), (), free=True)
        return [journal, *not_moved, *self.core.commit_plan(), *self._restore()]

    def _forget_epoch(self) -> None:
        self.core.waiting.clear()
        self.fencing.clear()
        self.core.complete.clear()
        self.heard = None
        self.core.cuts.forget()
        self.moving.forget()
        self.untold = set(self.core.workers)
        self.restoring = {server.inc for server in self.map.servers} if self.map else set()

    def resume(self) -> list[Instruction]:
        if self.map:
            self.restoring = set(self.map.sharers)
        if self.core.mode == "ssp" and self.core.samples != "exactly-once":
            self.fencing = set(self.core.gone)
        return self._restore()

    def _restore(self) -> list[Instruction]:
        return [Send(inc, self._restore_message(inc)) for inc in sorted(self.restoring)]

    def _restore_message(self, inc: Inc) -> Restore:
        assert self.start is not None and self.map is not None
        return Restore(
            epoch_no=self.core.epoch_no,
            inc=inc,
            cut=self.start.cut,
            map=self.map,
            mode=self.core.mode,
            samples=self.core.samples,
            staleness=self.staleness,
        )

    def restored(self, message: Restored) -> list[Instruction]:
        """A server is in this epoch; when all are, the workers may start."""
        if message.epoch_no != self.core.epoch_no or message.inc not in self.restoring:
            return []
        self.restoring.discard(message.inc)
        if self.restoring:
            return []
        told = [told for inc in sorted(self.untold) for told in self.tell_epoch(inc)]
        return [*self._allow(), *told]

    def tell_epoch(self, inc: Inc) -> list[Instruction]:
        if (
            self.restoring
            or self.start is None
            or self.map is None
            or inc not in self.core.prepared
        ):
            return []
        step = max(self.core.step, self.start.step)
        return [
            Send(inc, NewEpoch(epoch_no=self.core.epoch_no, inc=inc, map=self.map, step=step)),
        ]

    @property
    def phase(self) -> str:
        if self.map is None:
            return "starting"
        return "restoring" if self.restoring else "training"

    @property
    def is_training(self) -> bool:
        return self.map is not None and not self.restoring

    @property
    def sharers(self) -> tuple[str, ...]:
        now = self.map
        return tuple(one.node for one in now.servers if one.inc in now.sharers) if now else ()

    # ------------------------------------------------------------------ workers

    def came(self, inc: Inc) -> None:
        self.untold.add(inc)

    def lost(self, inc: Inc, *, returned: bool) -> list[Instruction]:
        self.core.forget_worker(inc)
        self.untold.discard(inc)
        if self.writer == inc:
            self.writer = None
        if self.map is None or (inc in self.core.gone and inc not in self.core.ledger.leases):
            return []
        if self.core.samples == "exactly-once":
            self.fencing.add(inc)
            return self._fence(inc)
        back = self.core.record(Returned(inc=inc))
        if self.core.mode == "ssp":  # the others would wait for it at the leader
            self.fencing.add(inc)
        return [back, *self._fence_all(), *self.core.serve()]

    def is_fenced(self, inc: Inc) -> bool:
        return inc in self.fencing

    def _fence_all(self) -> list[Instruction]:
        return [one for inc in sorted(self.fencing) for one in self._fence(inc)]

    def _fence(self, inc: Inc) -> list[Instruction]:
        if self.map is None or self.restoring:
            return []
        leader = self.map.servers[0].inc
        return [Send(leader, Fence(epoch_no=self.core.epoch_no, inc=leader, fenced=inc))]

    def fence_answer(self, message: FenceAnswer) -> list[Instruction]:
        """The leader's word: the rest of the lost worker's leases goes back."""
        if message.epoch_no != self.core.epoch_no or message.fenced not in self.fencing:
            return []
        self.fencing.discard(message.fenced)
        if self.core.samples != "exactly-once":
            return []  # what it left went back at once
        returned = Returned(inc=message.fenced, committed=message.committed)
        # Who waits gets of it what is urgent, and asks again: its owner may come back.
        for inc in self.core.waiting:
            size = self.core.sizes[inc]
            self.core.sizes[inc] = msgspec.structs.replace(size, steps=min(size.steps, MIN_STEPS))
        return [self.core.record(returned), *self.core.commit_plan(), *self.core.serve()]

    def asked(self, request: LeaseRequest) -> list[Instruction]:
        """Send the map to a worker that has missed a change, and may not know who leads now."""
        self.untold.discard(request.inc)
        if self.map is None or self.restoring or request.map_version >= self.map.version:
            return []
        inc = request.inc
        return [Send(inc, NewMap(epoch_no=self.core.epoch_no, inc=inc, map=self.map))]

    def committed(self, message: Committed) -> list[Instruction]:
        """The leader's word of what is in the model; leases shrink, DONE grows."""
        if message.epoch_no != self.core.epoch_no or self.map is None:
            return []
        if message.inc != self.map.servers[0].inc or self.restoring:
            return []
        self.core.step = max(self.core.step, message.step)
        if self.heard is None or _later(message, self.heard):
            self.heard = message
        self.core.ledger.commit(message.committed)
        return [*self.core.move_plan(step_after(self.core.step)), *self.core.serve()]

    # ------------------------------------------------------------------ plans

    @property
    def short_steps(self) -> int:
        before = self.start.short_steps if self.start is not None else 0
        return before + (self.heard.short_steps if self.heard is not None else 0)

    @property
    def left_out(self) -> int:
        before = self.start.left_out if self.start is not None else 0
        return before + (self.heard.left_out if self.heard is not None else 0)

    def planned(self) -> list[Instruction]:
        return [*self._allow(), *self._tell_rates()]

    def _allow(self) -> list[Instruction]:
        """Tell the leader what may be left out, unless it has said that it knows."""
        allowed, feed = self.core.plans.allowed(), self.core.plans.in_training()
        if allowed is None or feed is None or self.map is None or self.restoring:
            return []
        if self.heard is not None and self.heard.allow >= allowed.plan.allow:
            return []
        leader = self.map.servers[0].inc
        allow = Allow(
            epoch_no=self.core.epoch_no,
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
        if self.core.mode == "bsp":
            return []
        newest = self.core.plans.newest
        return [
            Send(inc, NewRate(epoch_no=self.core.epoch_no, inc=inc, rate=newest.rate_of(node)))
            for inc, node in sorted(self.core.workers.items())
            if inc not in self.untold
        ]

    # ------------------------------------------------------------------ cuts

    def copiers(self) -> tuple[Inc, ...]:
        if self.map is None or self.restoring:
            return ()
        return tuple(dict.fromkeys((*self.map.sharers, *self.serving)))

    def may_copy(self, inc: Inc) -> bool:
        # One that has left the map since counts, too: the cut says whose copies make it.
        return self.is_training

    def cut_valid(self, valid: CutValid) -> list[Instruction]:
        return [self.core.record(valid), *self.core.serve()]

    def cut_stored(self) -> list[Instruction]:
        return [*self.core.serve(), *self._go_on_moving()]

    # ------------------------------------------------------------------ moving buckets

    @property
    def serving(self) -> tuple[Inc, ...]:
        """The servers without which a new epoch must begin."""
        return self.moving.serving(self.map) if self.map else ()

    def change_servers(
        self, joining: tuple[Server, ...], leaving: tuple[Inc, ...]
    ) -> list[Instruction]:
        """Have buckets move to fresh servers, or off some, while training goes on.

        Not while servers are being restored, or without an order (``samples``): then nothing.
        """
        now = self.map
        if now is None or self.restoring or self.core.samples != "exactly-once":
            return []
        known = any(now.index(server.inc) >= 0 for server in joining)
        if self.moving.begun or known or not set(leaving) <= set(now.sharers):
            return []
        owners = self._owners_after(now, tuple(server.inc for server in joining), leaving)
        if owners == now.ownership:
            return []
        self.moving.forget()
        begun = MoveBegun(joining=joining, leaving=leaving, owners=owners, version=now.version)
        return [self.core.record(begun), *self._ask_move()]

    def _owners_after(
        self, now: ServerMap, joining: tuple[Inc, ...], leaving: tuple[Inc, ...]
    ) -> tuple[Inc, ...]:
        """Return the next owner of each bucket; a mere successor takes what its predecessor has."""
        takes = dict(zip(leaving, joining, strict=False))
        owners = tuple(takes.get(inc, inc) for inc in now.ownership)
        if len(joining) == len(leaving):
            return owners
        staying = tuple(inc for inc in now.sharers if inc not in leaving)
        model = self.core.model
        weights = bucket_weights(model, self._load_now(now)) if model is not None else ()
        return place(owners, (*staying, *joining), weights)

    def load_said(self, message: BucketLoads) -> None:
        """Keep a server's word about what is asked of its buckets, as long as it owns some."""
        sharers = self.map.sharers if self.map is not None else ()
        self.loads = {inc: self.loads[inc] for inc in sharers if inc in self.loads}
        if message.inc in sharers and len(message.per_s) == NUM_BUCKETS:
            self.loads[message.inc] = message.per_s

    def _load_now(self, now: ServerMap) -> tuple[int, ...]:
        """Return the load of each bucket; nothing as long as one of its owners has not said it."""
        if not set(now.ownership) <= self.loads.keys():
            return ()
        return tuple(self.loads[owner][bucket] for bucket, owner in enumerate(now.ownership))

    def joiner_lost(self, inc: Inc) -> list[Instruction]:
        """A fresh server is dead: as a server if buckets are its own already."""
        if inc not in self.moving.joining:
            return []
        self.moving.lost = True
        return self.give_up_move()

    def give_up_move(self) -> list[Instruction]:
        """Leave the buckets where they are, unless the leader has moved them meanwhile."""
        self.moving.given_up = True
        return self._go_on_moving()

    def server_said(self, message: Joined | MapSet) -> list[Instruction]:
        """A server's word about the move, or which map the order holds: a later one is true.

        What says nothing new leads to nothing: else each answer would bring one question to each
        receiver, and these as many answers. `resend` asks again.
        """
        if message.epoch_no != self.core.epoch_no or self.map is None or self.restoring:
            return []
        if isinstance(message, Joined):
            before = self.moving.wanted_map(self.map)
            self.moving.heard(message)
            return self._go_on_moving() if self.moving.wanted_map(self.map) != before else []
        done: list[Instruction] = []
        settled = self.moving.settled
        if message.map.version > self.map.version:
            self.moving.settled = False
            done = [self.core.record(MapChanged(map=message.map)), *self._fence_all()]
        if message.map.version == self.map.version and message.settled:
            self.moving.settled = True
        news = bool(done) or self.moving.settled != settled
        return [*done, *self._go_on_moving()] if news else []

    def _go_on_moving(self) -> list[Instruction]:
        """End the move if it is over, else ask for what comes next."""
        begun, now = self.moving.begun, self.map
        if begun is None or now is None or self.restoring:
            return []
        if not self.moving.is_over(now, cut_under_way=self.core.cuts.under_way):
            return self._ask_move()
        joining, moved = self.moving.joining, self.moving.has_switched(now)
        end = Moved(joining, begun.leaving) if moved else NotMoved(joining, futile=True)
        return [self.core.record(MoveEnded()), end]

    def _ask_move(self) -> list[Instruction]:
        now = self.map
        if now is None or self.core.model is None:
            return []
        asked: list[Instruction] = []
        receiving = self.moving.receiving_map(now)
        if receiving is not None:
            join = JoinServers(
                epoch_no=self.core.epoch_no,
                inc=NO_INC,
                map=receiving,
                model=self.core.model,
                mode=self.core.mode,
                staleness=self.staleness,
            )
            asked += [
                Send(inc, msgspec.structs.replace(join, inc=inc)) for inc in receiving.receivers
            ]
        wanted = self.moving.wanted_map(now)
        if wanted is not None:
            leader = now.servers[0].inc
            change = ChangeMap(epoch_no=self.core.epoch_no, inc=leader, map=wanted)
            asked.append(Send(leader, change))
        return asked

    # ------------------------------------------------------------------ loss of messages

    def resend(self) -> list[Instruction]:
        again = [*self._restore(), *self._fence_all(), *self._allow(), *self._go_on_moving()]
        for inc in sorted(self.untold):
            again += self.tell_epoch(inc)
        return again

    # ------------------------------------------------------------------ snapshots

    def kept(self) -> dict[str, Any]:
        return {"start": self.start, "map": self.map, "move": self.moving.begun}

    def restore(self, kept: "Snapshot") -> bool:
        if kept.start is not None:
            self.core.epoch_no, self.core.step = kept.start.epoch_no, kept.start.step
        self.start, self.map, self.moving.begun = kept.start, kept.map, kept.move
        return True


def _later(one: Committed, other: Committed) -> bool:
    """Whether this was said after that."""
    return (one.step, one.allow) > (other.step, other.allow)
