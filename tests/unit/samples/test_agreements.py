"""Workers agree on one value, also if some come late, ask again, or die."""

from paceline.base.numbering import Inc
from paceline.protocol.agreements import Agreements
from paceline.protocol.records import Agreed
from paceline.wire.messages.feeds import ScriptPlace
from paceline.wire.messages.node import AgreedOn, AgreeOn

HERE, THERE = (0, 1, 2, -2, 1), (0, 1, 2, -2, 2)
A, B, C = Inc(5), Inc(6), Inc(9)


def word(inc: Inc, *, rank: int, everybody: bool = True, place: ScriptPlace = HERE) -> AgreeOn:
    return AgreeOn(inc=inc, place=place, value=str(inc).encode(), rank=rank, all=everybody)


def decided(machine: Agreements) -> list[Agreed]:
    found = [*machine.due()]
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
