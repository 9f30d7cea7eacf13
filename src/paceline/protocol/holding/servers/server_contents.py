"""Contents of one server's model: the committed set, and the contributions held for it."""

from collections.abc import Iterable

from paceline.base.errors import InternalError
from paceline.base.numbering import NO_ENTRY, START, CutNo, EntryNo, EpochNo, Inc, StepNo
from paceline.base.samples import SampleSet
from paceline.protocol.holding.servers.agreeing import missing
from paceline.protocol.holding.servers.server_acts import Key
from paceline.wire.messages.base import ServerMap
from paceline.wire.messages.data import Part, Piece
from paceline.wire.messages.node import Committed
from paceline.wire.messages.order import Update


class ServerContents:
    """Samples, contributions and steps of one epoch.

    Args:
        inc: of the server.
        step: of the cut that the epoch begins with.
        committed: in that cut.
    """

    def __init__(self, inc: Inc, step: StepNo = START, committed: SampleSet | None = None) -> None:
        self.inc = inc
        #: Entries 1 … position are in the tensors, and in nothing else.
        self.position = NO_ENTRY
        self.step = step
        #: Contributions in the tensors, of this epoch (without steps).
        self.applied = 0
        self.committed = SampleSet() if committed is None else committed
        #: inc -> its last contribution that is in the tensors.
        self.last_seq: dict[Inc, int] = {}
        #: Held, not applied.
        self.parts: dict[Key, Part] = {}
        #: BSP: steps of this epoch that were decided without all of their slice, and what of it.
        self.short_steps = self.left_out = 0

    @property
    def next_position(self) -> EntryNo:
        """Where the entry is that is applied next."""
        return EntryNo(self.position + 1)

    def committed_now(self, epoch_no: EpochNo, allow: int) -> Committed:
        """Return the leader's word; ``allow``: the newest allowance that it knows."""
        return Committed(
            epoch_no=epoch_no,
            inc=self.inc,
            step=self.step,
            committed=self.committed.spans(),
            allow=allow,
            short_steps=self.short_steps,
            left_out=self.left_out,
        )

    def piece(self, to: Inc, epoch_no: EpochNo, now: ServerMap, last_cut: CutNo) -> Piece:
        """Return what goes with buckets that are set aside now: see `take`."""
        return Piece(
            epoch_no=epoch_no,
            server=self.inc,
            inc=to,
            map=now,
            position=self.position,
            step=self.step,
            committed=self.committed.spans(),
            last_seq=tuple(sorted(self.last_seq.items())),
            last_cut=last_cut,
            applied=self.applied,
            short_steps=self.short_steps,
            left_out=self.left_out,
        )

    def take(self, piece: Piece) -> None:
        """Become what an owner had as it set buckets aside; what is held here stays."""
        self.position, self.step = piece.position, piece.step
        self.committed, self.last_seq = SampleSet(piece.committed), dict(piece.last_seq)
        self.applied = piece.applied
        self.short_steps, self.left_out = piece.short_steps, piece.left_out

    def is_known(self, part: Part) -> bool:
        """Whether this contribution is held or applied."""
        key = (part.inc, part.seq)
        return key in self.parts or part.seq <= self.last_seq.get(part.inc, 0)

    def apply(self, entry: Update) -> tuple[list[Key], float]:
        """Apply an entry of the order; the contributions, and the factor on their learning rates.

        Raises:
            InternalError: the entry contradicts what is here.
        """
        keys = self.keys_of(entry)
        lacking = missing([self.parts[key] for key in keys]) if entry.step else 0
        factor = 1.0 if entry.step else self._factor(self.parts[keys[0]])
        for key in keys:
            if any(self.committed.overlap(span) for span in self.parts[key].spans):
                raise InternalError(f"contribution {key} holds samples that are in the model")
            self.committed.update(self.parts.pop(key).spans)
        for included in entry.included:
            self.last_seq[included.inc] = included.seq
        if entry.step:
            self.step = entry.step
            self.short_steps += lacking > 0
            self.left_out += lacking
        return keys, factor

    def apply_unordered(self, part: Part) -> float | None:
        """Apply a contribution that is in no order; the factor on its learning rates.

        None: it is not the one that comes next of its worker.
        """
        if part.seq != self.last_seq.get(part.inc, 0) + 1:
            return None
        self.last_seq[part.inc] = part.seq
        self.committed.update(part.spans)
        return self._factor(part)

    def _factor(self, part: Part) -> float:
        """On the learning rate of a contribution that is applied now (ADJUST_LR).

        All servers are at the same count at a position of the order, so all say the same.
        """
        staleness = max(0, self.applied - part.seen) if part.seen >= 0 else 0
        self.applied += 1
        return part.factor / (1 + staleness)

    def keys_of(self, entry: Update) -> list[Key]:
        """The contributions of an entry, by first sample: equal splits are summed alike.

        Raises:
            InternalError: one of them is not held.
        """
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

    def forget(self, keys: Iterable[Key]) -> tuple[Key, ...]:
        """Drop held contributions that will never be applied; which these are."""
        gone = tuple(keys)
        for key in gone:
            del self.parts[key]
        return gone

    def of_past_steps(self) -> list[Key]:
        """Held contributions to steps that are decided without them."""
        return [key for key, part in self.parts.items() if part.step <= self.step]
