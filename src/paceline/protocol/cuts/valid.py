"""Cuts: which there are, and the one on its way.

Pure, and part of `MasterState`. A cut is valid when each server has a copy that outlives its node,
and stored when all of it is on disk (docs/decisions/0008-cuts-count-in-memory.md).
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from paceline.base.numbering import NO_CUT, START, CutNo, Inc, StepNo
from paceline.base.samples import SampleSet, Span
from paceline.protocol.records import CutGone, CutStored, CutValid
from paceline.wire.messages.base import CutRef
from paceline.wire.messages.node import AskCut, Copied


class CutWanted(msgspec.Struct, frozen=True):
    """A cut that a worker asks for."""

    n: int
    step: StepNo
    """Must be in it."""
    later_than: CutNo
    """Cuts up to this number may have begun before it was asked for."""

    def is_met(self, valid: CutValid) -> bool:
        """Whether this cut is on disk, and what was asked for."""
        number = valid.cut.cut_no
        return not valid.cut.in_memory and valid.step >= self.step and number > self.later_than


class Cuts:
    """The cuts of one job; at most one is on its way."""

    def __init__(self) -> None:
        # Durable: changed by records only.
        #: Oldest first.
        self.valid: list[CutValid] = []
        self.last_no = NO_CUT
        #: Complete feeds that a cut on disk holds whole: workers may leave their loops.
        self.safe: set[int] = set()
        #: Complete feeds that the newest cut holds whole, while it is in memory only.
        self.covered: set[int] = set()
        # Volatile.
        #: The cut that servers are copying.
        self.copying: CutNo | None = None
        #: Numbers up to this one may be in use by who copied before.
        self.used_no = NO_CUT
        self.least_step = START
        #: The valid one that they are writing to disk.
        self.storing: CutNo | None = None
        self.copied: dict[Inc, Copied] = {}
        #: Those that made the newest cut valid, or stored: `copied` may already be the next one's.
        self.sealed: tuple[Copied, ...] = ()
        #: By incarnation; one answer serves all that it asked for before.
        self.wanted: dict[Inc, CutWanted] = {}

    @property
    def on_disk(self) -> list[CutValid]:
        """The valid ones that are stored, oldest first."""
        return [cut for cut in self.valid if not cut.cut.in_memory]

    # ------------------------------------------------------------------ records

    def add(self, record: CutValid, covered: Iterable[int]) -> None:
        """A cut is valid; these complete feeds are wholly in it."""
        self.valid.append(record)
        self.last_no = max(self.last_no, record.cut.cut_no)
        self.covered = set(covered)
        if not record.cut.in_memory:
            self.safe |= self.covered

    def apply(self, record: CutStored | CutGone) -> None:
        """Note that a cut is on disk as well, or that its files are deleted or damaged."""
        if isinstance(record, CutStored):
            number = record.cut.cut_no
            self.valid = [
                replace(cut, cut=record.cut) if cut.cut.cut_no == number else cut
                for cut in self.valid
            ]
            self.safe |= self.covered
            return
        if self.valid and self.valid[-1].cut.cut_no == record.cut_no:
            self.storing = None
            self.covered.clear()
        self.valid = [cut for cut in self.valid if cut.cut.cut_no != record.cut_no]

    # ------------------------------------------------------------------ on the way

    def forget(self) -> None:
        """A new epoch: nobody finishes what was on its way."""
        self.copying = self.storing = None
        self.copied.clear()
        self.sealed = ()
        self.wanted.clear()

    def begin_again(self) -> None:
        """Somebody else is to copy; who copied until now may still write what it has begun."""
        self.used_no = max(self.used_no, self.copying or NO_CUT)
        self.copying = None
        self.copied.clear()

    @property
    def under_way(self) -> bool:
        """A cut is being copied or written to disk: the next one has to wait."""
        return self.on_its_way is not None

    @property
    def on_its_way(self) -> CutNo | None:
        """The number of the cut that is being copied or written to disk."""
        return self.storing if self.copying is None else self.copying

    @property
    def last_stored_no(self) -> CutNo:
        """The number of the newest cut on disk."""
        return max((cut.cut.cut_no for cut in self.valid if not cut.cut.in_memory), default=NO_CUT)

    def begin(self, least_step: StepNo = START) -> None:
        """Have the next cut copied, of this step or a later one."""
        self.copying, self.least_step = CutNo(max(self.last_no, self.used_no) + 1), least_step
        self.copied.clear()

    def awaited(self, holders: Iterable[Inc]) -> tuple[CutNo, list[Inc]] | None:
        """The cut on its way, and which holders have not said all of it; None: there is none."""
        number = self.on_its_way
        if number is None:
            return None
        enough = {inc for inc, c in self.copied.items() if c.stored or self.storing is None}
        return number, [inc for inc in holders if inc not in enough]

    def heard(self, message: Copied) -> bool:
        """Take in a holder's word; whether all have now said as much, which is `sealed` then."""
        if message.cut_no not in (self.copying, self.storing):
            return False
        if message.inc not in self.copied or message.stored:
            self.copied[message.inc] = message
        if set(self.copied) != set(message.sharers):
            return False
        self.sealed = tuple(self.copied.values())
        return self.copying is not None or self.all_stored

    def whole(self, message: Copied, *, exactly_once: bool) -> CutValid | None:
        """Return the cut that the copies make which are now `sealed`; None: they are not alike.

        Args:
            message: the word that was missing.
            exactly_once: whether all must hold the same samples.
        """
        if self.copying is None:
            (valid,) = (one for one in self.valid if one.cut.cut_no == message.cut_no)
            return replace(valid, cut=replace(valid.cut, stored=True))
        number, epoch_no = message.cut_no, message.epoch_no
        cut = CutRef(cut_no=number, epoch_no=epoch_no, memory=True, stored=self.all_stored)
        said = {(copied.step, copied.committed) for copied in self.sealed}
        step, committed = next(iter(said))
        if len(said) > 1:
            if exactly_once:
                return None
            committed = common(copied.committed for copied in self.sealed)
        return CutValid(cut=cut, step=step, committed=committed, epoch_no=epoch_no)

    def want(self, message: AskCut) -> None:
        """A worker asks for a cut, or asks again."""
        known = self.wanted.get(message.inc)
        if known is None or known.n < message.n:
            begun = self.last_no if self.copying is None else self.copying
            later_than = CutNo(-1) if message.step else begun
            self.wanted[message.inc] = CutWanted(message.n, message.step, later_than)

    def take_met(self) -> list[tuple[Inc, int]]:
        """Take out the requests that are met now, as pairs of asker and number of the request."""
        met = [
            (inc, wanted.n)
            for inc, wanted in sorted(self.wanted.items())
            if any(map(wanted.is_met, self.valid))
        ]
        for inc, _ in met:
            del self.wanted[inc]
        return met

    @property
    def all_stored(self) -> bool:
        """Whether all copies of the cut that was last complete are on disk."""
        return all(copied.stored for copied in self.sealed)

    def advance(self) -> bool:
        """All have said as much: go on to the disk, or be done; whether the cut is a new one."""
        new, number = self.copying is not None, self.copying
        self.copying, self.storing = None, None if self.all_stored else number
        return new


def common(sets: Iterable[tuple[Span, ...]]) -> tuple[Span, ...]:
    """At-least-once: what is in the model of every server."""
    first, *others = (SampleSet(one) for one in sets)
    for other in others:
        first = SampleSet(part for span in first.spans() for part in other.overlap(span))
    return first.spans()
