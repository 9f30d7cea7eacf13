"""Records of a journal that is kept on several machines: whose term it is, and who keeps it."""

from collections.abc import Iterable

from paceline.protocol.records import Record
from paceline.wire.messages.keeping import JournalPlace, Seats


class JournalTerm(Record, frozen=True):
    """A master begins its term; in a snapshot, which ends with it: so far it has come."""

    term: int
    index: int = 0


class SeatsSet(Record, frozen=True):
    """These have seats from now on."""

    seats: Seats


class JournalEnd:
    """How far a journal has come, as its records say."""

    def __init__(self) -> None:
        self.place, self.seats = JournalPlace(), Seats()

    def apply(self, record: object) -> None:
        """Take in the next record."""
        if isinstance(record, JournalTerm):
            self.place = JournalPlace(record.term, record.index)
            return
        self.place = JournalPlace(self.place.term, self.place.index + 1)
        if isinstance(record, SeatsSet):
            self.seats = record.seats


def end_of(records: Iterable[object]) -> JournalEnd:
    """Return how far a journal has come."""
    end = JournalEnd()
    for record in records:
        end.apply(record)
    return end
