"""Who may be elected, what may leave a master, and who gets seats."""

from paceline.base.numbering import Inc
from paceline.protocol.nodes.journal_keeper import JournalKeeper
from paceline.protocol.nodes.journal_lead import JournalLead, SeatCandidate, choose_seats
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.nodes.node import Launch, NodeJoined, NodeStarted, WorkerLost
from paceline.wire.messages.keeping import (
    AskVote,
    JournalAdd,
    JournalCopy,
    JournalPlace,
    Seat,
    Seats,
    VoteIs,
)
from paceline.wire.spec import RestartSpec

SEATS = Seats(now=tuple(map(Seat, "abc")))
BASE = JournalPlace(1, 0)


def keeper(seat: str = "b", *, parts: int = 1) -> JournalKeeper:
    """It holds the journal of master a, which was heard at 0 s."""
    found = JournalKeeper(seat, 2.0)
    for part in range(parts):
        copy = JournalCopy(
            place=BASE,
            seats=SEATS,
            leader="a",
            records=(b"%d" % part,),
            part=part,
            is_last=part == parts - 1,
        )
        assert found.copy(copy, 0.0)
    return found


def trial(seat: str, term: int = 2, place: JournalPlace = BASE) -> AskVote:
    return AskVote(term=term, seat=seat, place=place, is_trial=True)


def yes(seat: str, term: int = 1) -> VoteIs:
    return VoteIs(seat=seat, term=term, granted=True)


def test_a_copy_counts_when_its_last_part_is_there() -> None:
    found = keeper(parts=3)
    assert found.records == [b"0", b"1", b"2"]
    half = JournalCopy(
        place=JournalPlace(1, 7), seats=SEATS, leader="a", records=(b"x",), is_last=False
    )
    assert found.copy(half, 1.0)
    assert (found.records, found.place) == ([b"0", b"1", b"2"], BASE)


def test_records_are_added_once_and_in_order() -> None:
    found = keeper()
    add = JournalAdd(after=BASE, leader="a", records=(b"x", b"y"))
    for _ in range(2):
        assert found.add(add, 1.0)
    assert (found.records, found.place) == ([b"0", b"x", b"y"], JournalPlace(1, 2))
    assert found.add(JournalAdd(after=JournalPlace(1, 5), leader="a", records=(b"z",)), 1.0)
    assert found.place == JournalPlace(1, 2)


def test_nobody_is_elected_while_the_master_is_heard() -> None:
    found = keeper()
    assert not found.asked(trial("c"), 1.9).granted
    assert found.asked(trial("c"), 2.1).granted


def test_the_masters_own_successor_on_its_machine_is_elected_at_once() -> None:
    assert keeper().asked(trial("a"), 0.1).granted


def test_a_lonely_keeper_does_no_harm() -> None:
    lonely = keeper("c")
    for _ in range(5):
        asked = lonely.trial()
        assert not lonely.has_won(asked, [], 9.0)
    assert lonely.term == 1
    beat = JournalAdd(after=BASE, leader="a")
    assert lonely.add(beat, 9.1), "it still knows its master"


def test_a_keeper_votes_once_in_a_term_and_for_no_shorter_journal() -> None:
    found = keeper()
    found.add(JournalAdd(after=BASE, leader="a", records=(b"x",)), 0.0)
    short = AskVote(term=2, seat="c", place=BASE)
    assert not found.asked(short, 9.0).granted
    long = JournalPlace(1, 1)
    assert found.asked(AskVote(term=3, seat="c", place=long), 9.0).granted
    assert not found.asked(AskVote(term=3, seat="d", place=long), 9.0).granted
    assert not found.add(JournalAdd(after=long, leader="a"), 9.0), "of a former term"


def test_a_keeper_that_is_elected_has_a_majority_and_no_master() -> None:
    found = keeper()
    asked = found.trial()
    assert not found.has_won(asked, [], 9.0)
    assert found.has_won(asked, [yes("c")], 9.0)
    found.add(JournalAdd(after=BASE, leader="a"), 9.0)
    assert not found.has_won(asked, [yes("c")], 9.1), "the master was heard meanwhile"
    asked = found.campaign()
    assert (asked.term, found.has_won(asked, [yes("c", 2)], 9.2)) == (2, True)
    assert not found.has_won(asked, [yes("c", 3)], 9.2), "there is a newer term"


def test_one_that_has_handed_over_its_seat_is_out() -> None:
    found = keeper()
    found.has_left = True
    assert not found.is_due(99.0, 2.0)
    assert not found.asked(trial("c"), 99.0).granted


def test_what_a_majority_holds_may_leave() -> None:
    lead = JournalLead("a", BASE, SEATS)
    lead.add(2)
    assert lead.safe == -1
    lead.held("b", JournalPlace(1, 1))
    assert (lead.safe, lead.is_safe) == (1, False)
    lead.held("c", JournalPlace(0, 99))
    assert lead.safe == 1
    lead.held("c", JournalPlace(1, 2))
    assert lead.is_safe


def test_a_master_alone_waits_for_nobody() -> None:
    lead = JournalLead("a", BASE, Seats(now=(Seat("a"),)))
    lead.add(3)
    assert lead.is_safe


def test_when_all_others_leave_in_order_the_master_goes_on_alone() -> None:
    lead = JournalLead("a", BASE, SEATS)
    lead.left("b", 1)
    assert lead.is_safe, "c alone elects nobody"
    late = JournalLead("a", BASE, SEATS)
    late.left("b", 2)
    assert not late.is_safe, "it may have voted in a later term"


def test_seats_change_over_a_majority_of_both() -> None:
    lead = JournalLead("a", BASE, Seats(now=(Seat("a"),)))
    for name in "bc":
        lead.held(name, BASE)
    first = lead.next_seats(SEATS.now)
    assert first == Seats(now=SEATS.now, before=(Seat("a"),))
    lead.add(1, first)
    assert lead.next_seats(SEATS.now) is None, "not before it is safe"
    lead.held("c", JournalPlace(1, 1))
    last = lead.next_seats(SEATS.now)
    assert last == SEATS
    lead.add(1, last)
    lead.held("b", JournalPlace(1, 2))
    assert lead.next_seats(SEATS.now) is None


def candidates(*names: str) -> list[SeatCandidate]:
    return [SeatCandidate(Seat(name), f"machine of {name[0]}") for name in names]


def test_two_or_four_others_have_seats_each_on_its_own_machine() -> None:
    own, alone = Seat("a"), Seats(now=(Seat("a"),))
    assert choose_seats(own, alone, candidates("b")) == (own,)
    assert choose_seats(own, alone, candidates("b", "b2")) == (own,)
    assert choose_seats(own, alone, candidates("b", "b2", "c")) == SEATS.now
    assert len(choose_seats(own, alone, candidates(*"bcd"))) == 3
    assert len(choose_seats(own, alone, candidates(*"bcdefg"))) == 5


def test_who_has_a_seat_keeps_it() -> None:
    assert choose_seats(Seat("a"), SEATS, candidates("x", "c", "y", "b"))[1:3] == (
        Seat("c"),
        Seat("b"),
    )


def test_nodes_of_the_machine_that_had_the_master_are_not_awaited() -> None:
    members = Membership(num_workers=1, num_servers=0, restart=RestartSpec())
    for name in ("worker-1", "worker-2"):
        members.roster.apply(NodeJoined(node=name))
    for inc, name in enumerate(("worker-0", "worker-1", "worker-2"), 1):
        members.roster.apply(NodeStarted(node=name, inc=Inc(inc)))
    acts = members.machine_lost(("worker-1",), "its machine host-a is gone")
    assert [act.inc for act in acts if isinstance(act, WorkerLost)] == [1, 2]
    assert [*members.roster.nodes] == ["worker-2"]
    assert not any(isinstance(act, Launch) for act in members.begin(0.0))
