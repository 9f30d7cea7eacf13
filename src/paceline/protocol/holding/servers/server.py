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
from typing import assert_never

from paceline.base.errors import InternalError
from paceline.base.numbering import (
    NO_CUT,
    NO_ENTRY,
    NO_EPOCH,
    NO_INC,
    EntryNo,
    Inc,
    StepNo,
    step_after,
)
from paceline.base.samples import SampleSet
from paceline.protocol.holding.servers.agreeing import missing, odd_ones
from paceline.protocol.holding.servers.log import Log
from paceline.protocol.holding.servers.readiness import Readiness
from paceline.protocol.holding.servers.server_acts import (
    AnswerPull,
    Apply,
    CopyState,
    Forget,
    Instruction,
    Keep,
    Key,
    Load,
    MakeRoom,
    MapInForce,
    Reply,
    SendBuckets,
    Tell,
)
from paceline.protocol.holding.servers.server_contents import ServerContents
from paceline.protocol.holding.servers.waiting_pulls import WaitingPulls
from paceline.protocol.holding.servers.worker_acts import ToMaster
from paceline.wire.messages.base import ServerMap
from paceline.wire.messages.data import (
    AskMap,
    At,
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
    Restore,
    Restored,
    TakeCut,
)
from paceline.wire.messages.order import Allow, Cut, Entry, Included, Lacking, Remap, Update

ServerStateTakes = Restore | Fence | Allow | TakeCut | JoinServers | ChangeMap
"""Orders of the master about epochs, cuts and the map."""


class ServerState:
    """The protocol state of one server incarnation."""

    def __init__(self, inc: Inc) -> None:
        self.inc = inc
        self._reset()

    def _reset(self) -> None:
        #: 0: a fresh server, which belongs to no epoch and takes nothing but `restore`.
        self.epoch_no = NO_EPOCH
        #: None: fresh, or joining and without buckets.
        self.map: ServerMap | None = None
        #: The position of the map's entry.
        self.map_position = NO_ENTRY
        #: The version of the last map that copies: what was sent under an older one is void.
        self.barrier = 0
        #: The version of the map since which buckets are where they are now.
        self.owned_since = 0
        #: The version of the map whose copies the edge has, with all entries so far.
        self.caught_up = 0
        #: The buckets have come, and entries after them are still to be applied.
        self.behind = False
        #: Of the buckets that are on their way here: what the edge has of them, in its own unit.
        self.progress_made = 0
        self.mode = ""
        self.exactly_once = True
        self.contents = ServerContents(self.inc)
        #: Received ahead of their turn.
        self.pending: dict[EntryNo, Entry] = {}
        #: inc -> position after which no entry contains it.
        self.fenced: dict[Inc, EntryNo] = {}
        self.waiting = WaitingPulls()
        self.last_cut = NO_CUT
        self.copied: Copied | None = None
        self.log = Log()
        self.readiness = Readiness()

    # ------------------------------------------------------------------ roles

    @property
    def leader_inc(self) -> Inc:
        return self.map.servers[0].inc if self.map else NO_INC

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

    def on_master(self, message: ServerStateTakes) -> list[Instruction]:
        """Do what the master says."""
        match message:
            case Restore():
                return self.restore(message)
            case Fence():
                return self.fence(message)
            case Allow():
                return self.allow(message)
            case TakeCut():
                return self.take_cut(message)
            case JoinServers():
                return self.join(message)
            case ChangeMap():
                return self.change_map(message)
            case _:
                assert_never(message)

    # ------------------------------------------------------------------ epochs

    def restore(self, message: Restore) -> list[Instruction]:
        """Enter an epoch; only the incarnation that is named, and never an older epoch."""
        if message.inc != self.inc or message.epoch_no < self.epoch_no:
            return []
        if message.epoch_no == self.epoch_no:
            return [ToMaster(Restored(epoch_no=self.epoch_no, inc=self.inc))]
        return [Load(message)]

    def loaded(self, message: Restore, step: StepNo, committed: SampleSet) -> list[Instruction]:
        """The tensors are those of the cut; ``step`` and ``committed`` are the cut's.

        `restore` may have come again while the cut was read: only the first of an epoch counts.
        """
        if message.epoch_no <= self.epoch_no:
            return []
        self._reset()
        self.epoch_no, self.map = message.epoch_no, message.map
        self.owned_since = message.map.version
        self.mode, self.waiting = message.mode, WaitingPulls(message.staleness)
        self.exactly_once = message.samples == "exactly-once"
        self.contents = ServerContents(self.inc, step, committed)
        self.last_cut = message.cut.cut_no
        self.log.begin([s.inc for s in message.map.servers if s.inc != self.inc], NO_ENTRY)
        return [ToMaster(Restored(epoch_no=self.epoch_no, inc=self.inc))]

    def _refuse(self, inc: Inc, *, fenced: bool = False) -> list[Instruction]:
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
        if self._is_ahead(message.map_version):
            return []
        if self.contents.is_known(message):
            return [held]
        # One that is not pulled from may be behind the workers.
        if message.step and message.step != self.contents.step + 1 and self.owns:
            return self._refuse(inc)
        self.contents.parts[key] = message
        return [Keep(key), held]

    def _is_ahead(self, map_version: int) -> bool:
        """Whether a worker has heard of a map that is not in force here yet; it says so again."""
        return self.map is not None and map_version > self.map.version

    def _apply_unordered(self, message: Part) -> list[Instruction]:
        """At-least-once and at-most-once: in the order of arrival, each contribution once.

        `Held` answers a repetition only; otherwise the next pull's ``last_seq`` says it.
        """
        inc, seq = message.inc, message.seq
        factor = self.contents.apply_unordered(message)
        if factor is None:
            seq = self.contents.last_seq.get(inc, 0)
            return [Reply(inc, Held(epoch_no=self.epoch_no, server=self.inc, inc=inc, seq=seq))]
        return [Keep((inc, seq)), Apply(((inc, seq),), factor), *self._answer_waiting()]

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
            first = max(self.contents.last_seq.get(inc, 0) + 1, message.first)
            for seq in range(first, message.seq + 1):
                done += self._decide(Update(included=(Included(inc, seq),)))
        last = self.contents.last_seq.get(inc, 0)
        told = self._tell_map(inc) if message.map_version != self.map.version else []
        return [*done, Reply(inc, Ordered(epoch_no=self.epoch_no, inc=inc, seq=last)), *told]

    def _ready_for_step(self, message: Ready) -> list[Instruction]:
        if message.step != self.contents.step + 1:
            return []
        self.readiness.ready(message.inc, message.seq)
        return self._decide_step()

    def grace_over(self) -> list[Instruction]:
        """Leader: what the undecided step lacks is not waited for any longer."""
        return self._decide_step(in_grace=False) if self.leads else []

    def _decide_step(self, *, in_grace: bool = True) -> list[Instruction]:
        """BSP by coverage: decide as soon as ready contributions cover the slice, or enough of it.

        Never on nothing.
        """
        self.readiness.grace_s = None
        entry = self.readiness.entry(step_after(self.contents.step))
        parts = [self.contents.parts[key] for key in self.contents.keys_of(entry)]
        if odd := odd_ones(parts, self.inc):
            return [Reply(one.inc, one) for one in odd]
        lacking = missing(parts)
        if lacking < 0:
            raise InternalError(f"step {entry.step}: samples are offered twice for its slice")
        if not parts:
            return []
        may_lack = self._may_lack(parts[0])
        if lacking <= (may_lack.left_out if in_grace else max(may_lack[:2])):
            return self._decide(entry)
        if lacking <= may_lack.late:
            self.readiness.grace_s = may_lack.grace_s
        return []

    def _may_lack(self, part: Part) -> Lacking:
        """How much of the undecided step's slice may lack."""
        return self.readiness.may_lack(step_after(self.contents.step), part.slice)

    def allow(self, message: Allow) -> list[Instruction]:
        """Leader: how much may be left out from a step on; an older word changes nothing."""
        if message.epoch_no != self.epoch_no or not self.leads:
            return []
        if message.no <= self.readiness.newest:
            return [ToMaster(self.progress())]
        self.readiness.allow(message, step_after(self.contents.step))
        return [*self._decide_step(), ToMaster(self.progress())]

    # ------------------------------------------------------------------ the order

    def _decide(self, entry: Entry) -> list[Instruction]:
        """Leader: applying an entry is the decision."""
        self.log.add(self.contents.next_position, entry)
        return self._apply(entry)

    def orders(self, *, resend: bool = False) -> list[Instruction]:
        """Leader: entries that the other servers have not been sent (``resend``: not applied)."""
        last = self.contents.position if self.leads else self.log.handover
        always = self.leads and bool(self.fenced)
        return [
            Tell(
                inc,
                Order(
                    epoch_no=self.epoch_no,
                    leader=self.inc,
                    start=start,
                    entries=entries,
                    fenced=tuple(self.fenced.items()),
                ),
            )
            for inc, start, entries in self.log.due(last, again=resend, always=always)
        ]

    def order(self, message: Order) -> list[Instruction]:
        """Follower: apply what comes next, keep what comes later."""
        if message.epoch_no != self.epoch_no:
            return []
        for number, entry in enumerate(message.entries, message.start):
            if number > self.contents.position:
                self.pending[EntryNo(number)] = entry
        done = [] if self.behind else self.advance()
        for inc, position in message.fenced:
            if self.map is not None and position <= self.contents.position:
                self.fenced[inc] = position
                self.waiting.pulls.pop(inc, None)
                done += self._forget([key for key in self.contents.parts if key[0] == inc])
        at = At(epoch_no=self.epoch_no, server=self.inc, position=self.contents.position)
        return [*done, Tell(message.leader, at)]

    def advance(self, limit: int = sys.maxsize) -> list[Instruction]:
        """Apply what comes next, at most ``limit`` entries: who has joined may be far behind."""
        done: list[Instruction] = []
        while self.map is not None and not self.has_left and limit:
            entry = self.pending.pop(self.contents.next_position, None)
            if entry is None:
                break
            done += self._apply(entry)
            limit -= 1
        if self.behind and self.contents.next_position not in self.pending:
            self.behind = False
            done.append(ToMaster(self._joined()))
        return done

    def at(self, message: At) -> list[Instruction]:
        """Leader: drop entries that all servers are past, and servers that are past their end."""
        if message.epoch_no == self.epoch_no and self.log.heard(message.server, message.position):
            self.log.drop(self.map, self.map_position, self.contents.position)
        return []

    def _apply(self, entry: Entry) -> list[Instruction]:
        self.contents.position = self.contents.next_position
        if not self.log.applied_at:
            self.log.entries.clear()
        if isinstance(entry, Cut):
            return self._copy(entry)
        if isinstance(entry, Remap):
            return self._remap(entry)
        keys, factor = self.contents.apply(entry)
        done: list[Instruction] = [Apply(tuple(keys), factor)]
        if entry.step:
            self.readiness.next_step()
            done += self._forget(self.contents.of_past_steps())
        return [*done, *self._answer_waiting()]

    def _forget(self, keys: Iterable[Key]) -> list[Instruction]:
        gone = self.contents.forget(keys)
        return [Forget(gone)] if gone else []

    # ------------------------------------------------------------------ cuts and fences

    def take_cut(self, message: TakeCut) -> list[Instruction]:
        """Leader: order a cut. Anyone: a repetition is answered with what is there."""
        if message.epoch_no != self.epoch_no:
            return []
        if self.copied is not None and self.copied.cut_no == message.cut_no:
            return [ToMaster(self.copied)]
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
        return [ToMaster(copied)]

    def _copy(self, entry: Cut) -> list[Instruction]:
        self.last_cut = entry.cut_no
        if self.map is None or not self.owns:
            return []
        copied = Copied(
            epoch_no=self.epoch_no,
            inc=self.inc,
            cut_no=entry.cut_no,
            position=self.contents.position,
            step=self.contents.step,
            committed=self.contents.committed.spans(),
            sharers=self.map.sharers,
        )
        return [CopyState(copied)]

    def fence(self, message: Fence) -> list[Instruction]:
        """Leader: nothing of this incarnation enters any more; permanent in this epoch."""
        if message.epoch_no != self.epoch_no or self.map is None:
            return []
        if not self.leads:
            return [ToMaster(self._map_set())]
        inc = message.fenced
        self.fenced.setdefault(inc, self.contents.position)
        self.readiness.last_of.pop(inc, None)
        self.waiting.fence(inc)
        answer = FenceAnswer(
            epoch_no=self.epoch_no,
            inc=self.inc,
            fenced=inc,
            committed=self.contents.committed.spans(),
        )
        gone = self._forget([key for key in self.contents.parts if key[0] == inc])
        return [*gone, ToMaster(answer), *self._answer_waiting()]

    def progress(self) -> Committed:
        """Leader: what is in the model now."""
        return self.contents.committed_now(self.epoch_no, self.readiness.newest)

    # ------------------------------------------------------------------ the map

    def join(self, message: JoinServers) -> list[Instruction]:
        """Keep parts of this epoch from now on; the buckets come later. Owners only answer."""
        if message.inc != self.inc or message.epoch_no < self.epoch_no:
            return []
        if message.epoch_no == self.epoch_no:
            return [ToMaster(self._joined())]
        self._reset()
        self.epoch_no, self.mode = message.epoch_no, message.mode
        self.exactly_once, self.waiting = True, WaitingPulls(message.staleness)
        self.barrier = message.map.version
        return [MakeRoom(message), ToMaster(self._joined())]

    def _joined(self) -> Joined:
        return Joined(
            epoch_no=self.epoch_no,
            inc=self.inc,
            caught_up=0 if self.behind else self.caught_up,
            # An owner's position grows whatever comes of the buckets.
            progress=self.progress_made + (0 if self.owns else self.contents.position),
        )

    def arrived(self, piece: Piece) -> list[Instruction]:
        """The buckets are here as of the copy entry; `advance` goes on from there.

        A server that owns buckets is past that entry: it calls `share_is_here` when these are, too.
        """
        if piece.epoch_no != self.epoch_no or self.map is not None:
            return []
        self.map, self.map_position = piece.map, piece.position
        self.contents.take(piece)
        self.last_cut, self.behind, self.caught_up = piece.last_cut, True, piece.map.version
        return []

    def share_is_here(self, version: int) -> list[Instruction]:
        """The edge has what that map copies here, with every entry so far."""
        self.caught_up = version
        return [ToMaster(self._joined())]

    def change_map(self, message: ChangeMap) -> list[Instruction]:
        """Leader: order the map that follows the present one; whatever came: which one it is."""
        if message.epoch_no != self.epoch_no or self.map is None:
            return []
        done: list[Instruction] = []
        if self.leads and message.map.version == self.map.version + 1:
            entry = Remap(
                map=message.map,
                fenced=tuple(sorted(self.fenced)),
                clocks=self.waiting.told(),
                allowed=tuple(self.readiness.allowed),
            )
            done = self._decide(entry)
        return [*done, ToMaster(self._map_set())]

    def _map_set(self) -> MapSet:
        assert self.map is not None
        others = [server.inc for server in self.map.servers if server.inc != self.inc]
        return MapSet(
            epoch_no=self.epoch_no,
            inc=self.inc,
            map=self.map,
            leads=self.leads,
            settled=self.leads and self.log.have_all(others, self.map_position),
        )

    def ask_map(self, message: AskMap) -> list[Instruction]:
        """Tell a worker the map."""
        inc = message.inc
        if message.epoch_no != self.epoch_no:
            return self._refuse(inc)
        return self._refuse(inc, fenced=True) if inc in self.fenced else self._tell_map(inc)

    def _tell_map(self, inc: Inc) -> list[Instruction]:
        if self.map is None:
            return self._refuse(inc)
        told = MapIs(
            epoch_no=self.epoch_no,
            server=self.inc,
            inc=inc,
            map=self.map,
            leads=self.leads,
            barrier=self.barrier,
            seq=self.contents.last_seq.get(inc, 0),
        )
        return [Reply(inc, told)]

    def _remap(self, entry: Remap) -> list[Instruction]:
        """The map changes at this position, on every server."""
        led, former, contents = self.leads, self.map, self.contents
        assert former is not None
        waiting = set(self.waiting.pulls)
        known = waiting | set(contents.last_seq) | {inc for inc, _ in contents.parts}
        self.map, self.map_position = entry.map, contents.position
        if entry.map.ownership != former.ownership:
            self.owned_since = entry.map.version
        done: list[Instruction] = [MapInForce(entry.map)]
        if entry.map.copies:
            self.barrier = entry.map.version
            self.readiness.next_step()
            done += self._send_buckets(entry.map)
        void = [key for key, part in contents.parts.items() if part.map_version < self.barrier]
        done += self._forget(list(contents.parts) if self.has_left else void)
        if led and not self.leads:
            self.log.handover, self.readiness.grace_s = contents.position, None
        elif self.leads and not led:
            self._take_over(entry)
        if led or self.leads:
            self._set_followers(former)
        self.waiting.drop(lambda pull: not self.owns or self._is_astray(pull))
        told = (known if led or self.leads else waiting) - set(self.fenced)
        return [*done, *(one for inc in sorted(told) for one in self._tell_map(inc))]

    def _send_buckets(self, now: ServerMap) -> list[Instruction]:
        """Owner: what goes to whom, perhaps to itself."""
        me = now.index(self.inc)
        targets = {to for owner, to in zip(now.owners, now.copies, strict=True) if owner == me}
        receivers = [now.servers[to] for to in sorted(targets - {-1})]
        ids, piece = (self.epoch_no, now, self.last_cut), self.contents.piece
        to = tuple((server, piece(server.inc, *ids)) for server in receivers)
        return [SendBuckets(to)] if to else []

    def _take_over(self, entry: Remap) -> None:
        """Lead from this entry on."""
        position = self.contents.position
        self.fenced |= {inc: position for inc in entry.fenced if inc not in self.fenced}
        self.waiting.take_over(entry.clocks)
        self.readiness.allowed = list(entry.allowed)
        self.log.take_over(self.inc, entry, position)

    def _set_followers(self, former: ServerMap) -> None:
        """Leader, new or former: which servers it tells the order, and from where on."""
        assert self.map is not None
        if self.leads:
            self.log.add_followers(self.inc, self.map, self.contents.position)
        self.log.give_up_copiers(former, self.map)
        self.log.drop(self.map, self.map_position, self.contents.position)

    # ------------------------------------------------------------------ pulls

    def pull(self, message: Pull) -> list[Instruction]:
        """Answer at once, or when the step is there (BSP) or the slowest are near (SSP)."""
        if message.epoch_no != self.epoch_no:
            return self._refuse(message.inc)
        if message.inc in self.fenced:
            return self._refuse(message.inc, fenced=True)
        if not self.owns or self._is_astray(message):
            return self._tell_map(message.inc)
        if self._is_ahead(message.map_version):
            return []
        self.waiting.add(message, bounded=self.mode == "ssp" and self.leads)
        return self._answer_waiting()

    def _is_astray(self, pull: Pull) -> bool:
        """Whether the worker asks for what has another owner, or is another server's, by now."""
        return bool(pull.dense or pull.tables) and pull.map_version < self.owned_since

    def next_slice(self, feed: Feed | None) -> Slice:
        """BSP: what the next step consists of, which is a function of what is in the model."""
        return () if feed is None else feed.next_slice(self.contents.committed.line(feed.line()))

    def _answer_waiting(self) -> list[Instruction]:
        return [AnswerPull(pull) for pull in self.waiting.release(self.contents.step)]
