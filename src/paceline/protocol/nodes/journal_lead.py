"""The master's part in keeping its journal on several machines. Pure.

It knows who holds how much of the journal, so what may leave, and who should have the seats.
`paceline.protocol.nodes.journal_keeper` has the rules and the other part.
"""

from collections.abc import Iterable

import msgspec

from paceline.wire.messages.keeping import JournalPlace, Seat, Seats

MAX_OTHERS = 4
"""Keepers on other machines: with four the job goes on without any two machines."""


class JournalLead:
    """The master of one term.

    Args:
        seat: its own.
        place: of its journal, which has begun this term.
        seats: as its journal says.
    """

    def __init__(self, seat: str, place: JournalPlace, seats: Seats) -> None:
        self.seat, self.place, self.seats = seat, place, seats
        self._held: dict[str, int] = {}
        self._left: set[str] = set()
        self.safe = -1
        """Number of records of this term that no later master can lack; what depends on them may
        leave. -1: not even those of former terms are safe so far."""
        self._look()

    def add(self, count: int, seats: Seats | None = None) -> None:
        """Take in that so many records were journalled; ``seats``: the last one sets these."""
        self.place = JournalPlace(self.place.term, self.place.index + count)
        if seats is not None:
            self.seats = seats
        self._look()

    def held(self, name: str, place: JournalPlace) -> None:
        """Take in what a seat holds, or one that may get a seat."""
        if place.term == self.place.term:
            self._held[name] = place.index
            self._look()

    def left(self, name: str, term: int) -> None:
        """Take in that a seat never votes again; it may have voted up to this term."""
        if term <= self.place.term:
            self._left.add(name)
            self._look()

    def forget(self, name: str) -> None:
        """Forget one that is gone and has no seat."""
        self._held.pop(name, None)

    def _look(self) -> None:
        for index in sorted({self.place.index, *self._held.values()}, reverse=True):
            if index <= self.safe:
                return
            holders = {self.seat} | {name for name, held in self._held.items() if held >= index}
            if self.seats.holds(holders, self._left):
                self.safe = index
                return

    @property
    def is_safe(self) -> bool:
        """Whether all that is journalled is."""
        return self.safe == self.place.index

    def is_close(self, name: str, within: int) -> bool:
        """Tell whether it holds all but so many of the newest records."""
        return self._held.get(name, -1) >= self.place.index - within

    def next_seats(self, wanted: tuple[Seat, ...]) -> Seats | None:
        """Return the seats to journal next, so that these have them; None: none now.

        The way leads over seats before and after. Each of the two records must be safe before the
        next change.
        """
        if not self.is_safe:
            return None
        if self.seats.before:
            return Seats(now=self.seats.now)
        if {seat.name for seat in wanted} == {seat.name for seat in self.seats.now}:
            return None
        return Seats(now=wanted, before=self.seats.now)


class SeatCandidate(msgspec.Struct, frozen=True):
    """An agent on another machine that may have a seat."""

    seat: Seat
    machine: str
    """Address of its machine."""


def choose_seats(
    own: Seat, present: Seats, candidates: Iterable[SeatCandidate]
) -> tuple[Seat, ...]:
    """Say who should have seats: two or four agents beside the master, each on its own machine.

    With one other machine there are none: neither could go on without the other.

    Args:
        own: the master's.
        present: as they are; who has one keeps it.
        candidates: agents that are there and hold the journal.
    """
    chosen: dict[str, Seat] = {}
    for one in sorted(candidates, key=lambda one: one.seat.name not in present):
        if len(chosen) < MAX_OTHERS:
            chosen.setdefault(one.machine, one.seat)
    others = [*chosen.values()]
    return (own, *others[: len(others) // 2 * 2])
