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
    RunGroup,
    StopGroup,
)

COMMITTED = (Span(0, 0, 64_000),)
MEMBERS = 300


def messages(done: Sequence[Instruction]) -> Iterator[Send]:
    return (one for one in done if isinstance(one, Send))


def answer(group: Formation, inc: Inc, step: int, committed: tuple[Span, ...]) -> list[Send]:
    said = GroupStopped(
        epoch_no=group.epoch_no,
        inc=inc,
        group=group.number,
        step=StepNo(step),
        committed=committed,
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
