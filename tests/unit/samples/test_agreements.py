"""Workers agree on one value, also if some come late, ask again, or die."""

from collections.abc import Set as AbstractSet

import msgspec

from paceline.base.numbering import Inc
from paceline.protocol.agreements import Agreements
from paceline.protocol.records import Agreed
from paceline.wire.messages.feeds import ScriptPlace
from paceline.wire.messages.node import AgreedOn, AgreeOn

HERE, THERE = (0, 1, 2, -2, 1), (0, 1, 2, -2, 2)
BODY, NEXT = (0, 1, 1, 7, -2, 1), (0, 1, 1, 8, -2, 1)
A, B, C = Inc(5), Inc(6), Inc(9)


def word(inc: Inc, *, rank: int, everybody: bool = True, place: ScriptPlace = HERE) -> AgreeOn:
    return AgreeOn(inc=inc, place=place, value=str(inc).encode(), rank=rank, all=everybody)


def decided(machine: Agreements, in_steps: AbstractSet[Inc] | None = None) -> list[Agreed]:
    found = [*machine.due({A, B, C} & machine._present if in_steps is None else in_steps)]
    for record in found:
        machine.apply(record)
    return found


def job_of(*incs: Inc) -> Agreements:
    machine = Agreements()
    for inc in incs:
        machine.came(inc)
    return machine


def test_the_first_value_is_that_of_all_that_come_later() -> None:
    machine = job_of(A, B)
    machine.meet(word(B, rank=1, everybody=False))
    (record,) = decided(machine)
    assert record == Agreed(place=HERE, values=(b"6",))
    assert machine.answers() == [AgreedOn(inc=B, place=HERE, values=(b"6",))]
    machine.meet(word(A, rank=0, everybody=False))
    machine.meet(word(C, rank=2, everybody=True))
    assert decided(machine) == []
    assert [(one.inc, one.values) for one in machine.answers()] == [(A, (b"6",)), (C, (b"6",))]
    assert machine.answers() == []


def test_all_that_live_are_waited_for_and_their_values_come_by_rank() -> None:
    machine = job_of(A, B, C)
    machine.meet(word(C, rank=0))
    machine.meet(word(C, rank=0))
    machine.meet(word(A, rank=2))
    machine.meet(word(A, rank=2, place=THERE))
    assert decided(machine) == []
    machine.left(B)
    (record,) = decided(machine)
    assert (record.place, record.values) == (HERE, (b"9", b"5"))
    assert {one.inc for one in machine.answers()} == {A, C}


def test_a_dead_worker_s_value_does_not_count_unless_all_was_decided() -> None:
    machine = job_of(A, B)
    machine.meet(word(A, rank=0))
    machine.left(A)
    assert decided(machine) == []
    machine.came(C)  # its next life
    machine.meet(word(B, rank=1))
    assert decided(machine) == []
    machine.meet(word(C, rank=0))
    (record,) = decided(machine)
    assert record.values == (b"9", b"6")


def in_body(inc: Inc, rank: int, place: ScriptPlace = BODY) -> AgreeOn:
    return msgspec.structs.replace(word(inc, rank=rank, place=place), in_body=True)


def test_in_a_body_nobody_waits_for_a_worker_that_waits_for_others() -> None:
    machine = job_of(A, B, C)
    for _ in range(2):
        machine.waits(B)  # before anybody waits for it: it may come yet
    machine.meet(in_body(A, 0))
    for inc in (B, C, B):
        machine.waits(inc)
        assert decided(machine) == []
    machine.waits(C)
    (record,) = decided(machine)
    assert record == Agreed(place=BODY, values=(b"5",))
    assert [one.inc for one in machine.answers()] == [A]
    machine.meet(in_body(B, 1))
    assert [(one.inc, one.values) for one in machine.answers()] == [(B, (b"5",))]


def test_a_word_of_just_before_a_worker_went_on_does_not_make_it_absent() -> None:
    machine = job_of(A, B, C)
    machine.meet(in_body(A, 0))
    machine.waits(B)  # sent before it completed the step, after which it meets, too
    machine.meet(in_body(C, 2))
    assert decided(machine) == []
    machine.meet(in_body(B, 1))
    (record,) = decided(machine)
    assert record.values == (b"5", b"6", b"9")
    machine.answers()
    machine.meet(in_body(A, 0, NEXT))
    machine.waits(B)  # of each meeting it says so twice
    machine.meet(in_body(C, 2, NEXT))
    assert decided(machine) == []


def test_between_loops_all_are_waited_for() -> None:
    machine = job_of(A, B)
    machine.meet(word(A, rank=0))
    machine.waits(B)
    machine.waits(B)
    assert decided(machine) == []
    machine.meet(word(B, rank=1))
    (record,) = decided(machine)
    assert record.values == (b"5", b"6")


def test_in_a_body_only_members_are_waited_for() -> None:
    machine = job_of(A, B, C)
    machine.meet(in_body(A, 0))
    machine.meet(in_body(B, 1))
    (record,) = decided(machine, in_steps={A, B})
    assert record.values == (b"5", b"6")


def test_a_worker_that_comes_after_all_is_heard() -> None:
    machine = job_of(A, B, C)
    machine.meet(in_body(A, 0))
    machine.waits(B)
    machine.waits(B)
    machine.meet(in_body(B, 1))
    machine.meet(in_body(C, 2))
    (record,) = decided(machine)
    assert record.values == (b"5", b"6", b"9")


def test_workers_at_two_places_of_a_body_do_not_wait_for_each_other() -> None:
    machine = job_of(A, B, C)
    machine.meet(in_body(A, 0))
    machine.meet(in_body(B, 1, NEXT))
    assert decided(machine) == [], "the third may come to either"
    machine.meet(in_body(C, 2, NEXT))
    assert {(one.place, one.values) for one in decided(machine)} == {
        (BODY, (b"5",)),
        (NEXT, (b"6", b"9")),
    }


def test_a_worker_on_its_way_from_a_meeting_that_is_over_is_waited_for() -> None:
    machine = job_of(A, B)
    machine.meet(in_body(A, 0))
    machine.meet(in_body(B, 1))
    assert len(decided(machine)) == 1
    machine.answers()
    machine.meet(in_body(A, 0, NEXT))
    machine.meet(in_body(B, 1))  # it has not heard the outcome
    assert decided(machine) == []
    assert [one.inc for one in machine.answers()] == [B]
    machine.meet(in_body(B, 1, NEXT))
    (record,) = decided(machine)
    assert record.values == (b"5", b"6")
