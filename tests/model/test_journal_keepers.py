"""Every order of what can happen to a journal that is kept on several machines, in small bounds.

A message stays in the network once it was sent: it may come late, again, or never. So the death of
a keeper, and a cable that is cut, are orders in which nothing comes any more. Time does not limit
who asks for votes: each may at any moment.
"""

import copy
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from paceline.protocol.nodes.journal_keeper import JournalKeeper
from paceline.protocol.nodes.journal_lead import JournalLead
from paceline.wire.messages.keeping import (
    AskVote,
    JournalAdd,
    JournalCopy,
    JournalHeld,
    JournalPlace,
    Seat,
    Seats,
    VoteIs,
)

FIRST = ("a", "b", "c")
Sent = tuple[str, str, Any]
"""From, to, message."""


class Broken(Exception):
    """An invariant does not hold."""


def seats(names: tuple[str, ...]) -> tuple[Seat, ...]:
    return tuple(Seat(name) for name in names)


class Master:
    """The master of one term, with its journal."""

    def __init__(self, seat: str, term: int, records: list[bytes], held: Seats) -> None:
        self.lead = LEAD(seat, JournalPlace(term, 0), held)
        self.base, self.records = len(records), [*records]

    def copied(self) -> "Master":
        other = copy.copy(self)
        other.lead = copy.copy(self.lead)
        other.lead._held, other.lead._left = {**self.lead._held}, {*self.lead._left}
        other.records = [*self.records]
        return other

    @property
    def released(self) -> tuple[bytes, ...]:
        """What has left it."""
        count = 0 if self.lead.safe < 0 else self.base + self.lead.safe
        return tuple(self.records[:count])

    def key(self) -> tuple[object, ...]:
        lead = self.lead
        held = tuple(sorted(lead._held.items()))
        rest = (tuple(sorted(lead._left)), lead.safe, lead.seats)
        return (lead.seat, lead.place, held, rest, tuple(self.records))


LEAD: type[JournalLead] = JournalLead
KEEPER: type[JournalKeeper] = JournalKeeper


class Bounds:
    """How much of what may happen."""

    def __init__(
        self,
        *,
        adds: int = 0,
        votes: int = 0,
        restarts: int = 0,
        leaves: int = 0,
        wanted: tuple[str, ...] = FIRST,
        late_copy: bool = False,
    ) -> None:
        self.adds, self.votes, self.restarts, self.leaves = adds, votes, restarts, leaves
        self.wanted, self.late_copy = wanted, late_copy


class World:
    """The seats a, b, c; d has a copy of the journal and may get a seat."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        held = Seats(now=seats(FIRST))
        self.masters = {1: Master("a", 1, [b"first"], held)}
        self.keepers: dict[str, JournalKeeper] = {}
        self.votes: dict[str, tuple[AskVote, tuple[VoteIs, ...]]] = {}
        self.net: frozenset[Sent] = frozenset()
        self.adds = self.asks = self.restarts = self.leaves = 0
        self.longest: tuple[bytes, ...] = ()
        self.told: dict[int, tuple[bytes, ...]] = {}
        """What has left the master of each term."""
        for name in sorted({*"bc", *bounds.wanted} - {"a"}):
            keeper = KEEPER(name, 0.0)
            keeper.copy(_copy_of(self.masters[1]), 0.0)
            self.keepers[name] = keeper
        if bounds.late_copy:
            self.net = frozenset({("a", "b", _copy_of(self.masters[1]))})

    def copied(self) -> "World":
        other = copy.copy(self)
        other.masters = {term: one.copied() for term, one in self.masters.items()}
        other.keepers = {name: copy.copy(one) for name, one in self.keepers.items()}
        for one in other.keepers.values():
            one.records, one._copy = [*one.records], [*one._copy]
        other.votes, other.told = {**self.votes}, {**self.told}
        return other

    def key(self) -> tuple[object, ...]:
        keepers = tuple(
            (name, one.term, one.place, one.seats, one.leader, one.has_left, one._voted)
            for name, one in sorted(self.keepers.items())
        )
        records = tuple(
            (tuple(one.records), tuple(one._copy), one._parts, one._copied)
            for name, one in sorted(self.keepers.items())
        )
        masters = tuple(one.key() for _, one in sorted(self.masters.items()))
        counts = (self.adds, self.asks, self.restarts, self.leaves)
        return (
            keepers,
            self.longest,
            records,
            masters,
            tuple(sorted(self.votes.items())),
            self.net,
            counts,
        )

    # ------------------------------------------------------------------ what can happen

    def events(self) -> list[tuple[Callable[..., None], Any]]:
        found: list[tuple[Callable[..., None], Any]] = [(World.comes, one) for one in self.net]
        for term, master in self.masters.items():
            if self.adds < self.bounds.adds:
                found.append((World.adds_one, term))
            if master.lead.next_seats(seats(self.bounds.wanted)) is not None:
                found.append((World.changes_seats, term))
        if self.asks < self.bounds.votes:
            found += [(World.asks_votes, name) for name, one in self.keepers.items() if one.keeps]
        if self.restarts < self.bounds.restarts:
            found.append((World.starts_again, 1))
        if self.leaves < self.bounds.leaves:
            found += [(World.leaves_for_good, "b"), (World.leaves_for_good, "c")]
        return found

    def adds_one(self, term: int) -> None:
        self.adds += 1
        self._add(term, b"%d.%d" % (term, self.adds))

    def changes_seats(self, term: int) -> None:
        master = self.masters[term]
        fresh = master.lead.next_seats(seats(self.bounds.wanted))
        assert fresh is not None
        self._add(term, b"%d seats" % term, fresh)

    def _add(self, term: int, record: bytes, fresh: Seats | None = None) -> None:
        master = self.masters[term]
        after = master.lead.place
        master.records.append(record)
        master.lead.add(1, fresh)
        add = JournalAdd(after=after, leader=master.lead.seat, records=(record,), seats=fresh)
        self._send_all(master.lead.seat, add)
        self._check_released(term)

    def _send_all(self, seat: str, message: Any) -> None:
        self.net |= {(seat, name, message) for name in self.keepers if name != seat}

    def asks_votes(self, name: str) -> None:
        self.asks += 1
        asked = self.keepers[name].campaign()
        self.votes[name] = asked, ()
        self._send_all(name, asked)

    def starts_again(self, term: int) -> None:
        """The first master dies, and another one starts from its journal."""
        self.restarts += 1
        old = self.masters.pop(term)
        fresh = KEEPER("a", 0.0)
        fresh.term, fresh.place, fresh.seats = term, old.lead.place, old.lead.seats
        fresh.records = [*old.records]
        self.keepers["a"] = fresh
        asked = fresh.campaign()
        self.votes["a"] = asked, ()
        self._send_all("a", asked)

    def leaves_for_good(self, name: str) -> None:
        self.leaves += 1
        self.keepers[name].has_left = True
        for master in self.masters.values():
            self.net |= {
                (name, master.lead.seat, (master.lead.place.term, self.keepers[name].term))
            }

    def comes(self, sent: Sent) -> None:
        source, target, message = sent
        if isinstance(message, JournalHeld | tuple):
            self._to_master(source, message)
            return
        keeper = self.keepers.get(target)
        if keeper is None or (target in self._leading() and not isinstance(message, VoteIs)):
            return
        match message:
            case JournalCopy():
                if keeper.copy(message, 0.0):
                    self._answer(keeper, source, message.place.term)
            case JournalAdd():
                if keeper.add(message, 0.0):
                    self._answer(keeper, source, message.after.term)
            case AskVote():
                self.net |= {(target, source, keeper.asked(message, 0.0))}
            case VoteIs():
                self._counts(keeper, message)

    def _leading(self) -> set[str]:
        return {master.lead.seat for master in self.masters.values()}

    def _answer(self, keeper: JournalKeeper, source: str, term: int) -> None:
        if not keeper.has_left:
            held = JournalHeld(node=str(term), place=keeper.place, term=keeper.term, address="")
            self.net |= {(keeper.seat, source, held)}

    def _to_master(self, source: str, message: JournalHeld | tuple[int, int]) -> None:
        term = int(message.node) if isinstance(message, JournalHeld) else message[0]
        master = self.masters.get(term)
        if master is None:
            return
        if isinstance(message, JournalHeld):
            master.lead.held(source, message.place)
        else:
            master.lead.left(source, message[1])
        self._check_released(term)

    def _counts(self, keeper: JournalKeeper, answer: VoteIs) -> None:
        asked, answers = self.votes.get(keeper.seat, (None, ()))
        if asked is None or answer.term > asked.term:
            return
        answers = tuple(sorted({*answers, answer}, key=lambda one: one.seat))
        self.votes[keeper.seat] = asked, answers
        if not keeper.has_won(asked, [*answers], 0.0):
            return
        if asked.term in self.masters:
            raise Broken("two masters of one term")
        master = Master(keeper.seat, asked.term, keeper.records, keeper.seats)
        for term, told in self.told.items():
            if term < asked.term and tuple(master.records[: len(told)]) != told:
                raise Broken("a master lacks what has left one before it")
        self.masters[asked.term] = master
        keeper.has_left = True
        self._send_all(keeper.seat, _copy_of(master))

    def _check_released(self, term: int) -> None:
        released = self.masters[term].released
        common = min(len(released), len(self.longest))
        if released[:common] != self.longest[:common]:
            raise Broken("two masters have told different things")
        self.longest = max(released, self.longest, key=len)
        self.told[term] = released
        for later, master in self.masters.items():
            if later > term and tuple(master.records[: len(released)]) != released:
                raise Broken("something leaves a master that a later one lacks")


def _copy_of(master: Master) -> JournalCopy:
    return JournalCopy(
        place=master.lead.place,
        seats=master.lead.seats,
        leader=master.lead.seat,
        records=tuple(master.records),
    )


def walk(bounds: Bounds, seed: int, length: int = 60) -> None:
    """Follow one long order of events."""
    random, world = Random(seed), World(bounds)
    for _ in range(length):
        events = world.events()
        if not events:
            return
        event, about = random.choice(sorted(events, key=repr))
        event(world, about)


def explore(bounds: Bounds, most: int = 2_500) -> int:
    """Look at the states in the order of the number of events to them; how many there were."""
    first = World(bounds)
    seen, states = {first.key()}, [first]
    while states:
        following = []
        for state in states:
            for event, about in state.events():
                after = state.copied()
                event(after, about)
                if (key := after.key()) not in seen:
                    seen.add(key)
                    following.append(after)
            if len(seen) > most:
                return len(seen)
        states = following
    return len(seen)


BOUNDS = {
    "votes": Bounds(adds=1, votes=2),
    "changes": Bounds(adds=1, votes=1, wanted=("a", "b", "d")),
    "alone": Bounds(adds=1, votes=1, wanted=("a",)),
    "restart": Bounds(adds=1, votes=1, restarts=1),
    "leaves": Bounds(adds=1, votes=1, leaves=2),
}


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_what_has_left_a_master_is_in_every_later_one(bounds: Bounds) -> None:
    assert explore(bounds) > 300
    for seed in range(60):
        walk(bounds, seed)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_so_it_is_in_many_more_orders(bounds: Bounds) -> None:
    explore(bounds, 20_000)
    for seed in range(1_000):
        walk(bounds, seed, 120)


class VotesTwice(JournalKeeper):
    def asked(self, vote, now_s):  # type: ignore[no-untyped-def]
        self._voted = ""
        return super().asked(vote, now_s)


class VotesForOlder(JournalKeeper):
    def asked(self, vote, now_s):  # type: ignore[no-untyped-def]
        newer = JournalPlace(vote.place.term + 1, 0)
        return super().asked(AskVote(term=vote.term, seat=vote.seat, place=newer), now_s)


class ObeysFormer(JournalKeeper):
    def _follows(self, term, leader, now_s):  # type: ignore[no-untyped-def]
        super()._follows(term, leader, now_s)
        return True


class VotesAfterLeaving(JournalKeeper):
    def asked(self, vote, now_s):  # type: ignore[no-untyped-def]
        left, self.has_left = self.has_left, False
        answer = super().asked(vote, now_s)
        self.has_left = left
        return answer


class TakesLateCopies(JournalKeeper):
    def copy(self, message, now_s):  # type: ignore[no-untyped-def]
        self.place = JournalPlace(0, 0) if message.place < self.place else self.place
        return super().copy(message, now_s)


class TellsAtOnce(JournalLead):
    def _look(self):  # type: ignore[no-untyped-def]
        self.safe = self.place.index


class CountsAnyLeaver(JournalLead):
    def left(self, name, term):  # type: ignore[no-untyped-def]
        super().left(name, 0)


class ChangesAtOnce(JournalLead):
    def next_seats(self, wanted):  # type: ignore[no-untyped-def]
        fresh = super().next_seats(wanted)
        return None if fresh is None else Seats(now=fresh.now)


@pytest.mark.parametrize(
    ("flawed", "bounds"),
    [
        (CountsAnyLeaver, BOUNDS["leaves"]),
        (VotesTwice, Bounds(votes=2)),
        (VotesForOlder, BOUNDS["votes"]),
        (ObeysFormer, BOUNDS["votes"]),
        (VotesAfterLeaving, BOUNDS["leaves"]),
        (TakesLateCopies, Bounds(adds=1, votes=1, late_copy=True)),
        (TellsAtOnce, BOUNDS["votes"]),
        (ChangesAtOnce, Bounds(adds=1, votes=1, wanted=("a",))),
    ],
)
def test_a_flaw_is_found(
    flawed: type[Any], bounds: Bounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "LEAD" if issubclass(flawed, JournalLead) else "KEEPER"
    monkeypatch.setitem(globals(), name, flawed)
    with pytest.raises(Broken):
        explore(bounds)
