"""One parameter server as a pure state machine: the order, the committed set, cuts and fences.

Events are the messages of `paceline.wire.messages`; every method returns instructions that the
edge (`server.py`) carries out in order. Tensors never come here: a contribution is its header,
and the edge keeps the gradients under the same key ``(inc, seq)``.

The protocol is that of docs/protocols/integrity.md, sections 2 and 3: the leader gives every
update a position, all servers apply entries by position, and a contribution gets a position only
when every server holds its parts. The explorer in ``tests/model`` drives this very class.
"""

import sys
from collections.abc import Iterable

import msgspec

from paceline.base.errors import InternalError
from paceline.base.samples import SampleSet
from paceline.protocol.holding.servers.agreeing import missing, odd_ones
from paceline.wire.messages.base import Server, ServerMap
from paceline.wire.messages.data import (
    AskMap,
    At,
    Data,
    Held,
    MapIs,
    Order,
    Ordered,
    Part,
    Piece,
    Pull,
    Ready,
    Refused,
)
from paceline.wire.messages.feeds import Feed, Slice
from paceline.wire.messages.node import (
    ChangeMap,
    Committed,
    Copied,
    Fence,
    FenceAnswer,
    Joined,
    JoinServers,
    MapSet,
    NodeUp,
    Restore,
    Restored,
    TakeCut,
)
from paceline.wire.messages.order import Allow, Cut, Entry, Included, Lacking, Remap, Update

Key = tuple[int, int]
"""(inc, seq): names one contribution within an epoch."""


class Reply(msgspec.Struct, frozen=True):
    """Send a message to a worker."""

    inc: int
    message: Data


class Tell(msgspec.Struct, frozen=True):
    """Send a message to another server, named by its incarnation."""

    inc: int
    message: Data


class Report(msgspec.Struct, frozen=True):
    """Send a message to the master."""

    message: NodeUp


class Keep(msgspec.Struct, frozen=True):
    """Keep the tensors of the part just handled."""

    key: Key


class Apply(msgspec.Struct, frozen=True):
    """Apply these contributions as one update, summed in this order, and drop their tensors."""

    keys: tuple[Key, ...]
    factor: float = 1.0
    """On the learning rates."""


class Forget(msgspec.Struct, frozen=True):
    """Drop the tensors of contributions that will never be applied."""

    keys: tuple[Key, ...]


class AnswerPull(msgspec.Struct, frozen=True):
    """Send the parameters as they are now."""

    pull: Pull


class CopyState(msgspec.Struct, frozen=True):
    """Copy the tensors as they are now; say `copied` when the copy survives the node."""

    copied: Copied


class Load(msgspec.Struct, frozen=True):
    """Load a cut, then call `loaded`."""

    restore: Restore


class MakeRoom(msgspec.Struct, frozen=True):
    """Get ready for parts and pieces of the buckets that this map copies here."""

    join: JoinServers


class SendBuckets(msgspec.Struct, frozen=True):
    """Set all buckets aside as they are now, and send them until the receiver has them."""

    to: Server
    piece: Piece
    """What goes with each piece."""


class Remapped(msgspec.Struct, frozen=True):
    """This map is in force: what it does not copy is not sent any more, what it moved is gone."""

    map: ServerMap


Instruction = (
    Reply
    | Tell
    | Report
    | Keep
    | Apply
    | Forget
    | AnswerPull
    | CopyState
    | Load
    | MakeRoom
    | SendBuckets
    | Remapped
)


class ServerState:
    """The protocol state of one server incarnation."""

    def __init__(self, inc: int) -> None:
        self.inc = inc
        self._reset()

    def _reset(self) -> None:
        #: 0: a fresh server, which belongs to no epoch and takes nothing but `restore`.
        self.epoch_no = 0
        #: None: fresh, or joining and without buckets.
        self.map: ServerMap | None = None
        #: The position of the map's entry.
        self.map_position = 0
        #: The version of the last map that copies: what was sent under an older one is void.
        self.barrier = 0
        #: The buckets have come, and entries after them are still to be applied.
        self.behind = False
        #: Of the buckets that are on their way: what the edge has of them, in its own unit.
        self.progress_made = 0
        self.mode = ""
        self.exactly_once = True
        self.staleness = 0
        #: Entries 1 … position are in the tensors, and in nothing else.
        self.position = 0
        self.step = 0
        #: Contributions in the tensors, of this epoch (without steps).
        self.applied = 0
        self.committed = SampleSet()
        self.last_seq: dict[int, int] = {}
        #: Held, not applied.
        self.parts: dict[Key, Part] = {}
        #: Received ahead of their turn.
        self.pending: dict[int, Entry] = {}
        #: inc -> position after which no entry contains it.
        self.fenced: dict[int, int] = {}
        #: Pulls that wait for a step (BSP) or for slower workers (SSP), one per worker.
        self.waiting: dict[int, Pull] = {}
        self.last_cut = 0
        self.copied: Copied | None = None
        # Leader only, and who was it until it has handed over: up to that position.
        self.handover = 0
        self.log: dict[int, Entry] = {}
        self.applied_at: dict[int, int] = {}
        self.sent_to: dict[int, int] = {}
        #: BSP: inc -> last contribution of the undecided step that all servers hold.
        self.ready_for_step: dict[int, int] = {}
        #: BSP: what may be left out of a step, by the step from which on it holds.
        self.allowed: list[Allow] = []
        #: BSP: how long the undecided step waits for what it lacks; None: until it is there.
        self.grace_s: float | None = None
        #: BSP: steps of this epoch that were decided without all of their slice, and what of it.
        self.short_steps = self.left_out = 0
        #: SSP: inc -> clock, on one scale.
        self.clocks: dict[int, int] = {}
        self.clock_base: dict[int, int] = {}

    # ------------------------------------------------------------------ roles

    @property
    def leader_inc(self) -> int:
        return self.map.servers[0].inc if self.map else 0

    @property
    def leads(self) -> bool:
        return self.leader_inc == self.inc

    @property
    def owns(self) -> bool:
        """Whether pulls are answered here: not while joining, nor after leaving."""
        return self.map is not None and self.inc in self.map.sharers

    @property
    def has_left(self) -> bool:
        """Whether the map is one without this server."""
        return self.map is not None and self.map.index(self.inc) < 0

    @property
    def synchronous(self) -> bool:
        """Whether the job has steps."""
        return self.mode == "bsp"

    # ------------------------------------------------------------------ epochs

    def restore(self, message: Restore) -> list[Instruction]:
        """Enter an epoch; only the incarnation that is named, and never an older epoch."""
        if message.inc != self.inc or message.epoch_no < self.epoch_no:
            return []
        if message.epoch_no == self.epoch_no:
            return [Report(Restored(epoch_no=self.epoch_no, inc=self.inc))]
        return [Load(message)]

    def loaded(self, message: Restore, step: int, committed: SampleSet) -> list[Instruction]:
        """The tensors are those of the cut; ``step`` and ``committed`` are the cut's.

        `restore` may have come again while the cut was read: only the first of an epoch counts.
        """
        if message.epoch_no <= self.epoch_no:
            return []
        self._reset()
        self.epoch_no, self.map = message.epoch_no, message.map
        self.mode, self.staleness = message.mode, message.staleness
        self.exactly_once = message.samples == "exactly-once"
        self.step, self.committed = step, committed
        self.last_cut = message.cut.cut_no
        self.applied_at = {s.inc: 0 for s in message.map.servers if s.inc != self.inc}
        self.sent_to = dict(self.applied_at)
        return [Report(Restored(epoch_no=self.epoch_no, inc=self.inc))]

    def _refuse(self, inc: int, *, fenced: bool = False) -> list[Instruction]:
        refused = Refused(epoch_no=self.epoch_no, server=self.inc, inc=inc, fenced=fenced)
        return [Reply(inc, refused)]

    # ------------------------------------------------------------------ contributions

    def part(self, message: Part) -> list[Instruction]:
        """Keep a part until its entry comes, or apply it at once where no order is asked for."""
        inc, key = message.inc, (message.inc, message.seq)
        if message.epoch_no != self.epoch_no:
            return self._refuse(inc)
        if inc in self.fenced:
            return self._refuse(inc, fenced=True)
        if not self.exactly_once:
            return self._apply_unordered(message)
        held = Reply(inc, Held(epoch_no=self.epoch_no, server=self.inc, inc=inc, seq=message.seq))
        if message.map_version < self.barrier or self.has_left:
            return self._tell_map(inc)
        if key in self.parts or message.seq <= self.last_seq.get(inc, 0):
            return [held]
        # One that is not pulled from may be behind the workers.
        if message.step and message.step != self.step + 1 and self.owns:
            return self._refuse(inc)
        self.parts[key] = message
        return [Keep(key), held]

    def _apply_unordered(self, message: Part) -> list[Instruction]:
        """At-least-once and at-most-once: in the order of arrival, each contribution once.

        `Held` answers a repetition only; otherwise the next pull's ``last_seq`` says it.
        """
        inc, seq = message.inc, message.seq
        if seq != self.last_seq.get(inc, 0) + 1:
            seq = self.last_seq.get(inc, 0)
            return [Reply(inc, Held(epoch_no=self.epoch_no, server=self.inc, inc=inc, seq=seq))]
        self.last_seq[inc] = seq
        self.committed.update(message.spans)
        apply = Apply(((inc, seq),), self._factor(message))
        return [Keep((inc, seq)), apply, *self._answer_waiting()]

    def _factor(self, part: Part) -> float:
        """On the learning rate of a contribution that is applied now (ADJUST_LR).

        All servers are at the same count at a position of the order, so all say the same.
        """
        staleness = max(0, self.applied - part.seen) if part.seen >= 0 else 0
        self.applied += 1
        return part.factor / (1 + staleness)

    def ready(self, message: Ready) -> list[Instruction]:
        """Leader: all servers hold these contributions; give them positions when due."""
        inc = message.inc
        if message.epoch_no != self.epoch_no or self.map is None:
            return self._refuse(inc)
        if inc in self.fenced:
            return self._refuse(inc, fenced=True)
        if not self.leads or message.map_version < self.barrier:
            return self._tell_map(inc)
        if message.step:
            done = self._ready_for_step(message)
        else:
            done = []
            first = max(self.last_seq.get(inc, 0) + 1, message.first)
            for seq in range(first, message.seq + 1):
                done += self._decide(Update(included=(Included(inc, seq),)))
        last = self.last_seq.get(inc, 0)
        told = self._tell_map(inc) if message.map_version != self.map.version else []
        return [*done, Reply(inc, Ordered(epoch_no=self.epoch_no, inc=inc, seq=last)), *told]

    def _ready_for_step(self, message: Ready) -> list[Instruction]:
        if message.step != self.step + 1:
            return []
        inc = message.inc
        self.ready_for_step[inc] = max(message.seq, self.ready_for_step.get(inc, 0))
        return self._decide_step()

    def grace_over(self) -> list[Instruction]:
        """Leader: what the undecided step lacks is not waited for any longer."""
        return self._decide_step(in_grace=False) if self.leads else []

    def _decide_step(self, *, in_grace: bool = True) -> list[Instruction]:
        """BSP by coverage: decide as soon as ready contributions cover the slice, or enough of it.

        Never on nothing.
        """
        self.grace_s = None
        included = tuple(Included(i, s) for i, s in sorted(self.ready_for_step.items()))
        entry = Update(included=included, step=self.step + 1)
        parts = [self.parts[key] for key in self._keys_of(entry)]
        lacking = missing(parts)
        if lacking < 0:
            raise InternalError(f"step {entry.step}: samples are offered twice for its slice")
        if odd := odd_ones(parts, self.inc):
            return [Reply(one.inc, one) for one in odd]
        if not parts:
            return []
        may_lack = self._may_lack(parts[0])
        if lacking <= (may_lack.left_out if in_grace else max(may_lack[:2])):
            return self._decide(entry)
        if lacking <= may_lack.late:
            self.grace_s = may_lack.grace_s
        return []

    def _may_lack(self, part: Part) -> Lacking:
        """Of the undecided step's slice."""
        held = [one for one in self.allowed if one.step <= self.step + 1]
        if not held:
            return Lacking()
        size, last = sum(len(span) for span in part.slice), held[-1]
        return Lacking(last.left_out, last.late, last.grace_s).of_slice(size, last.of)

    def allow(self, message: Allow) -> list[Instruction]:
        """Leader: how much may be left out from a step on; an older word changes nothing."""
        if message.epoch_no != self.epoch_no or not self.leads:
            return []
        newest = self.allowed[-1].no if self.allowed else 0
        if message.no <= newest:
            return [Report(self.progress())]
        later = [one for one in self.allowed if one.step < message.step]
        while len(later) > 1 and later[1].step <= self.step + 1:
            del later[0]
        self.allowed = [*later, message]
        return [*self._decide_step(), Report(self.progress())]

    # ------------------------------------------------------------------ the order

    def _decide(self, entry: Entry) -> list[Instruction]:
        """Leader: applying an entry is the decision."""
        self.log[self.position + 1] = entry
        return self._apply(entry)

    def orders(self, *, resend: bool = False) -> list[Instruction]:
        """Leader: entries that the other servers have not been sent (``resend``: not applied)."""
        last = self.position if self.leads else self.handover
        told: list[Instruction] = []
        for inc, applied in self.applied_at.items() if last else ():
            after = applied if resend else max(applied, self.sent_to[inc])
            if after >= last and not (resend and self.fenced and self.leads):
                continue
            order = Order(
                epoch_no=self.epoch_no,
                leader=self.inc,
                start=after + 1,
                entries=tuple(self.log[p] for p in range(after + 1, last + 1)),
                fenced=tuple(self.fenced.items()),
            )
            told.append(Tell(inc, order))
            self.sent_to[inc] = last
        return told

    def order(self, message: Order) -> list[Instruction]:
        """Follower: apply what comes next, keep what comes later."""
        if message.epoch_no != self.epoch_no:
            return []
        for position, entry in enumerate(message.entries, message.start):
            if position > self.position:
                self.pending[position] = entry
        done = [] if self.behind else self.advance()
        for inc, position in message.fenced:
            if self.map is not None and position <= self.position:
                self.fenced[inc] = position
                self.waiting.pop(inc, None)
                done += self._forget([key for key in self.parts if key[0] == inc])
        at = At(epoch_no=self.epoch_no, server=self.inc, position=self.position)
        return [*done, Tell(message.leader, at)]

    def advance(self, limit: int = sys.maxsize) -> list[Instruction]:
        """Apply what comes next, at most ``limit`` entries: who has joined may be far behind."""
        done: list[Instruction] = []
        while self.map is not None and not self.has_left and limit:
            entry = self.pending.pop(self.position + 1, None)
            if entry is None:
                break
            done += self._apply(entry)
            limit -= 1
        if self.behind and self.position + 1 not in self.pending:
            self.behind = False
            done.append(Report(self._joined()))
        return done

    def at(self, message: At) -> list[Instruction]:
        """Leader: drop entries that all servers are past, and servers that are past their end."""
        if message.epoch_no == self.epoch_no and message.server in self.applied_at:
            before = self.applied_at[message.server]
            self.applied_at[message.server] = max(before, message.position)
            self._drop_log()
        return []

    def _drop_log(self) -> None:
        if self.map is not None:
            for inc in [inc for inc in self.applied_at if self.map.index(inc) < 0]:
                if self.applied_at[inc] >= self.map_position:
                    del self.applied_at[inc], self.sent_to[inc]
        upto = min(self.applied_at.values(), default=self.position)
        for position in range(min(self.log, default=0), upto + 1):
            self.log.pop(position, None)

    def _apply(self, entry: Entry) -> list[Instruction]:
        self.position += 1
        if not self.applied_at:
            self.log.clear()
        if isinstance(entry, Cut):
            return self._copy(entry)
        if isinstance(entry, Remap):
            return self._remap(entry)
        keys = self._keys_of(entry)
        lacking = missing([self.parts[key] for key in keys]) if entry.step else 0
        factor = 1.0 if entry.step else self._factor(self.parts[keys[0]])
        for key in keys:
            if any(self.committed.overlap(span) for span in self.parts[key].spans):
                raise InternalError(f"contribution {key} holds samples that are in the model")
            self.committed.update(self.parts.pop(key).spans)
        for included in entry.included:
            self.last_seq[included.inc] = included.seq
        done: list[Instruction] = [Apply(tuple(keys), factor)]
        if entry.step:
            self.step, self.grace_s = entry.step, None
            self.short_steps += lacking > 0
            self.left_out += lacking
            self.ready_for_step.clear()
            done += self._forget(key for key, part in self.parts.items() if part.step <= self.step)
        return [*done, *self._answer_waiting()]

    def _keys_of(self, entry: Update) -> list[Key]:
        """The contributions of an entry, by first sample: equal splits are summed alike."""
        if not entry.step:
            keys = [(i.inc, i.seq) for i in entry.included]
        else:
            upto = {i.inc: i.seq for i in entry.included}
            keys = [
                key
                for key, part in self.parts.items()
                if part.step == entry.step and key[1] <= upto.get(key[0], 0)
            ]
        for key in keys:
            if key not in self.parts:
                raise InternalError(f"server {self.inc} was ordered to apply {key}, never held it")
        return sorted(keys, key=lambda key: self.parts[key].spans)

    def _forget(self, keys: Iterable[Key]) -> list[Instruction]:
        gone = tuple(keys)
        for key in gone:
            del self.parts[key]
        return [Forget(gone)] if gone else []

    # ------------------------------------------------------------------ cuts and fences

    def take_cut(self, message: TakeCut) -> list[Instruction]:
        """Leader: order a cut. Anyone: a repetition is answered with what is there."""
        if message.epoch_no != self.epoch_no:
            return []
        if self.copied is not None and self.copied.cut_no == message.cut_no:
            return [Report(self.copied)]
        if message.cut_no <= self.last_cut:
            return []
        cut = Cut(cut_no=message.cut_no)
        if not self.exactly_once:  # there is no order: every server is asked, and copies now
            return self._copy(cut)
        return self._decide(cut) if self.leads else []

    def copy_is_safe(self, copied: Copied) -> list[Instruction]:
        """The edge's word that this copy would survive the loss of the node."""
        if copied.epoch_no != self.epoch_no:
            return []
        self.copied = copied
        return [Report(copied)]

    def _copy(self, entry: Cut) -> list[Instruction]:
        self.last_cut = entry.cut_no
        if self.map is None or not self.owns:
            return []
        copied = Copied(
            epoch_no=self.epoch_no,
            inc=self.inc,
            cut_no=entry.cut_no,
            position=self.position,
            step=self.step,
            committed=self.committed.spans(),
            sharers=self.map.sharers,
        )
        return [CopyState(copied)]

    def fence(self, message: Fence) -> list[Instruction]:
        """Leader: nothing of this incarnation enters any more; permanent in this epoch."""
        if message.epoch_no != self.epoch_no or self.map is None:
            return []
        if not self.leads:
            return [Report(self._map_set())]
        inc = message.fenced
        self.fenced.setdefault(inc, self.position)
        self.ready_for_step.pop(inc, None)
        self.clocks.pop(inc, None)
        self.waiting.pop(inc, None)
        answer = FenceAnswer(
            epoch_no=self.epoch_no, inc=self.inc, fenced=inc, committed=self.committed.spans()
        )
        gone = self._forget([key for key in self.parts if key[0] == inc])
        return [*gone, Report(answer), *self._answer_waiting()]

    def progress(self) -> Committed:
        """Leader: what is in the model now."""
        return Committed(
            epoch_no=self.epoch_no,
            inc=self.inc,
            step=self.step,
            committed=self.committed.spans(),
            allow=self.allowed[-1].no if self.allowed else 0,
            short_steps=self.short_steps,
            left_out=self.left_out,
        )

    # ------------------------------------------------------------------ the map

    def join(self, message: JoinServers) -> list[Instruction]:
        """Keep parts of this epoch from now on; the buckets come later."""
        if message.inc != self.inc or message.epoch_no < self.epoch_no:
            return []
        if message.epoch_no == self.epoch_no:
            return [Report(self._joined())]
        self._reset()
        self.epoch_no, self.mode = message.epoch_no, message.mode
        self.exactly_once, self.staleness = True, message.staleness
        self.barrier = message.map.version
        return [MakeRoom(message), Report(self._joined())]

    def _joined(self) -> Joined:
        caught_up = self.map is not None and not self.behind
        return Joined(
            epoch_no=self.epoch_no,
            inc=self.inc,
            caught_up=caught_up,
            progress=self.progress_made + self.position,
        )

    def arrived(self, piece: Piece) -> list[Instruction]:
        """The buckets are here as of the copy entry; `advance` goes on from there."""
        if piece.epoch_no != self.epoch_no or self.map is not None:
            return []
        self.map, self.map_position = piece.map, piece.position
        self.position, self.step = piece.position, piece.step
        self.committed, self.last_seq = SampleSet(piece.committed), dict(piece.last_seq)
        self.applied, self.last_cut = piece.applied, piece.last_cut
        self.short_steps, self.left_out = piece.short_steps, piece.left_out
        self.behind = True
        return []

    def change_map(self, message: ChangeMap) -> list[Instruction]:
        """Leader: order the map that follows the present one; whatever came: which one it is."""
        if message.epoch_no != self.epoch_no or self.map is None:
            return []
        done: list[Instruction] = []
        if self.leads and message.map.version == self.map.version + 1:
            clocks = tuple((i, clock, self.clock_base[i]) for i, clock in self.clocks.items())
            fenced = tuple(sorted(self.fenced))
            allowed = tuple(self.allowed)
            done = self._decide(
                Remap(map=message.map, fenced=fenced, clocks=clocks, allowed=allowed)
            )
        return [*done, Report(self._map_set())]

    def _map_set(self) -> MapSet:
        assert self.map is not None
        others = [server.inc for server in self.map.servers if server.inc != self.inc]
        return MapSet(
            epoch_no=self.epoch_no,
            inc=self.inc,
            map=self.map,
            leads=self.leads,
            settled=self.leads
            and all(self.applied_at.get(inc, 0) >= self.map_position for inc in others),
        )

    def ask_map(self, message: AskMap) -> list[Instruction]:
        """Tell a worker the map."""
        inc = message.inc
        if message.epoch_no != self.epoch_no:
            return self._refuse(inc)
        return self._refuse(inc, fenced=True) if inc in self.fenced else self._tell_map(inc)

    def _tell_map(self, inc: int) -> list[Instruction]:
        if self.map is None:
            return self._refuse(inc)
        told = MapIs(
            epoch_no=self.epoch_no,
            server=self.inc,
            inc=inc,
            map=self.map,
            leads=self.leads,
            barrier=self.barrier,
            seq=self.last_seq.get(inc, 0),
        )
        return [Reply(inc, told)]

    def _remap(self, entry: Remap) -> list[Instruction]:
        """The map changes at this position, on every server."""
        led, former = self.leads, self.map
        assert former is not None
        waiting = set(self.waiting)
        known = waiting | set(self.last_seq) | {inc for inc, _ in self.parts}
        self.map, self.map_position = entry.map, self.position
        done: list[Instruction] = [Remapped(entry.map)]
        if entry.map.copies:
            self.barrier = entry.map.version
            self.ready_for_step.clear()
            self.grace_s = None
            done += self._send_buckets(entry.map)
        void = [key for key, part in self.parts.items() if part.map_version < self.barrier]
        done += self._forget(list(self.parts) if self.has_left else void)
        if led and not self.leads:
            self.handover, self.grace_s = self.position, None
        elif self.leads and not led:
            self._take_over(entry)
        if led or self.leads:
            self._set_followers(former)
        if not self.owns:
            self.waiting.clear()
        told = (known if led or self.leads else waiting) - set(self.fenced)
        return [*done, *(one for inc in sorted(told) for one in self._tell_map(inc))]

    def _send_buckets(self, now: ServerMap) -> list[Instruction]:
        """Old owner: what goes to whom. A receiver has all of its buckets from one owner."""
        me = now.index(self.inc)
        targets = {to for owner, to in zip(now.owners, now.copies, strict=True) if owner == me}
        return [
            SendBuckets(
                now.servers[to],
                Piece(
                    epoch_no=self.epoch_no,
                    server=self.inc,
                    inc=now.servers[to].inc,
                    map=now,
                    position=self.position,
                    step=self.step,
                    committed=self.committed.spans(),
                    last_seq=tuple(sorted(self.last_seq.items())),
                    last_cut=self.last_cut,
                    applied=self.applied,
                    short_steps=self.short_steps,
                    left_out=self.left_out,
                ),
            )
            for to in sorted(targets - {-1})
        ]

    def _take_over(self, entry: Remap) -> None:
        """The former leader sends all entries up to this one."""
        self.fenced |= {inc: self.position for inc in entry.fenced if inc not in self.fenced}
        self.clocks = {inc: clock for inc, clock, _ in entry.clocks}
        self.clock_base = {inc: base for inc, _, base in entry.clocks}
        self.allowed = list(entry.allowed)
        # The entry itself comes from both: the answer to it shows who has applied it.
        self.log = {self.position: entry}
        self.applied_at = {server.inc: self.position - 1 for server in entry.map.servers}
        del self.applied_at[self.inc]
        self.sent_to = dict(self.applied_at)

    def _set_followers(self, former: ServerMap) -> None:
        """Leader, new or former: who is to be told the order, and from where on."""
        assert self.map is not None
        if self.leads:
            for server in self.map.servers:
                if server.inc != self.inc and server.inc not in self.applied_at:
                    self.applied_at[server.inc] = self.sent_to[server.inc] = self.position
        # One that only copied and is given up may be dead; who leaves has to hear that it does.
        for inc in {s.inc for s in former.servers} - {s.inc for s in self.map.servers}:
            if inc not in former.sharers and inc in self.applied_at:
                del self.applied_at[inc], self.sent_to[inc]
        self._drop_log()

    # ------------------------------------------------------------------ pulls

    def pull(self, message: Pull) -> list[Instruction]:
        """Answer at once, or when the step is there (BSP) or the slowest are near (SSP)."""
        if message.epoch_no != self.epoch_no:
            return self._refuse(message.inc)
        if message.inc in self.fenced:
            return self._refuse(message.inc, fenced=True)
        if not self.owns:
            return self._tell_map(message.inc)
        if self.mode == "ssp" and self.leads:
            self._set_clock(message)
        self.waiting[message.inc] = message
        return self._answer_waiting()

    def _set_clock(self, message: Pull) -> None:
        inc = message.inc
        if message.clock < 0:
            self.clocks.pop(inc, None)
        elif inc in self.clocks:
            self.clocks[inc] = max(self.clocks[inc], self.clock_base[inc] + message.clock)
        else:  # a worker that joins, or comes back from waiting for work, starts at the floor
            self.clocks[inc] = min(self.clocks.values(), default=0)
            self.clock_base[inc] = self.clocks[inc] - message.clock

    def next_slice(self, feed: Feed | None) -> Slice:
        """BSP: what the next step consists of, which is a function of what is in the model."""
        return () if feed is None else feed.next_slice(self.committed.line(feed.line()))

    def _may_go(self, pull: Pull) -> bool:
        if pull.inc in self.clocks:
            floor = min(self.clocks.values())
            if self.clocks[pull.inc] - floor > self.staleness:
                return False
        return pull.min_step <= self.step

    def _answer_waiting(self) -> list[Instruction]:
        free = [inc for inc, pull in self.waiting.items() if self._may_go(pull)]
        return [AnswerPull(self.waiting.pop(inc)) for inc in free]
