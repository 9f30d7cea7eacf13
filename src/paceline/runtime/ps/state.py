"""One parameter server as a pure state machine: the order, the committed set, cuts and fences.

Events are the messages of `paceline.wire.messages`; every method returns instructions that the
edge (`server.py`) carries out in order. Tensors never come here: a contribution is its header,
and the edge keeps the gradients under the same key ``(inc, seq)``.

The protocol is that of docs/protocols/integrity.md, sections 2 and 3: the leader gives every
update a position, all servers apply entries by position, and a contribution gets a position only
when every server holds its parts. The explorer in ``tests/model`` drives this very class.
"""

from collections.abc import Iterable, Sequence

import msgspec

from paceline.base.errors import InternalError
from paceline.base.samples import SampleSet
from paceline.wire.messages import (
    Allow,
    At,
    Committed,
    Copied,
    Cut,
    Data,
    Entry,
    Feed,
    Fence,
    FenceAnswer,
    Held,
    Included,
    NodeUp,
    Order,
    Ordered,
    Part,
    Pull,
    Ready,
    Refused,
    Restore,
    Restored,
    ServerMap,
    Slice,
    TakeCut,
    Update,
)

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


Instruction = Reply | Tell | Report | Keep | Apply | Forget | AnswerPull | CopyState | Load


class ServerState:
    """The protocol state of one server incarnation."""

    def __init__(self, inc: int) -> None:
        self.inc = inc
        self._reset()

    def _reset(self) -> None:
        #: 0: a fresh server, which belongs to no epoch and takes nothing but `restore`.
        self.epoch_no = 0
        self.map: ServerMap | None = None
        self.mode = ""
        self.exactly_once = True
        self.staleness = 0
        #: Entries 1 … position are in the tensors, and in nothing else.
        self.position = 0
        self.step = 0
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
        # Leader only.
        self.log: dict[int, Entry] = {}
        self.applied_at: dict[int, int] = {}
        self.sent_to: dict[int, int] = {}
        #: BSP: inc -> last contribution of the undecided step that all servers hold.
        self.ready_for_step: dict[int, int] = {}
        #: BSP: what may be left out of a step, by the step from which on it holds.
        self.allowed: list[Allow] = []
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
        if key in self.parts or message.seq <= self.last_seq.get(inc, 0):
            return [held]
        if message.step and message.step != self.step + 1:
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
        return [Keep((inc, seq)), Apply(((inc, seq),)), *self._answer_waiting()]

    def ready(self, message: Ready) -> list[Instruction]:
        """Leader: all servers hold these contributions; give them positions when due."""
        inc = message.inc
        if message.epoch_no != self.epoch_no or not self.leads or self.map is None:
            return self._refuse(inc)
        if inc in self.fenced:
            return self._refuse(inc, fenced=True)
        if message.map_version != self.map.version:
            return self._refuse(inc)
        if message.step:
            done = self._ready_for_step(message)
        else:
            done = []
            for seq in range(self.last_seq.get(inc, 0) + 1, message.seq + 1):
                done += self._decide(Update(included=(Included(inc, seq),)))
        last = self.last_seq.get(inc, 0)
        return [*done, Reply(inc, Ordered(epoch_no=self.epoch_no, inc=inc, seq=last))]

    def _ready_for_step(self, message: Ready) -> list[Instruction]:
        if message.step != self.step + 1:
            return []
        inc = message.inc
        self.ready_for_step[inc] = max(message.seq, self.ready_for_step.get(inc, 0))
        return self._decide_step()

    def _decide_step(self) -> list[Instruction]:
        """BSP by coverage: decide as soon as ready contributions cover the slice, or enough of it.

        Never on nothing.
        """
        included = tuple(Included(i, s) for i, s in sorted(self.ready_for_step.items()))
        entry = Update(included=included, step=self.step + 1)
        parts = [self.parts[key] for key in self._keys_of(entry)]
        missing = _missing(parts)
        if missing < 0:
            raise InternalError(f"step {entry.step}: samples are offered twice for its slice")
        if not parts or missing > self._may_lack(parts[0]):
            return []
        return self._decide(entry)

    def _may_lack(self, part: Part) -> int:
        """How many samples of the undecided step's slice may be missing."""
        held = [one for one in self.allowed if one.step <= self.step + 1]
        size = sum(len(span) for span in part.slice)
        return held[-1].left_out * size // held[-1].of if held else 0

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
        if not self.leads:
            return []
        told: list[Instruction] = []
        for inc, applied in self.applied_at.items():
            after = applied if resend else max(applied, self.sent_to[inc])
            if after >= self.position and not (resend and self.fenced):
                continue
            entries = tuple(self.log[p] for p in range(after + 1, self.position + 1))
            fenced = tuple(self.fenced.items())
            order = Order(epoch_no=self.epoch_no, start=after + 1, entries=entries, fenced=fenced)
            told.append(Tell(inc, order))
            self.sent_to[inc] = self.position
        return told

    def order(self, message: Order) -> list[Instruction]:
        """Follower: apply what comes next, keep what comes later."""
        if message.epoch_no != self.epoch_no:
            return []
        for position, entry in enumerate(message.entries, message.start):
            if position > self.position:
                self.pending[position] = entry
        done: list[Instruction] = []
        while (entry_now := self.pending.pop(self.position + 1, None)) is not None:
            done += self._apply(entry_now)
        for inc, position in message.fenced:
            if position <= self.position:
                self.fenced[inc] = position
                done += self._forget(key for key in self.parts if key[0] == inc)
        at = At(epoch_no=self.epoch_no, server=self.inc, position=self.position)
        return [*done, Tell(self.leader_inc, at)]

    def at(self, message: At) -> list[Instruction]:
        """Leader: drop entries that all servers are past."""
        if message.epoch_no == self.epoch_no and message.server in self.applied_at:
            before = self.applied_at[message.server]
            self.applied_at[message.server] = max(before, message.position)
            for position in range(min(self.log, default=0), min(self.applied_at.values()) + 1):
                self.log.pop(position, None)
        return []

    def _apply(self, entry: Entry) -> list[Instruction]:
        self.position += 1
        if not self.applied_at:
            self.log.clear()
        if isinstance(entry, Cut):
            return self._copy(entry)
        keys = self._keys_of(entry)
        missing = _missing([self.parts[key] for key in keys]) if entry.step else 0
        for key in keys:
            if any(self.committed.overlap(span) for span in self.parts[key].spans):
                raise InternalError(f"contribution {key} holds samples that are in the model")
            self.committed.update(self.parts.pop(key).spans)
        for included in entry.included:
            self.last_seq[included.inc] = included.seq
        done: list[Instruction] = [Apply(tuple(keys))]
        if entry.step:
            self.step = entry.step
            self.short_steps += missing > 0
            self.left_out += missing
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
        copied = Copied(
            epoch_no=self.epoch_no,
            inc=self.inc,
            cut_no=entry.cut_no,
            position=self.position,
            step=self.step,
            committed=self.committed.spans(),
        )
        return [CopyState(copied)]

    def fence(self, message: Fence) -> list[Instruction]:
        """Leader: nothing of this incarnation enters any more; permanent in this epoch."""
        if message.epoch_no != self.epoch_no or not self.leads:
            return []
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

    # ------------------------------------------------------------------ pulls

    def pull(self, message: Pull) -> list[Instruction]:
        """Answer at once, or when the step is there (BSP) or the slowest are near (SSP)."""
        if message.epoch_no != self.epoch_no:
            return self._refuse(message.inc)
        if message.inc in self.fenced:
            return self._refuse(message.inc, fenced=True)
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


def _missing(parts: Sequence[Part]) -> int:
    """Samples of a step's slice that these contributions lack; < 0: some are in them twice."""
    covered = SampleSet(span for part in parts for span in part.spans)
    if len(covered) != sum(len(span) for part in parts for span in part.spans):
        return -1
    return sum(len(span) for span in parts[0].slice) - len(covered) if parts else 0
