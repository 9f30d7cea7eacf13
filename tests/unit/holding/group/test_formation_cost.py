"""What forming a group costs a master: messages, counted, that grow as the members do."""

from collections.abc import Iterator, Sequence

import pytest

from paceline.base.numbering import Inc, StepNo
from paceline.base.samples import Span
from paceline.protocol.acts import Instruction, Send
from paceline.protocol.holding.group.formation import Formation
from paceline.wire.messages.group import (
    NO_STEP,
    CatchUp,
    GroupStopped,
    JoinGroup,
    Progress,
    RunGroup,
    StopGroup,
)

COMMITTED = (Span(0, 0, 64_000),)
MEMBERS = 300


def messages(done: Sequence[Instruction]) -> Iterator[Send]:
    return (one for one in done if isinstance(one, Send))


def answer(
    group: Formation, inc: Inc, step: int, committed: tuple[Span, ...], ran: int = 0
) -> list[Send]:
    said = GroupStopped(
        epoch_no=group.epoch_no,
        inc=inc,
        group=group.number,
        step=StepNo(step),
        committed=committed,
        ran=ran,
    )
    return [*messages(group.stopped_said(said))]


def copy_as_told(group: Formation, told: list[Send]) -> list[Send]:
    """Have each member that is told to copy say that it has; return all that was said to them."""
    heard = list(told)
    for one in heard:
        if isinstance(one.message, CatchUp):
            copied = one.message
            heard += answer(group, copied.inc, copied.step, copied.committed)
    return heard


@pytest.fixture
def group() -> Formation:
    """Return a group that has just come together, and holds nothing."""
    group = Formation()
    for inc in range(1, MEMBERS + 1):
        word = JoinGroup(inc=Inc(inc), address=f"tcp://10.0.0.1:{inc}", replica="r")
        group.join(word, f"worker-{inc - 1}", expected=MEMBERS)
    for inc in range(1, MEMBERS + 1):
        answer(group, Inc(inc), NO_STEP, ())
    assert group.needs_restore
    return group


def kinds(heard: Sequence[Send]) -> dict[type, int]:
    found = [type(one.message) for one in heard]
    return {kind: found.count(kind) for kind in (StopGroup, CatchUp, RunGroup)}


def test_a_group_that_begins_is_told_each_thing_once(group: Formation) -> None:
    heard = copy_as_told(group, [*messages(group.restore(None))])
    assert group.running
    assert kinds(heard) == {StopGroup: 0, CatchUp: MEMBERS, RunGroup: MEMBERS}


def test_members_that_are_a_step_behind_are_told_to_copy_once(group: Formation) -> None:
    copy_as_told(group, [*messages(group.restore(None))])
    heard = [*messages(group.leave(Inc(1)))]
    for inc in range(2, MEMBERS + 1):
        heard += answer(group, Inc(inc), 100 if inc % 2 else 99, COMMITTED)
    assert not group.running
    heard = copy_as_told(group, heard)
    assert group.running
    behind = MEMBERS // 2
    assert kinds(heard) == {StopGroup: MEMBERS - 1, CatchUp: behind, RunGroup: MEMBERS - 1}


def test_who_copies_already_is_not_sent_to_another_member(group: Formation) -> None:
    copy_as_told(group, [*messages(group.restore(None))])
    group.leave(Inc(300))
    told: list[Send] = []
    for inc in range(1, MEMBERS):
        told += answer(group, Inc(inc), 99 if inc < 3 else 100, COMMITTED)
    sources = {one.message.source.inc for one in told if isinstance(one.message, CatchUp)}
    assert sources == {3}
    # The first member holds the step now, and comes before the one that the second copies from.
    assert answer(group, Inc(1), 100, COMMITTED) == []
    again = [*messages(group.resend())]
    assert [one.message.source.inc for one in again if isinstance(one.message, CatchUp)] == [3]


def orders(heard: Sequence[Send]) -> dict[Inc, RunGroup]:
    found = (one.message for one in heard)
    return {one.inc: one for one in found if isinstance(one, RunGroup)}


def test_members_hear_only_what_has_changed_since_the_group_before(group: Formation) -> None:
    begins = orders(copy_as_told(group, [*messages(group.restore(None))]))
    assert {len(one.members) for one in begins.values()} == {MEMBERS}
    first, everybody = group.number, group.members
    joiner = JoinGroup(inc=Inc(900), address="tcp://10.0.0.2:9", replica="r")
    group.leave(Inc(7))
    group.join(joiner, "worker-6", expected=MEMBERS)
    assert [one.node for one in group.members].count("worker-6") == 0, "it is in the next one"
    for inc in range(1, MEMBERS + 1):
        answer(group, Inc(inc), 100, COMMITTED, ran=first)
    told: list[Send] = []
    for member in group.members:
        ran = 0 if member.inc in (Inc(900), Inc(5)) else first + 1
        step = NO_STEP if member.inc == 900 else 100
        told += answer(group, member.inc, step, COMMITTED if step == 100 else (), ran=ran)
    runs = orders(told)
    assert len(runs) == MEMBERS
    former = tuple(one for one in everybody if one.inc != 7)
    for inc, run in runs.items():
        if inc in (900, 5):
            assert (run.base, run.members) == (0, group.members)
        else:
            assert [one.inc for one in run.members] == [900]
            assert run.over(former).members == group.members


def test_a_member_that_left_is_taken_off_the_list(group: Formation) -> None:
    copy_as_told(group, [*messages(group.restore(None))])
    first, everybody = group.number, group.members
    group.leave(Inc(7))
    told: list[Send] = []
    for member in group.members:
        told += answer(group, member.inc, 100, COMMITTED, ran=first)
    (run, *_) = runs = list(orders(told).values())
    assert {(one.base, one.members, one.left) for one in runs} == {(first, (), (7,))}
    assert run.over(everybody).members == group.members


def test_a_step_that_all_members_hold_is_news_once(group: Formation) -> None:
    copy_as_told(group, [*messages(group.restore(None))])

    def said(inc: int, step: int) -> tuple[Span, ...] | None:
        word = Progress(
            epoch_no=group.epoch_no,
            inc=Inc(inc),
            group=group.number,
            step=StepNo(step),
            committed=COMMITTED,
            division=inc,
        )
        return group.progress(word)

    assert group.untold == set(range(1, MEMBERS + 1))
    assert [said(inc, 7) for inc in (1, 2, 3)] == [COMMITTED, None, None]
    assert said(4, 6) is None, "another one has told of a later step"
    assert said(4, 8) == COMMITTED
    assert group.untold == set(range(5, MEMBERS + 1)), "each has heard that the group runs"
    assert [group.divided[Inc(inc)] for inc in (2, 3, 4)] == [2, 3, 4]
