"""Between a master, the keepers of its journal on other machines, and who looks for the master.

A *seat* is one of those who keep the journal: the master, and agents on other machines. A seat is
one life of an agent: what that holds, and its votes, are gone with it. A *term* is the time of one
master; no two have the same. See `paceline.protocol.nodes.journal_keeper`.
"""

from collections.abc import Set

import msgspec

from paceline.wire.messages.base import Message


class JournalPlace(msgspec.Struct, frozen=True, array_like=True, order=True):
    """How much of which journal somebody has: what is greater is newer."""

    term: int = 0
    """Term in which it was last written to."""
    index: int = 0
    """Number of records that were written to it in that term."""


class Seat(msgspec.Struct, frozen=True, array_like=True):
    """One of those who keep the journal."""

    name: str
    host: str = ""
    """Name of its machine, for people."""
    address: str = ""
    """``HOST:PORT`` at which it can be asked; empty: it is the seat of a master."""


class Seats(msgspec.Struct, frozen=True, array_like=True):
    """All who keep the journal; while they change, both before and after."""

    now: tuple[Seat, ...] = ()
    before: tuple[Seat, ...] = ()
    """Seats that count as well, until a majority of both knows of the change; empty: none do."""

    def holds(self, holders: Set[str], left: Set[str] = frozenset()) -> bool:
        """Tell whether nobody can be elected without one of these.

        Args:
            holders: who hold a record.
            left: who have promised never to vote again.
        """
        return all(
            len({seat.name for seat in seats} - left - holders) < _majority(seats)
            for seats in self._in_force
        )

    def elects(self, voters: Set[str]) -> bool:
        """Tell whether these votes are a majority: nobody else can have one in the same term."""
        return all(
            len({seat.name for seat in seats} & voters) >= _majority(seats)
            for seats in self._in_force
        )

    def others(self, name: str) -> tuple[Seat, ...]:
        """Return all but this one, each once."""
        return tuple(dict.fromkeys(s for s in (*self.now, *self.before) if s.name != name))

    def __contains__(self, name: str) -> bool:
        return any(seat.name == name for seat in (*self.now, *self.before))

    @property
    def _in_force(self) -> tuple[tuple[Seat, ...], ...]:
        return (self.now, self.before) if self.before else (self.now,)


def _majority(seats: tuple[Seat, ...]) -> int:
    return len(seats) // 2 + 1


class KeeperGround(msgspec.Struct, frozen=True, kw_only=True):
    """What the next master needs beside the journal; it goes to keepers alone."""

    job_id: str
    launched_s: float
    """Unix time of the job's launch."""
    identity: bytes
    """Private key and certificate that a master shows; empty: no port of the job is encrypted."""
    authority_key: bytes
    host: str
    """Name of the master's machine."""
    life: str = ""
    """Address, ``HOST:PORT``, that takes connections as long as the supervisor there lives; empty:
    none does."""
    url_holder: bytes = b""
    """Name under which this run of the job holds the lease at the URL of its cuts."""


class JournalCopy(Message, frozen=True):
    """master -> keeper: a part of the whole journal. It counts when the last part is there."""

    place: JournalPlace
    seats: Seats
    leader: str
    """Seat of the master."""
    records: tuple[bytes, ...]
    part: int = 0
    is_last: bool = True
    ground: KeeperGround | None = None
    """With the first part."""


class JournalAdd(Message, frozen=True):
    """master -> keeper: further records; none: the master lives."""

    after: JournalPlace
    """Place to which they are added."""
    leader: str
    records: tuple[bytes, ...] = ()
    seats: Seats | None = None
    """With the records that change them."""


class KeepersAre(Message, frozen=True):
    """master -> agent on another machine: whom to ask for the master, once this one is gone."""

    seats: Seats
    beside: tuple[str, ...] = ()
    """Nodes that have joined from the master's own machine: they are lost with it."""


KeepingDown = JournalCopy | JournalAdd | KeepersAre


class JournalHeld(Message, frozen=True):
    """keeper -> master: what it holds. The answer to `JournalCopy` and to `JournalAdd`."""

    node: str
    place: JournalPlace
    term: int
    """Newest term that it has heard of: if it is newer than yours, you are a master no more."""
    address: str
    """Where it can be asked."""


class KeeperLeaves(Message, frozen=True):
    """keeper -> master: it never votes again, for it ends."""

    node: str
    term: int
    """Newest term that it has heard of, and may have voted in."""


KeepingUp = JournalHeld | KeeperLeaves


class AskVote(Message, frozen=True):
    """One seat asks another one: may I start the master of this term?"""

    term: int
    seat: str
    place: JournalPlace
    """What it holds."""
    is_trial: bool = False
    """Whether it only asks what the answer would be: nothing is promised."""


class VoteIs(Message, frozen=True):
    """Answer to `AskVote`."""

    seat: str
    """Who answers."""
    term: int
    """Newest term that it knows."""
    granted: bool


class AskMaster(Message, frozen=True):
    """Anybody with the job's secret asks a keeper: where is the job's master?"""


class MasterIs(Message, frozen=True):
    """Answer to `AskMaster`."""

    term: int
    """Newest term of which a master is known."""
    address: str = ""
    """``HOST:PORT``; empty: nobody is known now."""
    host: str = ""
    """Name of its machine."""


KeeperCall = AskVote | AskMaster
