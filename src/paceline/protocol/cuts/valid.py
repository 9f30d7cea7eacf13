"""Cuts: which there are, and the one on its way.

Pure, and part of `MasterState`. A cut is valid when each server has a copy that outlives its node,
and stored when all of it is on disk (docs/decisions/0008-cuts-count-in-memory.md).
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from paceline.base.samples import SampleSet, Span
from paceline.protocol.records import CutGone, CutStored, CutValid
from paceline.wire.messages.node import AskCut, Copied


class CutWanted(msgspec.Struct, frozen=True):
    """A cut that a worker asks for."""

    n: int
    step: int
    """Must be in it."""
    later_than: int
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
        self.last_no = 0
        #: Complete feeds that a cut on disk holds whole: workers may leave their loops.
        self.safe: set[int] = set()
        #: Complete feeds that the newest cut holds whole, while it is in memory only.
        self.covered: set[int] = set()
        # Volatile.
        #: The cut that servers are copying.
        self.copying: int | None = None
        #: Numbers up to this one may be in use by who copied before.
        self.used_no = 0
        self.least_step = 0
        #: The valid one that they are writing to disk.
        self.storing: int | None = None
        self.copied: dict[int, Copied] = {}
        #: Those that made the newest cut valid, or stored: `copied` may already be the next one's.
        self.sealed: tuple[Copied, ...] = ()
        #: By incarnation; one answer serves all that it asked for before.
        self.wanted: dict[int, CutWanted] = {}

    # ------------------------------------------------------------------ records

    def add(self, record: CutValid, covered: Iterable[int]) -> None:
        """A cut is valid; these complete feeds are wholly in it."""
        self.valid.append(record)
        self.last_no = max(self.last_no, record.cut.cut_no)
        self.covered = set(covered)
        if not record.cut.in_memory:
            self.safe |= self.covered

    def apply(self, record: CutStored | CutGone) -> None:
        """It is on disk as well, or its files are deleted or damaged."""
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
        self.used_no = max(self.used_no, self.copying or 0)
        self.copying = None
        self.copied.clear()

    @property
    def under_way(self) -> bool:
        """A cut is being copied or written to disk: the next one has to wait."""
        return self.on_its_way is not None

    @property
    def on_its_way(self) -> int | None:
        """The number of the cut that is being copied or written to disk."""
        return self.storing if self.copying is None else self.copying

    @property
    def last_stored_no(self) -> int:
        """The number of the newest cut on disk."""
        return max((cut.cut.cut_no for cut in self.valid if not cut.cut.in_memory), default=0)

    def begin(self, least_step: int = 0) -> None:
        """Have the next cut copied, of this step or a later one."""
        self.copying, self.least_step = max(self.last_no, self.used_no) + 1, least_step
        self.copied.clear()

    def awaited(self, holders: Iterable[int]) -> tuple[int, list[int]] | None:
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

    def want(self, message: AskCut) -> None:
        """A worker asks for a cut, or asks again."""
        known = self.wanted.get(message.inc)
        if known is None or known.n < message.n:
            begun = self.last_no if self.copying is None else self.copying
            later_than = -1 if message.step else begun
            self.wanted[message.inc] = CutWanted(message.n, message.step, later_than)

    def take_met(self) -> list[tuple[int, int]]:
        """Who has now what it asked for, and up to which number; no longer wanted."""
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
